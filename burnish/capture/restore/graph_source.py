"""A captured graph as Python source and the names it uses: its eager form, which runs without an FX graph."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from burnish.capture.graphs.called import enters_contexts
from burnish.capture.restore import NotWarm
from burnish.torch_private.fake_tensors import FakeTensorMode
from burnish.torch_private.operators import HigherOrderOperator, OpOverload, OpOverloadPacket

_NAMESPACES = ("aten", "prims", "prim", "higher_order")
_MODULES = ("torch", "_operator", "operator", "builtins", "math")
_DATA = (torch.device, torch.dtype, float, int, str, bool, type(None))


@dataclass(frozen=True)
class Reference:
    """A module, or an attribute of one, by its name."""

    module: str
    name: str = ""


@dataclass(frozen=True)
class GraphText:
    source: str  # of a function `forward(self, ...)`
    names: tuple[tuple[str, Any], ...]  # what it finds in its globals
    held: tuple[tuple[str, Any], ...]  # the attributes of `self` that it reads: small tensors, and graphs as GraphText
    enters: bool = False  # whether it enters contexts that an exception would leave open


def graph_text(gm: fx.GraphModule) -> GraphText:
    """Raises NotWarm."""
    for node in gm.graph.nodes:
        _require_plain(node)
    printed = gm.graph.python_code("self")
    used = _names_in(compile(printed.src, "<captured graph>", "exec"))
    names = tuple((name, _reference(name, value)) for name, value in sorted(printed.globals.items()) if name in used)
    targets = sorted({str(node.target) for node in gm.graph.nodes if node.op in ("get_attr", "call_module")})
    held = tuple((target, _held(gm, target)) for target in targets)
    return GraphText(printed.src, names, held, enters_contexts(gm.graph))


def _names_in(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def _require_plain(node: fx.Node) -> None:
    target = node.target
    if isinstance(target, HigherOrderOperator) and target.name() != "invoke_subgraph":
        raise NotWarm(f"{target} has a graph of its own")
    namespace = getattr(target, "namespace", "aten")
    if isinstance(target, OpOverload | OpOverloadPacket) and namespace not in _NAMESPACES:
        raise NotWarm(f"{target} is not torch's own")
    if node.op == "call_function" and not _is_torchs(target):
        raise NotWarm(f"{_shown(target)} is traced without being looked at")


def _is_torchs(value: Any) -> bool:
    if isinstance(value, OpOverload | OpOverloadPacket | HigherOrderOperator):
        return True
    module = getattr(value, "__module__", None)
    return module is None or module.split(".")[0] in _MODULES


def _reference(name: str, value: Any) -> Any:
    if isinstance(value, types.ModuleType):
        return Reference(value.__name__)
    if isinstance(value, _DATA):
        return value
    found = Reference(str(getattr(value, "__module__", "") or "builtins"), getattr(value, "__qualname__", ""))
    if found.name and _is_torchs(value):
        try:
            if _found(found) is value:
                return found
        except (ImportError, AttributeError):
            pass
    raise NotWarm(f"its graph uses {name}, which is {_shown(value)}")


def _held(gm: fx.GraphModule, target: str) -> Any:
    value = getattr(gm, target) if "." not in target else None
    if isinstance(value, fx.GraphModule):
        return graph_text(value)
    if type(value) is torch.Tensor:
        return value
    raise NotWarm(f"its graph holds {_shown(value)} as {target}")


def _shown(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)


def runnable(text: GraphText) -> Callable[..., Any]:
    """The graph as a function of its inputs."""
    forward = _module(text).forward
    run: Callable[..., Any] = forward
    return run


def graph_of(text: GraphText, args: Sequence[Any]) -> fx.GraphModule:
    """The FX graph, for arguments of this form; placeholders without memory get the device of the others. If it has
    nested graphs, torch's exceptions may be raised."""
    graph = fx.symbolic_trace(_module(text))
    device = next(x.device for x in args if isinstance(x, torch.Tensor) and not x.is_meta)
    forms = FakeTensorMode(allow_non_fake_inputs=True)  # constants
    with forms, torch.no_grad():
        _Forms(graph).run(*(_form(forms, x, device) for x in args))
    return graph


class _Forms(fx.Interpreter):
    """Records each node's fake value, as AOTAutograd does."""

    def run_node(self, n: fx.Node) -> Any:
        n.meta["val"] = value = super().run_node(n)
        return value


def _form(forms: FakeTensorMode, x: Any, device: torch.device) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    if x.is_meta:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    return forms.from_tensor(x, static_shapes=True)


def _module(text: GraphText) -> torch.nn.Module:
    namespace = {name: _found(value) if isinstance(value, Reference) else value for name, value in text.names}
    exec(compile(text.source, "<burnish captured graph>", "exec"), namespace)
    module = type("Captured", (torch.nn.Module,), {"forward": namespace["forward"]})()
    for name, value in text.held:
        object.__setattr__(module, name, _module(value) if isinstance(value, GraphText) else value)
    return module


def _found(reference: Reference) -> Any:
    if reference.module.split(".")[0] not in _MODULES:
        raise NotWarm(f"its graph uses {reference.module}")
    module = importlib.import_module(reference.module)
    return functools.reduce(getattr, reference.name.split("."), module) if reference.name else module
