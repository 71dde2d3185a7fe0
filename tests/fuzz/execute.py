"""Run a case on one side: in eager, in eager with noise or in float64, or compiled; what came of each call is kept."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import math
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

import burnish
from burnish.errors import NothingToSeal
from burnish.tools.draws import RecordDraws, ReplayDraws
from burnish.trust.exactness import EXACT
from tests.fuzz.case import Call, Case
from tests.fuzz.inputs import built

HEADER = """import math
from math import inf, nan

import torch
import torch.nn.functional as F
import torch.utils.checkpoint


"""


@dataclass(frozen=True)
class Record:
    """One thing that a call left behind: a tensor's values and what is true of it, or a plain value."""

    path: str
    tensor: torch.Tensor | None
    facts: dict[str, Any]


@dataclass
class Outcome:
    records: dict[str, Record] = field(default_factory=dict)
    error: str = ""  # its type
    message: str = ""
    stage: str = ""  # action, forward or backward: where it was raised
    trace: str = ""  # of our own side
    left: dict[str, Any] = field(default_factory=dict)  # what of torch's own state a call leaves behind it
    near_limit: bool = False  # whether a number came so near the type's largest that the order of a sum may matter


Draws = dict[int, list[tuple[str, list[torch.Tensor]]]]  # forward -> what its random operations returned


@dataclass
class Side:
    """How a case is run. `noise` perturbs whatever rounds, so that the spread of several runs shows what rounding can
    decide; `wide` computes in float64; `spread` puts the arguments elsewhere. `draws` are kept there, by calls, or, of
    a wide run, taken from there: it draws what the narrow one drew."""

    ours: bool = False
    noise: int = 0
    wide: bool = False
    spread: bool = False
    device: str = "cpu"
    draws: Draws | None = None


_EXACT = frozenset(
    """
    _to_copy _unsafe_view _unsafe_index _reshape_alias as_strided slice select lift_fresh lift_fresh_copy copy fill
    index index_put scatter index_copy slice_scatter select_scatter slice_backward select_backward threshold_backward
    scalar_tensor empty empty_like empty_strided new_empty max_pool2d_with_indices max_pool2d_with_indices_backward
    """.split()
)
_SUMS = frozenset(  # and products: what is of many elements
    """
    matmul linear mm bmm addmm baddbmm mv addmv dot sum nansum mean cumsum prod cumprod convolution convolution_backward
    index_add index_add_ scatter_add scatter_add_ embedding_dense_backward
    """.split()
)
_CENTRED = frozenset({"native_batch_norm", "cudnn_batch_norm", "native_group_norm", "native_layer_norm"})


class _Perturbed(TorchDispatchMode):
    """Whatever ATen computes in here is perturbed: of `(x @ y).softmax(-1)` the product, and each step of a gradient
    that somebody took apart, as well as the last result."""

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        self.noise = noise

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if name in _SUMS and getattr(kwargs.get("dtype"), "is_floating_point", False):  # of integers, too large for it
            args = (args[0].to(kwargs["dtype"]), *args[1:])
        adds_up = name in _SUMS or ("index_put" in name and args[3:4] == (True,))  # accumulate
        if adds_up or "scaled_dot_product" in name:  # which round what they add up, inside
            kept = int(name.endswith("_"))  # the tensor that is written
            args = (*args[:kept], *pytree.tree_map(self.noise.operand, args[kept:]))
        if name == "prod":
            args = (self.noise.in_another_order(*args[:2]), *args[1:])
        result = func(*args, **kwargs)
        if name in ("gelu", "gelu_backward"):
            result = self.noise.inside_gelu(result, *args)
        if name in _CENTRED and self.noise.is_common:
            result[0].copy_(_centred(name, args))
        returns = func._schema.returns
        if name in EXACT or name in _EXACT or any(r.alias_info is not None for r in returns):
            return result
        if torch.Tag.nondeterministic_seeded in func.tags:
            return result
        if (adds_up or _is_half(result)) and not _is_finite(result) and _is_finite((args, kwargs)):
            self.noise.near_limit = True  # in another order, or with a wider intermediate, something else is infinite
        return pytree.tree_map(self.noise.operand, result)


