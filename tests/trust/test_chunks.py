"""Gradients are compared one by one and in chunks: never a second set of them, and nothing is overlooked for it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import fx, nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch.utils._python_dispatch import TorchDispatchMode

import burnish
from burnish import pipeline
from burnish.trust import backward, distance, eager_interpreter
from burnish.trust.distance import Distance, Nearness
from burnish.trust.eager_interpreter import ChunkedGraph
from tests.against_eager import fallback_warnings

WORDS, WIDTH = 96, 8
IDS = torch.arange(4).reshape(2, 2) * 23


class Tied(nn.Module):
    """Its table's gradient is the sum of a product and of a lookup's, and larger than all else together."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(WORDS, WIDTH))
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.inner(nn.functional.embedding(ids, self.table)))
        return nn.functional.cross_entropy((hidden @ self.table.t()).flatten(0, 1), ids.flatten())


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_interpreter, "_LARGE", 2048)
    monkeypatch.setattr(eager_interpreter, "_CHUNK", 1024)
    monkeypatch.setattr(distance, "_CHUNK", 64)


def backward_of(model: nn.Module, ids: torch.Tensor) -> tuple[fx.GraphModule, Sequence[Any]]:
    """The backward graph that AOTAutograd makes, and what it was called with."""
    found: list[Any] = []

    def keep(graph: fx.GraphModule, _: Any) -> Any:
        def run(*args: Any) -> Any:
            found[:] = graph, args
            return graph(*args)

        return make_boxed_func(run)

    def compiled(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        plain = lambda gm, _: make_boxed_func(gm.forward)  # noqa: E731
        return aot_module_simplified(graph, inputs, fw_compiler=plain, bw_compiler=keep)

    torch.compile(model, backend=compiled)(ids).backward()
    return found[0], found[1]


class Largest(TorchDispatchMode):
    """How many elements the largest tensor made within it has."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.elements = max(self.elements, result.numel())
        return result


def test_chunks_make_up_the_results_and_no_large_one_is_ever_whole(small_chunks: None) -> None:
    graph, args = backward_of(Tied(), IDS)
    whole = graph(*args)
    handed: dict[int, list[torch.Tensor]] = {}
    with Largest() as seen:
        ChunkedGraph(graph).run(args, lambda k, chunk, dim, *_: handed.setdefault(k, []).append((dim, chunk)))
    assert set(handed) == set(range(len(whole)))
    for index, expected in enumerate(whole):
        dims, chunks = zip(*handed[index], strict=True)
        assert expected is None or torch.equal(torch.cat(chunks, dims[0]) if len(chunks) > 1 else chunks[0], expected)
    assert max(map(len, handed.values())) >= 3
    assert seen.elements < WORDS * WIDTH == max(x.numel() for x in whole if x is not None)


@pytest.mark.parametrize("half", [False, True])
def test_a_wrong_large_gradient_is_caught_in_the_first_step(
    half: bool, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One element in full precision; in half, what rounding cannot explain."""
    compile_graph = pipeline.compile_graph

    def spoiled(gm: Any, inputs: Any, *, kind: str, **arguments: Any) -> Any:
        run = compile_graph(gm, inputs, kind=kind, **arguments)

        def wrong(args: list[Any]) -> Any:
            results = run(args)
            table = next(x for x in results if isinstance(x, torch.Tensor) and x.shape == (WORDS, WIDTH))
            if half:
                table *= 1.05
            else:
                table.view(-1)[table.abs().argmax()] *= 1.01
            return results

        return wrong if kind == "backward" else run

    monkeypatch.setattr(pipeline, "compile_graph", spoiled)
    compiled = burnish.compile(Tied())
    twin = copy.deepcopy(compiled.eager)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss, expected = compiled(IDS), twin(IDS)
    _, messages = fallback_warnings(loss.backward)
    expected.backward()
    for ours, theirs in zip(compiled.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, **({"rtol": 0.02, "atol": 2e-3} if half else {}))
    (variant,) = burnish.stats(compiled).variants
    assert len(messages) == 1 and variant.state == "rolled back" and "in the backward" in variant.reason


@pytest.mark.parametrize("half", [False, True])
def test_a_right_backward_is_never_run_whole_in_eager(
    half: bool, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(backward, "judge", lambda *args, **named: asked.append("whole"))
    compiled = burnish.compile(Tied())
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = compiled(IDS)
    loss.backward()
    assert asked == [] and burnish.stats(compiled).graphs == {"forward": 1, "backward": 1}
    assert burnish.stats(compiled).variants[0].rollbacks == 0


# --- distances ----------------------------------------------------------------------------------------------------


def plainly(ours: torch.Tensor, theirs: torch.Tensor) -> Distance:
    """By the definition, with everything in float64 at once."""
    a, b = ours.double(), theirs.double()
    lost = int((b.isfinite() & ~a.isfinite()).sum())
    both = a.isfinite() & b.isfinite()
    apart, size = a[both] - b[both], float(b[both].square().mean().sqrt())
    rms = float(apart.square().mean().sqrt()) / size
    return Distance(rms, float((apart.abs() / (b[both].abs() + size)).max()), lost, distance.FLOOR[theirs.dtype])


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


@pytest.mark.parametrize("change", ["all", "one", "nan"])
@pytest.mark.parametrize("form", [torch.Tensor.contiguous, turned], ids=["plain", "turned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_distance_does_not_depend_on_chunks(change: str, form: Any, dtype: torch.dtype, small_chunks: None) -> None:
    torch.manual_seed(1)
    theirs = torch.randn(37, 11).to(dtype)
    ours = theirs.clone()
    if change == "all":
        ours *= 1.25
    else:
        ours[30, 7] = 9.0 if change == "one" else math.nan
    expected = plainly(ours, theirs)
    ours, theirs = form(ours), theirs.contiguous()
    near = Nearness([ours])
    for start in (20, 0):  # in any order
        near.see(0, theirs[start : 37 if start else 20], 0, start)
    assert near.is_complete
    for found in (distance.distance(ours, theirs, theirs), near.distances()[0]):
        assert found.lost == expected.lost and found.rms == pytest.approx(expected.rms, rel=1e-5)
    whole = distance.distance(ours, theirs, theirs)
    assert whole.worst == pytest.approx(expected.worst, rel=1e-5)


def test_what_was_not_seen_is_not_taken_for_right() -> None:
    near = Nearness([torch.ones(4, 2), None])
    near.see(0, torch.ones(3, 2), 0, 0)
    assert not near.is_complete
    near.see(0, torch.ones(1, 2), 0, 3)
    near.see(1, None)
    assert near.is_complete
    near.see(1, torch.ones(1))
    assert not near.is_complete and near.unlike == "result 1 is a NoneType, eager's is torch.float32 [1]"
