"""Functions of torch as the compiler's own forms: captured by AOTAutograd without Dynamo, whose cost would dominate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import aot_function
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from burnish.capture.autograd.partition import partition
from burnish.capture.graphs.decompositions import decomposition_table
from burnish.fuel import Fuel
from burnish.lower.captured import Captured
from burnish.lower.importer import import_graph
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.passes import run_passes
from burnish.pipeline import compile_graph
from burnish.schedule.fuse import fuse
from burnish.schedule.kernels import Schedule
from burnish.schedule.lower import lower_graph

Function = Callable[..., Any]


def aot(fn: Function, compiler: Callable[[str], Callable[[Any, Any], Any]], dynamic: bool = False) -> Function:
    return aot_function(fn, dynamic=dynamic, **aot_settings(compiler))


def aot_settings(compiler: Callable[[str], Callable[[Any, Any], Any]]) -> dict[str, Any]:
    """What AOTAutograd is told, as in a compile."""
    return {
        "fw_compiler": compiler("forward"),
        "bw_compiler": compiler("backward"),
        "inference_compiler": compiler("inference"),
        "partition_fn": partition,
        "decompositions": decomposition_table(),
        "keep_inference_input_mutations": True,
    }


@dataclass
class Capture:
    """A graph as captured, the FX module it came from, and the arguments its first call gave it."""

    kind: str
    captured: Captured
    module: GraphModule
    inputs: list[Any]


def capture(
    fn: Function, *inputs: torch.Tensor, dynamic: bool = False, device: str | None = None, runs: bool = True
) -> list[Capture]:
    """Run `fn` once under AOTAutograd and return its graphs: inference alone, or forward and backward where an input
    requires a gradient. `device` is the kind of device to lower for. Without `runs` nothing is computed: a product of
    bfloat16 takes minutes on a processor without it."""
    found: list[Capture] = []

    def compiler(kind: str) -> Callable[[GraphModule, Any], Any]:
        def keep(gm: GraphModule, example: Any) -> Any:
            with _disable_current_modes(), named_device(gm, device):
                entry = Capture(kind, import_graph(gm, device), gm, [])
            found.append(entry)

            def run(args: list[Any]) -> Any:
                entry.inputs = copies(args)
                return gm(*args) if runs else blank_results(gm)

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return keep

    outputs = aot(fn, compiler, dynamic)(*inputs)
    leaves = [t for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    if leaves:
        torch.autograd.backward(leaves, [torch.randn_like(t) for t in leaves])
    return found


def blank_results(gm: GraphModule) -> list[Any]:
    """Zeros of the shapes and types that a graph returns, which must be static."""
    (output,) = gm.graph.find_nodes(op="output")
    values = [x.meta["val"] if isinstance(x, torch.fx.Node) else x for x in output.args[0]]
    return [
        torch.empty_strided(v.shape, v.stride(), dtype=v.dtype).zero_() if isinstance(v, torch.Tensor) else v
        for v in values
    ]


@contextlib.contextmanager
def named_device(gm: GraphModule, device: str | None) -> Iterator[None]:
    """While open, calls that name the device they are on (`.to(x.device)`) name the one to lower for."""
    named = {node: node.kwargs for node in gm.graph.nodes if device and node.kwargs.get("device") is not None}
    for node, kwargs in named.items():
        node.kwargs = {**kwargs, "device": torch.device(device or "cpu")}
    yield
    for node, kwargs in named.items():
        node.kwargs = kwargs


def sizes_of(captured: Captured, inputs: Sequence[Any]) -> dict[str, int]:
    """The value of each size symbol, read from the argument that binds it."""
    read: dict[str, Callable[[Any, int], int]] = {
        "value": lambda x, d: int(x),
        "size": lambda x, d: x.shape[d],
        "stride": lambda x, d: x.stride(d),
        "offset": lambda x, d: x.storage_offset(),
    }
    return {name: read[kind](inputs[at], d) for name, (at, kind, d) in captured.symbols.sources.items()}


def schedules(captured: Captured, fuel: int | None = None) -> tuple[Schedule, Schedule]:
    """The schedule before and after fusion, of a graph the passes have been over; both verified."""
    captured.graph = run_passes(captured.graph, Fuel(fuel), lambda name, graph: graph.verify())
    apart, joined = lower_graph(captured), fuse(lower_graph(captured), Fuel(fuel))
    apart.verify()
    joined.verify()
    return apart, joined


@dataclass
class Compiler:
    """Our pipeline behind AOTAutograd. A failure in it is raised, not served by eager."""

    options: Options = field(default_factory=lambda: Options(verify_ir=True))
    log: CompileLog = field(default_factory=CompileLog)
    graphs: int = 0

    def __call__(self, kind: str) -> Callable[[Any, Any], Any]:
        def compile_one(gm: Any, inputs: Any) -> Any:
            self.graphs += 1
            with _disable_current_modes():  # a fake mode is active while AOTAutograd calls us
                run = compile_graph(gm, inputs, kind=kind, options=self.options, log=self.log)  # type: ignore[arg-type]
            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_one


def compiled(fn: Function, compiler: Compiler | None = None, dynamic: bool = False) -> Function:
    return aot(fn, compiler or Compiler(), dynamic)


def copies(tensors: Sequence[Any], double: bool = False) -> list[Any]:
    """Fresh tensors with the same values, strides and offset; with `double`, floats become float64."""
    return [_copy(t, double) if isinstance(t, torch.Tensor) else t for t in tensors]


def _copy(t: torch.Tensor, double: bool) -> torch.Tensor:
    size = 1 + sum((d - 1) * s for d, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    dtype = torch.float64 if double and t.is_floating_point() else t.dtype
    held = torch.empty(size + t.storage_offset(), dtype=dtype)
    held[t.storage_offset() :].copy_(t.detach().as_strided((size,), (1,)))
    return held.as_strided(t.shape, t.stride(), t.storage_offset()).requires_grad_(t.requires_grad)