def _centred(name: str, args: Sequence[Any]) -> torch.Tensor:
    """What a norm says: elements less their mean, which is zero where all are equal. Eager multiplies the elements and
    their mean one by one, and what it then subtracts may leave rounding noise, also in float64."""
    x, (weight, bias), eps = args[0].double(), args[1:3], args[7]  # of an image's channels
    dims: Sequence[int] = [d for d in range(x.dim()) if d != 1]
    if name == "native_layer_norm":
        dims, (weight, bias), eps = range(-len(args[1]), 0), args[2:4], args[4]
    elif name == "native_group_norm":
        x, dims = x.reshape(args[3], args[6], -1), [2]
    mean, variance = x.mean(dims, True), x.var(dims, correction=0, keepdim=True)
    if "batch_norm" in name and not args[5]:  # by what it has learnt
        mean, variance = (t.double().reshape(mean.shape) for t in args[3:5])
    made = ((x - mean) / (variance + eps).sqrt()).reshape(args[0].shape)
    shape = [-1 if d == 1 else 1 for d in range(made.dim())] if name != "native_layer_norm" else args[1]
    made = made if weight is None else made * weight.reshape(shape)
    return made if bias is None else made + bias.reshape(shape)


def _is_half(value: Any) -> bool:
    halves = (torch.float16, torch.bfloat16)
    return any(isinstance(t, torch.Tensor) and t.dtype in halves for t in pytree.tree_leaves(value))


def _is_finite(value: Any) -> bool:
    leaves = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return all(bool(t.isfinite().all()) for t in leaves)


