"""Faults to inject into the compiler, by name: in a test's process, or by
`python -m tests.tools.verify.faults NAME FILE`."""

from __future__ import annotations

import dataclasses
import runpy
import sys
from collections.abc import Callable
from typing import Any

import torch

from burnish import passes, pipeline
from burnish.ir.body import Const, Loop
from burnish.ir.graph import Map, Node
from burnish.lower.registry import LOWERINGS
from burnish.passes.rewrite import Rule

Patch = Callable[[Any, str, Any], None]


def wrong_pass(patch: Patch) -> None:
    """A rewrite that turns x - y into y - x."""

    def swap(b: Any, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.op == Map("sub") and inputs[0] is not inputs[1]:
            return b.graph.add(Map("sub"), inputs[::-1], node.types, node.origin)
        return None

    rule: Rule = swap
    patch(passes, "PASSES", (*passes.PASSES, ("swap", rule)))


def wrong_fusion(patch: Patch) -> None:
    """Joining two loops loses a constant: every 2 in a joined body becomes 3."""
    from burnish.schedule import fuse

    join = fuse.join

    def lossy(*args: Any, **kwargs: Any) -> Loop | None:
        joined = join(*args, **kwargs)
        if joined is None:
            return None
        body = [dataclasses.replace(i, value=3.0) if isinstance(i, Const) and i.value == 2 else i for i in joined.body]
        return dataclasses.replace(joined, body=tuple(body))

    patch(fuse, "join", lossy)


def wrong_codegen(patch: Patch) -> None:
    """Generated kernels leave out the last element of their first axis."""
    from burnish.codegen.c import unit as c_unit

    normalise = c_unit.normalise

    def short(loop: Loop) -> Loop:
        loop = normalise(loop)
        first = loop.axes[0] if loop.axes else None
        if first is None or first.reduce or not isinstance(first.size, int) or first.size < 3:
            return loop
        return dataclasses.replace(loop, axes=(dataclasses.replace(first, size=first.size - 1), *loop.axes[1:]))

    patch(c_unit, "normalise", short)


def one_percent(patch: Patch) -> None:
    """tanh is 1 % too large, in generated code only."""
    from burnish.codegen.c import loop as c_loop

    spelled = c_loop.apply_text

    def louder(fn: str, *args: Any) -> str:
        text = spelled(fn, *args)
        return f"({text} * 1.01f)" if fn == "tanh" else text

    patch(c_loop, "apply_text", louder)


def wrong_lowering(patch: Patch) -> None:
    """aten.gelu is written as tanh."""
    name = "aten::gelu.default"
    patch(pipeline, "import_graph", _importing_with({name: lambda b, x, approximate="none": b.map("tanh", x)}))


def wrong_gradient(patch: Patch) -> None:
    """The derivative of tanh is written as 1 - y."""
    name = "aten::tanh_backward.default"
    patch(
        pipeline,
        "import_graph",
        _importing_with({name: lambda b, grad, y: b.map("mul", grad, b.map("sub", 1.0, y))}),
    )


def _importing_with(lowerings: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    original = pipeline.import_graph

    def importing(gm: Any, **named: Any) -> Any:
        kept = {name: LOWERINGS.get(name) for name in lowerings}
        LOWERINGS.update(lowerings)
        try:
            return original(gm, **named)
        finally:
            for name, lowering in kept.items():
                if lowering is None:
                    del LOWERINGS[name]
                else:
                    LOWERINGS[name] = lowering

    return importing


def wrong_state(patch: Patch) -> None:
    """What is written back to an argument is doubled."""
    original = pipeline.run_passes

    def doubling(graph: Any, *args: Any) -> Any:
        from burnish.lower.builder import Builder

        graph = original(graph, *args)
        builder = Builder(graph)
        graph.mutations = [
            (to, builder.map("add", value, value) if value.type.dtype and value.dtype.is_float else value)
            for to, value in graph.mutations
        ]
        return graph

    patch(pipeline, "run_passes", doubling)


def wrong_program(patch: Patch) -> None:
    """Every kernel is right, and the program returns its first result 1 % too large."""
    original = pipeline.load_program

    def loading(*args: Any) -> Any:
        run = original(*args)

        def louder(arguments: list[Any]) -> Any:
            first, *others = run(arguments)
            return (first * 1.01 if isinstance(first, torch.Tensor) and first.is_floating_point() else first, *others)

        return louder

    patch(pipeline, "load_program", loading)


FAULTS: dict[str, Callable[[Patch], None]] = {
    fault.__name__: fault
    for fault in (
        wrong_pass, wrong_fusion, wrong_codegen, one_percent, wrong_lowering, wrong_gradient, wrong_state,
        wrong_program,
    )
}  # fmt: skip


if __name__ == "__main__":
    _, fault, file = sys.argv
    if fault != "none":
        FAULTS[fault](setattr)
    runpy.run_path(file, run_name="__main__")
