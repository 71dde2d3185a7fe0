"""What no rounding has a part in is eager's or wrong; float64 is not asked where it would mean another thing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

import burnish
from burnish.capture.graphs.facts import depends_on_type, result_exactness
from burnish.trust.distance import unequal
from burnish.trust.exactness import BITWISE, EQUAL, ROUNDED
from burnish.trust.gate import Gate, GraphFacts
from burnish.trust.referee import judge

X, PLACES = torch.randn(6, 8), torch.tensor([1, 5, 0])


def captured(fn: Callable[..., Any], *args: torch.Tensor) -> fx.GraphModule:
    """As Dynamo hands it over."""
    found: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(graph)
        return graph.forward

    torch.compile(fn, backend=keep)(*args)
    (graph,) = found
    return graph


def test_how_exact_the_results_of_a_graph_are() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        halves = x.to(torch.bfloat16)
        return (
            x[i].abs().T, torch.where(x > 0, x, -x), torch.nextafter(x, x.flip(0)), halves.float(), F.embedding(i, x),
            F.relu(x), x.max(-1).values, x.clamp(-1, 1).argmax(-1),
            i * i % 7, (i + 1).float(), i.sum(),
            x + 1, x.sum(-1), (x * 2).argmax(-1), halves * halves, i / 3, x.round(decimals=2),
        )  # fmt: skip

    expected = (*[BITWISE] * 5, *[EQUAL] * 3, *[BITWISE] * 3, *[ROUNDED] * 6)
    assert result_exactness(captured(fn, X, PLACES)) == expected


def test_nothing_is_said_of_graphs_that_write() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[0] = y[1] * 3
        return y

    assert result_exactness(captured(fn, X)) == ()
    assert result_exactness(captured(lambda x: F.relu(x.clone(), inplace=True), X)) == ()
    assert result_exactness(captured(lambda x: x.clone().mul_(3), X)) == ()


@pytest.mark.parametrize(
    ("fn", "depends"),
    [
        (lambda x: torch.nextafter(x, x + 1), True),
        (lambda x: torch.frexp(x * 2).mantissa, True),
        (lambda x: (x * 2).view(torch.int32) & 1, True),
        (lambda x: torch.nan_to_num(x * 1e30), True),
        (lambda x: x.view(-1) * 2, False),
        (lambda x: x.half() * 2, False),
    ],
    ids=["nextafter", "frexp", "bits", "nan_to_num", "view", "half"],
)
def test_what_means_something_else_in_float64(fn: Callable[..., Any], depends: bool) -> None:
    assert depends_on_type(captured(fn, X)) is depends


def opinion(ours: torch.Tensor, eagers: torch.Tensor, exactness: int, again: torch.Tensor | None = None) -> str:
    return judge(
        [ours],
        [eagers],
        exact=lambda wide: [eagers.double()],
        eager_again=lambda: [eagers if again is None else again],
        exactness=(exactness,),
    ).wrong


def test_one_bit_is_wrong_where_nothing_rounds() -> None:
    near = X.clone()
    near[2, 3] = torch.nextafter(near[2, 3], torch.tensor(9.0))
    assert opinion(near, X, ROUNDED) == ""
    assert "differs in 1 elements" in opinion(near, X, EQUAL)
    assert opinion(X.clone(), X, BITWISE) == ""


def test_the_sign_of_a_zero_and_which_nan_it_is() -> None:
    nan = float("nan")
    one, other = torch.tensor([0.0, nan, 1.0]), torch.tensor([-0.0, -nan, 1.0])
    assert unequal(one, other, signs=True) == 1 and unequal(one, other, signs=False) == 0
    assert opinion(one, other, BITWISE) and not opinion(one, other, EQUAL)


def test_a_value_that_eager_gives_differently_each_time_is_nobodys_error() -> None:
    assert opinion(X + 1, X, BITWISE, again=X + 2) == ""


def test_the_gate_refuses_the_next_number_of_another_type() -> None:
    """Which is the number itself, once it is rounded to its own: in float64 both are as good as equal."""

    def eager(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.nextafter(x, y),)

    def in_float(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.nextafter(x.float(), y.float()).to(x.dtype),)

    x = (torch.rand(64, 64) + 1).bfloat16()
    facts = GraphFacts("inference", exactness=(BITWISE,), depends_on_type=True, coarsest=torch.bfloat16)
    gate = Gate(facts, compare=True, race=False, compile_seconds=1.0)
    verdict = gate.judge(eager, {"burnish": in_float}, (x, x + 1))
    assert verdict.winner == "eager" and "differs in 4096 elements" in verdict.failures["burnish"].reason
    assert gate.judge(eager, {"burnish": eager}, (x, x + 1)).winner == "burnish"


def test_exact_graphs_pass_their_trial() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.cat([x, -x, x * 0.0])
        return y[i].abs(), F.relu(y), y.bfloat16().float().floor(), torch.where(y > 0, y, -y).clamp(-0.5, 0.0), -y

    compiled = burnish.compile(fn)
    for scale in (1.0, 1e20, float("nan")):
        compiled(X * scale, PLACES)
    (variant,) = burnish.stats(compiled).variants
    assert variant.state == "compiled" and variant.gate is not None and variant.gate.compiled_error == 0.0
