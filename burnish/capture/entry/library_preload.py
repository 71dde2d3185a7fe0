"""Preloads GPU libraries in a thread during a compile.

A process's first products, convolutions and reductions on a GPU take long: libraries are read from disk and kernels are
loaded. The trial of a compiled graph needs them first, so a thread runs such operations while the graph is compiled.
While Dynamo traces, it runs one product of each type that the model has weights of; then every kind of operation in the
graph, once, on zeros of its shapes. Torch releases the GIL meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import fx

from burnish.capture.graphs.called import function_name
from burnish.runtime.process import has_started
from burnish.torch_private.fake_tensors import FakeTensor
from burnish.trust.distance import distance
from burnish.trust.referee import NARROW

_BY_SHAPE: Final = frozenset(  # libraries choose another kernel for another shape
    "addmm baddbmm bmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d linear matmul mm"
    " scaled_dot_product_attention".split()
)
_ONCE: Final = frozenset(  # a kernel each, whatever the shape; none of them can fail on zeros
    "add and_ argmax batch_norm cat clone contiguous cos cross_entropy cumsum embedding eq float gather ge gelu getitem"
    " group_norm gt index_select layer_norm le log_softmax lt masked_fill max_pool2d mean mul ne neg or_ pow relu"
    " rms_norm rsqrt sigmoid silu sin softmax sub sum tanh to truediv where".split()
)
_MOST_SHAPES: Final = 8  # of one operation
_MOST_BYTES: Final = 256 << 20  # memory limit of one operation: larger shapes are skipped
_MOST_WIDE: Final = 32 << 20  # in float64, where the referee's run also widens tables and vocabularies in chunks
_SIDE: Final = 64  # of the first products' matrices

Kind = tuple[torch.dtype, torch.device]
_preloaded: set[Kind] = set()  # whose first product has been run
_first: list[LibraryPreload] = []  # the last preload that was started without a graph


@dataclass(frozen=True)
class Zeros:
    """A tensor by its form."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @property
    def bytes(self) -> int:
        return (1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))) * self.dtype.itemsize

    def made(self) -> torch.Tensor:
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        return made.zero_().requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class Exercise:
    """A call, its tensors as `Zeros`."""

    name: str
    target: Callable[..., Any]
    args: Any
    kwargs: Any

    def tensors(self) -> list[Zeros]:
        found: list[Zeros] = []
        _mapped((self.args, self.kwargs), lambda spec: found.append(spec))
        return found

    def in_float64(self) -> Exercise:
        return Exercise(self.name, self.target, _mapped(self.args, _wide), _mapped(self.kwargs, _wide))

    def perform(self) -> None:
        args, kwargs = _mapped(self.args, Zeros.made), _mapped(self.kwargs, Zeros.made)
        result = self.target(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            leaves: list[torch.Tensor] = []
            _mapped((args, kwargs), lambda leaf: leaves.append(leaf) if leaf.requires_grad else None, torch.Tensor)
            torch.autograd.grad(result, leaves, torch.zeros_like(result), allow_unused=True)


class LibraryPreload:
    """A thread that runs exercises until none are left, or until `end` is called, which waits for the thread."""

    def __init__(
        self, exercises: Sequence[Exercise], compared: Sequence[Zeros], after: LibraryPreload | None = None
    ) -> None:
        """Runs `after` another preload; its end then includes the other's."""
        self._exercises = exercises
        self._compared = compared
        self._after = after
        self._over = threading.Event()
        thread = threading.Thread(target=self._run, name="burnish-preload", daemon=True)
        self._thread = thread if has_started(thread) else None  # without it, the trial loads the libraries itself

    def _run(self) -> None:
        if self._after is not None:
            self._after.wait()
        for each in self._performances():
            if self._over.is_set():
                return
            try:
                each()
            except Exception:  # ignored: a real error will occur in eager again
                continue

    def _performances(self) -> Iterator[Callable[[], object]]:
        devices = (spec.device for one in self._exercises for spec in one.tensors())
        device = next((each for each in devices if each.type == "cuda"), None)
        if device is not None:
            torch.cuda.set_device(device)  # of this thread
        yield from (one.perform for one in self._exercises)
        for spec in self._compared:
            yield lambda spec=spec: distance(spec.made(), spec.made(), spec.made())  # type: ignore[misc]
        wide = [one.in_float64() for one in self._exercises if self._compared]
        yield from (one.perform for one in wide if sum(tensor.bytes for tensor in one.tensors()) <= _MOST_WIDE)

    def end(self) -> None:
        """Call it before any CUDA graph capture, because a capture forbids this thread's operations."""
        self._over.set()
        if self._after is not None:
            self._after.end()
        self.wait()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()


def preload_for_products(kinds: Iterable[Kind], *, compared: bool) -> None:
    """Preload for products with a model's weights, before there is a graph. `preload_libraries` continues with the
    graph."""
    new = [kind for kind in dict.fromkeys(kinds) if kind not in _preloaded]
    _preloaded.update(new)
    if new:
        forms = [Zeros((_SIDE, _SIDE), (_SIDE, 1), dtype, device, False) for dtype, device in new]
        products = [Exercise("mm", torch.mm, (form, form), {}) for form in forms]
        _first[:] = [LibraryPreload(products, forms if compared else ())]


def preload_libraries(graph: fx.GraphModule, *, compared: bool) -> LibraryPreload | None:
    """Preload for a graph that Dynamo captured for a GPU. `compared`: its results will be compared, also in float64."""
    first = _first.pop() if _first else None
    if not any(_is_on_gpu(node.meta.get("example_value")) for node in graph.graph.nodes):
        return first
    return LibraryPreload(exercises_of(graph), _results(graph) if compared else (), first)


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def exercises_of(graph: fx.GraphModule) -> list[Exercise]:
    """The kinds of operations in the graph, library calls first; operations with unknown numbers are skipped."""
    found: dict[Hashable, Exercise] = {}
    shapes: dict[str, int] = {}
    for node in graph.graph.nodes:
        name = _name(node)
        if name not in _BY_SHAPE | _ONCE or _drops_out(node):
            continue
        exercise = _exercise(node)
        if exercise is None or not (tensors := exercise.tensors()) or _bytes(node, tensors) > _MOST_BYTES:
            continue
        key: Hashable = (name, tuple(t.dtype for t in tensors))
        if name in _BY_SHAPE:
            key = (key, tuple(t.shape for t in tensors))
            if key not in found and shapes.setdefault(name, 0) == _MOST_SHAPES:
                continue
            shapes[name] += key not in found
        found.setdefault(key, exercise)
    return sorted(found.values(), key=lambda exercise: exercise.name not in _BY_SHAPE)


def _exercise(node: fx.Node) -> Exercise | None:
    target = getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target
    try:
        args, kwargs = (_mapped(values, _form, fx.Node) for values in (node.args, node.kwargs))
    except _Unknown:
        return None
    return Exercise(_name(node), target, args, kwargs)  # type: ignore[arg-type]


def _bytes(node: fx.Node, tensors: Sequence[Zeros]) -> int:
    """That it takes, and makes."""
    result = node.meta.get("example_value")
    made = result.numel() * result.itemsize if isinstance(result, torch.Tensor) else 0
    return made + sum(tensor.bytes for tensor in tensors)


class _Unknown(Exception):
    """An argument that is not a tensor of known sizes."""


def _form(node: fx.Node) -> Zeros:
    value: Any = node.meta.get("example_value")
    if type(value) not in (torch.Tensor, torch.nn.Parameter, FakeTensor):
        raise _Unknown
    sizes = (*value.shape, *value.stride()) if value.layout == torch.strided else (None,)
    if not all(type(size) is int for size in sizes) or 0 in value.shape:
        raise _Unknown
    shape, stride = tuple(value.shape), tuple(value.stride())
    return Zeros(shape, stride, value.dtype, value.device, value.requires_grad and torch.is_grad_enabled())


def _results(graph: fx.GraphModule) -> list[Zeros]:
    """A small tensor of each result type."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    values = [node.meta.get("example_value") for node in output.all_input_nodes]
    kinds = {(x.dtype, x.device) for x in values if isinstance(x, torch.Tensor)}
    return [Zeros((64,), (1,), dtype, device, False) for dtype, device in kinds]


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    is_torchs = str(getattr(node.target, "__module__", "")).partition(".")[0] in ("torch", "_operator")
    return function_name(node) if is_torchs else ""


def _drops_out(node: fx.Node) -> bool:
    """Attention with dropout would draw from the caller's random generator."""
    if _name(node) != "scaled_dot_product_attention":
        return False
    dropout = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
    return not (isinstance(dropout, (int, float)) and dropout == 0)


def _wide(spec: Zeros) -> Zeros:
    return replace(spec, dtype=torch.float64) if spec.dtype in NARROW else spec


def _mapped(value: Any, change: Callable[[Any], Any], kind: type = Zeros) -> Any:
    """A copy of the value with every `kind` in it mapped."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)):
        plain = tuple if isinstance(value, tuple) else list  # FX has lists of its own
        return plain(_mapped(x, change, kind) for x in value)
    if isinstance(value, dict):
        return {name: _mapped(x, change, kind) for name, x in value.items()}
    return value
