"""The schedules and kernels of the built-in workloads, as text, without running or building anything.

Models and inputs are fake tensors, so that full sizes cost no memory; a GPU's kernels are printed on any machine.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config as functorch_config
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from burnish.codegen.c import unit as c_unit
from burnish.codegen.triton import module as triton_module
from burnish.fuel import Fuel
from burnish.lower.importer import import_graph
from burnish.passes import run_passes
from burnish.pipeline import Kind
from burnish.schedule.kernels import Schedule
from burnish.schedule.lower import lower_graph
from burnish.schedule.passes import Context, run_schedule_passes
from burnish.tools.workloads import Inputs, Workload
from tests.programs import aot_settings, named_device

PINNED = Path(__file__).with_name("pinned.json")
# Other versions of these trace other graphs. (x86-64 and aarch64 were seen to make the same ones.)
MADE_WITH = {"torch": torch.__version__.partition("+")[0]}
MADE_WITH |= {name: version(name) for name in ("transformers",) if find_spec(name)}
TARGETS = {"cpu": torch.float32, "cuda": torch.bfloat16}
TRAINED = ("mlp", "bert-base", "resnet50", "gpt2-train")


Pin = dict[str, Any]  # what is kept of a graph: digests, and how many kernels of each kind it has


@dataclass(frozen=True)
class Compiled:
    """One graph: its name, its schedule, and the source of its kernels."""

    name: str
    schedule: Schedule
    source: str

    @property
    def pin(self) -> Pin:
        schedule = Counter(type(kernel).__name__ for kernel in self.schedule.kernels)
        return {
            "kernels": dict(sorted(schedule.items())),
            "schedule": _digest(str(self.schedule)),
            "source": _digest(self.source),
        }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compiled(workload: Workload, size: str, target: str) -> Iterator[Compiled]:
    """Every graph of a workload: of its inference, and of its training where that is usual."""
    for trains in (False, True):
        if trains and workload.name not in TRAINED:
            continue
        with FakeTensorMode(allow_non_fake_inputs=True):
            with _default(TARGETS[target]):
                model, inputs = workload.build(size)
            graphs = _graphs(model.train(trains).requires_grad_(trains), inputs, target)
        for graph in graphs:
            yield Compiled(f"{workload.name}.{target}.{size}.{graph.name}", graph.schedule, graph.source)


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _graphs(model: torch.nn.Module, inputs: Inputs, target: str) -> list[Compiled]:
    """The model is called once, on fake tensors."""
    found: list[Compiled] = []

    def compiler(kind: Kind) -> Callable[[GraphModule, Any], Any]:
        def keep(gm: GraphModule, example: Any) -> Any:
            with _disable_current_modes(), named_device(gm, target):
                found.append(_compiled(gm, kind, target))
            return gm

        return keep

    def backend(gm: GraphModule, example: Sequence[Any]) -> Any:
        return aot_module_simplified(gm, example, **aot_settings(compiler))

    torch._dynamo.reset()
    with functorch_config.patch(force_non_lazy_backward_lowering=True):
        run = torch.compile(model, backend=backend)
        run(**inputs) if isinstance(inputs, dict) else run(*inputs)
    torch._dynamo.reset()
    return found


def _compiled(gm: GraphModule, kind: Kind, target: str) -> Compiled:
    captured = import_graph(gm, target)
    captured.graph = run_passes(captured.graph, Fuel(None), lambda name, graph: None, captured.target)
    schedule = run_schedule_passes(lower_graph(captured), captured.target, Context())
    unit = triton_module.generate(schedule) if target == "cuda" else c_unit.generate(schedule)
    return Compiled(kind, schedule, unit.text)