@dataclass
class Noise:
    """Multiplies what a step rounds by 1 ± one unit in the last place, gradients included."""

    generator: torch.Generator
    near_limit: bool = False
    # Whether all elements of a tensor are perturbed alike, so that those which are equal remain so.
    is_common: bool = False
    order: int = 0  # in which products are multiplied: the smallest first, the largest first, or at random

    def perturbing(self) -> contextlib.AbstractContextManager[Any]:
        return _Perturbed(self)

    def all_of(self, step: Callable[[], Any]) -> Any:
        with self.perturbing():
            value = step()
        for t in pytree.tree_leaves(value):
            if isinstance(t, torch.Tensor) and t.requires_grad:
                t.register_hook(lambda grad: grad * self.factor(grad))
        return value

    def drawn(self, t: torch.Tensor) -> torch.Tensor:
        shape = [1] * t.dim() if self.is_common else t.shape
        return torch.rand(shape, generator=self.generator, dtype=torch.float64) * 2 - 1

    def factor(self, t: torch.Tensor) -> torch.Tensor:
        return (1 + torch.finfo(t.dtype).eps * self.drawn(t)).to(t.dtype).to(t.device)

    def in_another_order(self, t: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        """The factors of products: where one is infinite, whether the others come to zero, or overflow, decides."""
        if t.dim() == 0 or not t.is_floating_point():
            return t
        t, dim = (t.reshape(-1), 0) if dim is None else (t, dim)
        if self.order == 2:
            return t.index_select(dim, torch.randperm(t.shape[dim], generator=self.generator).to(t.device))
        return t.gather(dim, t.abs().argsort(dim, descending=self.order == 1))

    def inside_gelu(self, result: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
        """Of x/2 * (1 + erf(x/sqrt(2))), and of its derivative, the rounding of erf, of which little is left near -1:
        more than a unit of what is left. So it is of tanh. The nearer erf is to one, the less there is to round."""
        x, whole = args[-1].double(), args[0].double()
        unit = torch.finfo(torch.promote_types(result.dtype, torch.float32)).eps
        size = (4 * torch.special.erfc(x.abs() / math.sqrt(2))).clamp(max=unit)
        moved = (result.double() - whole / 2) * size * self.drawn(x).to(x.device)
        return torch.where(moved == 0, result, (result.double() + moved).to(result.dtype))

    def look(self, t: torch.Tensor) -> None:
        largest = t.detach().abs().nan_to_num(0.0, 0.0, 0.0)
        few = 8.0 if t.dtype is torch.float16 else 1e4
        self.near_limit |= bool((largest > torch.finfo(t.dtype).max / few).any())

    def result(self, value: Any) -> Any:
        for t in pytree.tree_leaves(value):
            if isinstance(t, torch.Tensor) and t.is_floating_point():
                self.look(t)
                with contextlib.suppress(RuntimeError), torch.no_grad():  # overlapping memory, inference tensors
                    t.data.mul_(self.factor(t))
                if t.requires_grad:
                    t.register_hook(lambda grad: grad * self.factor(grad))
        return value

    def operand(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.is_meta or value._is_zerotensor():
            return value
        if value.is_floating_point():
            self.look(value)
            return value * self.factor(value)
        return value

    def gradient(self, value: Any) -> Any:
        """Of a value where it is used: in which order those of several uses are summed, rounding may decide."""
        if not isinstance(value, torch.Tensor) or not value.requires_grad or not torch.is_grad_enabled():
            return value
        same = value.view_as(value)
        same.register_hook(lambda grad: grad * self.factor(grad))
        return same


def run_side(case: Case, calls: Sequence[Call], side: Side, folder: Path) -> tuple[list[Outcome], list[str]]:
    """What came of each call, and what the compiler said it could not do."""
    noise = None
    if side.noise:
        generator = torch.Generator().manual_seed(side.noise)
        noise = Noise(generator, is_common=side.noise % 3 == 2, order=side.noise % 3)
    holder = _Holder(case, side, _program(case, side, noise, folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = [holder.run(call, noise) for call in calls]
        notes = [str(f) for f in burnish.stats(holder.compiled).fallbacks] if side.ours else []
    return outcomes, notes


def _program(case: Case, side: Side, noise: Noise | None, folder: Path) -> Any:
    if not side.ours:
        scope: dict[str, Any] = {"torch": torch, "F": F, "math": math, "inf": math.inf, "nan": math.nan}
        if noise is not None:
            scope |= {"_n": noise.result, "_w": noise.operand, "_a": noise.all_of, "_g": noise.gradient}
        exec(_on(side.device, case.program.text(noise is not None, side.wide)), scope)
        return scope["M" if case.program.is_module else "f"]
    return getattr(_loaded(_on(side.device, case.program.text()), folder), "M" if case.program.is_module else "f")


def _on(device: str, text: str) -> str:
    return text if device == "cpu" else text.replace('autocast("cpu"', f'autocast("{device}"')


def _loaded(text: str, folder: Path) -> ModuleType:
    """As a module of a file: that is what a second process can recognise."""
    name = f"fuzzed_{sha256(text.encode()).hexdigest()[:12]}"
    path = folder / f"{name}.py"
    if not path.exists():
        path.write_text(HEADER + text + "\n")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _Holder:
    """The model and what is called: the same object in eager."""

    def __init__(self, case: Case, side: Side, program: Any) -> None:
        self.case, self.side = case, side
        self.forwards = 0
        torch.manual_seed(case.seed)
        self.model = program().to(side.device) if case.program.is_module else program
        if side.wide and case.program.is_module:
            self.model.double()
        self.compiled = burnish.compile(self.model, **case.compile) if side.ours else self.model

    def run(self, call: Call, noise: Noise | None) -> Outcome:
        outcome = Outcome()
        try:
            outcome.stage = "action"
            self._act(call)
            if call.threads > 1:
                self._threaded(call, outcome)
            else:
                self._call(call, noise, outcome, "")
        except Exception as error:
            if isinstance(error, _Passed):
                error = error.error
            outcome.error, outcome.message = type(error).__name__, str(error)
            outcome.trace = "".join(traceback.format_exception(error)) if self.side.ours else ""
            outcome.records = {}
        outcome.left = _torch_state()
        if noise is not None:
            outcome.near_limit, noise.near_limit = noise.near_limit, False
        return outcome

    def _act(self, call: Call) -> None:
        scope = {"torch": torch, "burnish": burnish, "copy": copy, "model": self.model, "compiled": self.compiled}
        for action in call.before:
            if action.ours and not self.side.ours:
                continue
            try:
                exec(action.text, scope)
            except NothingToSeal:
                continue
        self.model, self.compiled = scope["model"], scope["compiled"]

    def _call(self, call: Call, noise: Noise | None, outcome: Outcome, prefix: str) -> None:
        outcome.stage = "arguments"
        args = built(call, self.side.device, self.side.wide, self.side.spread)
        if not call.accumulate and isinstance(self.model, torch.nn.Module):
            self.model.zero_grad(set_to_none=True)
        torch.manual_seed(call.seed)
        outcome.stage = "forward"
        with self._drawing(), _mode(call.mode):
            result = self.compiled(*args)
        state = [t.sum().item() for t in self._random_states()]
        if call.mode == "grad" and call.backward:
            outcome.stage = "backward"
            with contextlib.nullcontext() if noise is None else noise.perturbing():
                result = (result, _backward(call, result, [*args, *self._parameters()], noise))
        outcome.stage = ""
        outcome.records |= self._records(prefix, args, result)
        outcome.records[f"{prefix}random"] = Record(f"{prefix}random", None, {"state": state})

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """The next forward's random numbers are kept, or are those that were kept of the same forward before."""
        self.forwards += 1
        draws = self.side.draws
        if draws is None:
            yield
        elif self.side.wide:
            with ReplayDraws(draws.get(self.forwards, ())):
                yield
        else:
            with RecordDraws() as recorded:
                yield
            draws[self.forwards] = recorded.drawn

    def _random_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if self.side.device == "cuda" else [])]

    def _threaded(self, call: Call, outcome: Outcome) -> None:
        """The same call from several threads at once, each with arguments of its own; one after another in eager."""
        outcome.stage = "forward"
        parts = [Outcome() for _ in range(call.threads)]
        errors: list[Exception] = []

        def one(k: int) -> None:
            try:
                self._call(call, None, parts[k], f"thread {k} ")
            except Exception as error:
                errors.append(error)

        if self.side.ours:
            threads = [threading.Thread(target=one, args=(k,)) for k in range(call.threads)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        else:
            for k in range(call.threads):
                one(k)
        if errors:
            raise _Passed(errors[0])
        for part in parts:
            outcome.records |= {p: r for p, r in part.records.items() if not p.endswith("random")}

    def _parameters(self) -> list[torch.Tensor]:
        return list(self.model.parameters()) if isinstance(self.model, torch.nn.Module) else []

    def _records(self, prefix: str, args: list[Any], result: Any) -> dict[str, Record]:
        owners: dict[int, str] = {}
        found: dict[str, Record] = {}

        def keep(path: str, value: Any) -> None:
            found[prefix + path] = _record(prefix + path, value, owners)

        tensors = [(f"argument {k}", a) for k, a in enumerate(args)]
        state = self.model.state_dict(keep_vars=True) if isinstance(self.model, torch.nn.Module) else {}
        for name, t in [*tensors, *state.items()]:
            if isinstance(t, torch.Tensor):
                _own(owners, t, name)
        leaves, spec = pytree.tree_flatten(result)
        found[f"{prefix}structure"] = Record("structure", None, {"spec": str(spec)})
        for k, leaf in enumerate(leaves):
            keep(f"result {k}", leaf)
            if isinstance(leaf, torch.Tensor):
                _own(owners, leaf, f"result {k}")
        for name, t in tensors:
            if isinstance(t, torch.Tensor):
                keep(name, t.detach())
                keep(f"gradient of {name}", t.grad if t.is_leaf else None)
        for name, t in state.items():
            keep(f"state {name}", t.detach())
            keep(f"gradient of {name}", t.grad)
        found[f"{prefix}gradients"] = Record("gradients", None, {"overlap": _overlaps([*tensors, *state.items()])})
        return found


def _overlaps(tensors: Sequence[tuple[str, Any]]) -> list[str]:
    """Leaves whose gradients have elements in common: the next one is added to both."""
    elements: dict[int, str] = {}
    found = []
    for name, t in tensors:
        if not isinstance(t, torch.Tensor) or not t.is_leaf or t.grad is None or t.grad._is_zerotensor():
            continue
        if any(t is other for _, other in tensors[: [n for n, _ in tensors].index(name)]):
            continue
        own = _addresses(t.grad)
        found += sorted({f"{elements[a]} and {name}" for a in own if a in elements})
        elements |= dict.fromkeys(own, name)
    return found


def _addresses(t: torch.Tensor) -> list[int]:
    places = torch.tensor([t.storage_offset()])
    for size, stride in zip(t.shape, t.stride(), strict=True):
        places = (places[:, None] + torch.arange(size) * stride).reshape(-1)
    start = t.untyped_storage().data_ptr()
    return [start + t.element_size() * place for place in places.tolist()]


def _torch_state() -> dict[str, Any]:
    """What a call may change while it runs, and must leave as it was, whatever became of it."""
    return {
        "gradients enabled": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "level of forward AD": torch.autograd.forward_ad._current_level,
        "function transforms": torch._C._functorch.peek_interpreter_stack() is not None,
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "autocast": [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "type of numbers": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "being captured": torch.cuda.is_available() and torch.cuda.is_current_stream_capturing(),
    }


class _Passed(Exception):
    def __init__(self, error: Exception) -> None:
        self.error = error


def _own(owners: dict[int, str], t: torch.Tensor, name: str) -> None:
    with contextlib.suppress(RuntimeError, NotImplementedError):
        if t.numel():
            owners.setdefault(t.untyped_storage().data_ptr(), name)


def _record(path: str, value: Any, owners: dict[int, str]) -> Record:
    if not isinstance(value, torch.Tensor):
        return Record(path, None, {"type": type(value).__name__, "value": repr(value)})
    if value._is_zerotensor():  # in no memory
        value = torch.zeros(value.shape, dtype=value.dtype)
    pairs = zip(value.shape, value.stride(), strict=True)
    facts = {
        "type": type(value).__name__,
        "dtype": str(value.dtype),
        "shape": tuple(value.shape),
        "requires_grad": value.requires_grad,
        "strides": tuple(s for d, s in pairs if d > 1) if value.numel() else (),
        "shares": owners.get(value.untyped_storage().data_ptr()) if value.numel() else None,
    }
    with torch.no_grad():
        kept = value.detach().resolve_neg().clone(memory_format=torch.contiguous_format).cpu()
    return Record(path, kept, facts)


@contextlib.contextmanager
def _mode(name: str) -> Iterator[None]:
    ways: dict[str, Callable[[], Any]] = {
        "grad": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
    }
    with ways[name]():
        yield


def _backward(call: Call, result: Any, leaves: Sequence[Any], noise: Noise | None) -> list[Any]:
    """Gradients into `.grad`; with a double backward, those of the gradients, which are given back."""
    roots = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not roots:
        return []
    seeds = [_cotangent(t, k, noise) for k, t in enumerate(roots)]
    if call.backward == "part":
        torch.autograd.backward(roots[::2], seeds[::2])
        return []
    if call.backward == "turns":
        for root, seed in zip(roots, seeds, strict=True):
            torch.autograd.backward(root, seed)
        return []
    if call.backward != "double":
        torch.autograd.backward(roots, seeds, retain_graph=call.backward == "retain")
        if call.backward == "retain":
            torch.autograd.backward(roots, seeds)
        return []
    wanted = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf]
    wanted = [t for k, t in enumerate(wanted) if not any(t is u for u in wanted[:k])]
    first = torch.autograd.grad(roots, wanted, seeds, create_graph=True, allow_unused=True)
    again = [g for g in first if g is not None and g.requires_grad]
    if again:
        torch.autograd.backward(again, [_cotangent(g, k + 7, noise) for k, g in enumerate(again)])
    return [g if g is None else g.detach() for g in first]


def _cotangent(t: torch.Tensor, k: int, noise: Noise | None) -> torch.Tensor:
    n = t.numel()
    ramp = torch.tensor([((i * 7 + k * 3) % 11 - 5) / 4 for i in range(n)], dtype=t.dtype).reshape(t.shape)
    if noise is not None:
        ramp = ramp * noise.factor(ramp)
    return ramp.to(t.device)
