"""Graph breaks and recompiles: each kind is named at its line, with its code, a measured cost and a rewrite."""

from __future__ import annotations

import inspect
import itertools
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from burnish.tools.explain.advice import break_advice, recompile_advice
from burnish.tools.explain.result import Explanation
from burnish.tools.explain.session import ExplainSettings, run_explanation
from burnish.tools.targets import Target

log = logging.getLogger(__name__)
X = torch.randn(8, 8)


def explained(model: Callable[..., Any], *inputs: Any, more: Any = (), **plan: Any) -> Explanation:
    settings = {"other_sizes": False, "seconds": 0.0, "referee": False, "ceiling": 1e10, "more_inputs": more}
    return run_explanation(Target("model", model, inputs or (X,)), ExplainSettings(**{**settings, **plan}))


def prints(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print("", end="")  # BREAK
    return y.cos()


def logs(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    log.warning("now")  # BREAK
    return y.cos()


def branches(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    if y.sum() > 0:  # BREAK
        return y + 1
    return y - 1


def reads(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    scale = y.sum().item()  # BREAK
    return y.cos() * scale


def selects(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return y[y > 0].sum()  # BREAK


def calls_numpy(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    first = float(np.linalg.svd(y.detach().numpy())[1][0])  # BREAK
    return y + first


def draws(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return y * random.random()  # BREAK


def takes_time(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    now = time.time()  # BREAK
    return y.cos() + now * 0


def opens(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    open("/dev/null").close()  # BREAK
    return y.cos()


@torch.compiler.disable
def kept_out(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def calls_kept_out(x: torch.Tensor) -> torch.Tensor:
    y = kept_out(x.sin())  # BREAK
    return y.cos()


def asks_for_it(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()  # BREAK
    return y.cos()


BREAKS: dict[Callable[..., Any], tuple[str, str]] = {
    prints: ("print", "is_compiling"),
    logs: ("logging", "is_compiling"),
    branches: ("data-dependent branch", "torch.where"),
    reads: ("reading a number", "tensor of no dimensions"),
    selects: ("shape from data", "mask"),
    calls_numpy: ("numpy", "torch.linalg"),
    draws: ("random numbers of Python", "torch.rand"),
    takes_time: ("time", "outside"),
    opens: ("files and system calls", "before or after"),
    calls_kept_out: ("kept out on purpose", "decorator"),
    asks_for_it: ("graph break on purpose", "remove the call"),
}


@pytest.mark.parametrize("fn", BREAKS)
def test_a_break_has_its_line_code_cost_and_advice(fn: Callable[..., Any]) -> None:
    kind, advice = BREAKS[fn]
    lines, first = inspect.getsourcelines(fn)
    offset = next(i for i, line in enumerate(lines) if "# BREAK" in line)
    explanation = explained(fn)
    found = [b for b in explanation.breaks if b.line == first + offset]
    assert found and found[0].file == __file__ and found[0].code == lines[offset].strip(), explanation.breaks
    assert found[0].kind == kind and advice in found[0].advice
    assert found[0].seconds is not None and 0 < found[0].seconds < explanation.call_seconds
    assert found[0].code in str(explanation) and "a call" in str(explanation)


def test_the_cost_of_a_break_is_measured() -> None:
    """With a clock that ticks once a reading, a gap is what was read between leaving a graph and entering the next."""
    ticks = itertools.count()
    explanation = explained(prints, clock=lambda: float(next(ticks)))
    (found,) = explanation.breaks
    # A call reads: its begin, graph 0's begin and end, graph 1's begin and end, its end.
    assert found.seconds == 1.0 and explanation.call_seconds == 5.0 and explanation.outside_seconds == 3.0


def test_breaks_that_share_a_gap_say_so() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print("", end="")
        print("", end="")
        return y.cos()

    explanation = explained(two)
    assert [b.shared_with for b in explanation.breaks] == [1, 1]


def test_a_model_in_one_graph_has_no_breaks() -> None:
    explanation = explained(nn.Linear(8, 8))
    assert explanation.breaks == () and explanation.recompiles == () and explanation.stats.compiles == 1


# --- recompiles ---------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return x * self.step


RECOMPILES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any, str, str]] = {
    "size": (lambda x: x.sin(), (X,), [(X[:5],)], "another size", "dynamic=True"),
    "layout": (lambda x: x * 2, (X,), [(X.t(),)], "another layout", "contiguous"),
    "type": (lambda x: x * 2, (X,), [(X.double(),)], "another type", "Cast"),
    "number": (lambda x, n: x * n, (X, 2.5), [(X, 3.5)], "a Python number that changes", "tensor"),
    "text": (lambda x, n: x * len(n), (X, "a"), [(X, "bb")], "a Python value that changes", "Each value"),
    "list": (lambda items: items[0] * len(items), ([X],), [([X, X],)], "number of items", "stacked"),
    "attribute": (Counting(), (X,), [], "a Python number that changes", "buffer"),
}


@pytest.mark.parametrize("name", RECOMPILES)
def test_a_recompile_has_its_check_cost_and_advice(name: str) -> None:
    model, inputs, more, kind, advice = RECOMPILES[name]
    explanation = explained(model, *inputs, more=more)
    assert explanation.recompiles, "nothing was compiled again"
    found = explanation.recompiles[0]
    assert found.kind == kind and advice in found.advice, found
    assert found.file == __file__ and found.line > 0 and found.seconds > 0
    assert found.check in str(explanation) and "\n" not in found.check and "#" not in found.check


def test_a_changed_size_is_tried_by_itself() -> None:
    explanation = explained(lambda x: x.sin(), X, other_sizes=True)
    assert [r.kind for r in explanation.recompiles] == ["another size"], "the second size more needs no compile"
    assert "1 more in the first dimension" in explanation.recompiles[0].when
    assert explanation.stats.compiles == 1, "the statistics are those of the inputs given"
    assert explained(lambda x: x.sin(), torch.randn(8, 5), other_sizes=True, dynamic=True).recompiles == ()


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Unsupported context manager: Dynamo does not know how to enter a `Lock`", "context manager"),
        ("Unsupported autograd.Function: has a vmap staticmethod", "custom autograd function"),
        ("Attempted to call function marked as skipped: third-party C/C++ Python extension", "C extension"),
        ("Generator yield in an odd place", "generator"),
        ("something entirely new", "other"),
    ],
)
def test_further_kinds_of_breaks(reason: str, kind: str) -> None:
    advice = break_advice(reason)
    assert advice.kind == kind and advice.text.endswith(".")


def test_further_kinds_of_recompiles() -> None:
    assert recompile_advice("GLOBAL_STATE changed: grad_mode").kind == "grad mode"
    assert recompile_advice("target.training == True").kind == "train and eval"
    assert recompile_advice("___check_obj_id(G['f'], 123)").kind == "another object"
    assert recompile_advice("tensor 'x' requires_grad mismatch").kind == "gradients wanted or not"
    assert recompile_advice("who knows").kind == "other"
