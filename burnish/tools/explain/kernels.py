"""One compiled graph in numbers: its kernels, what was fused into each, the bytes they move and the time they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burnish.ir.graph import Attend, Extern, Full, Graph, Input, Map, Node, Pick, View
from burnish.record import GraphRecord
from burnish.schedule.kernels import AttendKernel, AttendSplits, ExternKernel, Kernel, LoopGroup, LoopKernel, Schedule
from burnish.tools.explain.findings import GraphFacts, KernelFacts, RefusedFusion
from burnish.tools.explain.profile import kernel_seconds
from burnish.tools.explain.traffic import eager_bytes, kernel_bytes, kernel_flops, schedule_bytes
from burnish.tools.verify.isolate import size_values


def graph_facts(
    number: int, record: GraphRecord, arguments: Sequence[Any], call_seconds: float, seconds: float
) -> GraphFacts:
    """`call_seconds` is what a run of the graph takes; `seconds` may be spent on timing its kernels."""
    sizes = size_values(record.captured.symbols.sources, arguments)
    times: Sequence[float | None]
    try:
        times = kernel_seconds(record, arguments, seconds)
    except Exception:  # the arguments are gone, or no compiler: everything but the times is still worth saying
        times = [None] * len(record.schedule.kernels)
    ops = kernel_ops(record)
    kernels = tuple(
        KernelFacts(
            n, kind_of(k), ops[n], kernel_bytes(k, record.schedule, sizes), kernel_flops(k, sizes), times[n]
        )
        for n, k in enumerate(record.schedule.kernels)
    )  # fmt: skip
    return GraphFacts(
        number=number,
        kind=record.kind,
        unfused_kernels=len(record.unfused.kernels),
        kernels=kernels,
        call_seconds=call_seconds,
        fusions=len(record.unfused.kernels) - len(record.schedule.kernels),
        refused=tuple(RefusedFusion(r.first, r.second, r.buffers, r.reason) for r in record.fusion.refused),
        eager_bytes=eager_bytes(record.calls, record.captured.symbols, sizes),
        unfused_bytes=schedule_bytes(record.unfused, sizes),
        fused_bytes=schedule_bytes(record.schedule, sizes),
    )


def kind_of(kernel: Kernel) -> str:
    match kernel:
        case ExternKernel():
            return "ATen"
        case AttendKernel() | AttendSplits():
            return "attention"
        case LoopKernel() | LoopGroup():
            return "loop"
    return "product"


def kernel_ops(record: GraphRecord) -> list[tuple[str, ...]]:
    """The ATen calls that each kernel computes, in the model's order."""
    stored = _computed_by_buffer(record.captured.graph, record.unfused)
    apart = [_ops(kernel, stored) for kernel in record.unfused.kernels]
    members = record.fusion.members
    if len(members) != len(record.schedule.kernels):  # kernels were grouped or split after fusion
        return [_ops(kernel, stored) for kernel in record.schedule.kernels]
    return [tuple(dict.fromkeys(op for n in numbers for op in apart[n])) for numbers in members]


def _ops(kernel: Kernel, stored: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if isinstance(kernel, ExternKernel):
        return (short_name(kernel.op.name),)
    if isinstance(kernel, AttendKernel | AttendSplits):
        return ("scaled_dot_product_attention",)
    return tuple(dict.fromkeys(op for name in sorted(kernel.writes) for op in stored.get(name, ("copy",))))


def _computed_by_buffer(graph: Graph, schedule: Schedule) -> dict[str, tuple[str, ...]]:
    ids = {int(name[1:]) for name in schedule.buffers if name[0] == "b" and name[1:].isdigit()}
    stored = ids | {node.id for node in graph.nodes if isinstance(node.op, Input | Attend | Extern)}
    roots: dict[str, Node] = {f"b{node.id}": node for node in graph.nodes if node.id in ids}
    roots |= {f"out{k}": node for k, node in enumerate(graph.outputs) if isinstance(node, Node)}
    roots |= {f"in{to.op.position}": value for to, value in graph.mutations if isinstance(to.op, Input)}
    return {name: tuple(dict.fromkeys(_origins(node, stored))) or ("copy",) for name, node in roots.items()}


def _origins(root: Node, stored: set[int]) -> Iterator[str]:
    """What is computed on the way from stored values to this one, in the order of the graph."""
    inside: dict[int, Node] = {}
    stack = [root]
    while stack:
        node = stack.pop()
        if node.id in inside or (node.id in stored and node is not root):
            continue
        inside[node.id] = node
        stack.extend(node.inputs)
    for _, node in sorted(inside.items()):
        if node.origin and not isinstance(node.op, Input | View | Full | Pick):  # those compute nothing
            yield short_name(node.origin)
        elif isinstance(node.op, Map):
            yield node.op.fn


def short_name(op: str) -> str:
    """aten::gelu.default as people call it."""
    return op.split("::")[-1].split(".")[0]
