"""The referee: compares a graph's results with eager's, using a float64 run and eager's own error.

Most results agree with eager's to a few units in the last place, which is cheap to check. Otherwise the graph is run in
float64: our distance from that run may be at most 1.5 times eager's (root mean square; 3 times for the worst element:
`strictness.py`). A larger distance counts as wrong only after two other explanations are ruled out: eager that differs
between its own runs, and graphs in which rounding alone moves the result as far (the float64 run is repeated with
random rounding of every operation).

Results without any rounding operation are not judged in float64: they must equal eager's (`exactness.py`).

`tools/verify/judge.py` makes the same decision offline: tensor by tensor, with all runs made beforehand and three times
eager's error allowed. Here a call waits, and the verdict is final for the compiled program. So runs are made only when
needed, the limit is stricter, and an apparent error is checked for other explanations. `InFloat64` is for captured
graphs, all of whose tensors are arguments; `float64.float64_everywhere` is for models, which may write to their own
tensors and read them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from burnish.trust.distance import FLOOR, Distance, Nearness, distance, unequal
from burnish.trust.exactness import BITWISE, ROUNDED
from burnish.trust.inputs import CannotCopy, free_bytes
from burnish.trust.rounding import RandomRounding

_ROUNDED_RUNS = 2
ROOM = 10.0  # allowed floors in a comparison with eager only
_HALF = (torch.float16, torch.bfloat16)
_WELL_KNOWN = 0.05  # rounding moves the result by less: a common factor of half a percent is an error
_SMALL = 64 << 20  # bytes below which free memory is not checked
_CHUNK = 32 << 20  # bytes of a weight in float64
NARROW = (torch.float16, torch.bfloat16, torch.float32)
_CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
_LOOKUPS = (torch.nn.functional.embedding, torch.embedding, torch.index_select, torch.Tensor.index_select)


@dataclass(frozen=True)
class Opinion:
    """`wrong` says what is wrong with the candidate's results; empty if nothing is."""

    wrong: str
    error: float  # the candidate's, against float64 if asked, else against eager; relative
    eager_error: float | None = None  # None: the referee was not needed, or not conclusive
    doubt: str = ""  # rounding could explain a single case, but not repeated ones

    @property
    def is_right(self) -> bool:
        return not self.wrong


Results = list[torch.Tensor]
Exact = Callable[["InFloat64"], Results]


def judge(
    ours: Results,
    eagers: Results,
    *,
    exact: Exact | None,
    eager_again: Callable[[], Results],
    coarsest: torch.dtype = torch.float32,
    room: float = 1.0,
    exactness: Sequence[int] = (),
    returned: int = 0,
) -> Opinion:
    """Compare results, then gradients, then changed inputs: lists in the same order.

    `exact` runs the graph under the mode it is given, on float64 inputs; None if float64 would draw other random
    numbers, or change the meaning. `eager_again` repeats eager's run. `coarsest` is the least exact type in the graph.
    `room` is the number of floors that need no referee. `exactness` is that of the first results, as far as known:
    exact results must equal eager's. The first `returned` results, which the caller gets, must have eager's strides, so
    that `view` succeeds or raises as in eager."""
    problem = _unlike(ours, eagers) or _laid_out_otherwise(ours[:returned], eagers[:returned])
    problem = problem or _inexact(ours, eagers, exactness, eager_again)
    if problem:
        return Opinion(problem, math.inf)
    near = _distances(ours, eagers)
    if all(d.within(room) for d in near):
        return Opinion("", _largest(near))
    truth = _attempt(exact)
    if truth is None or _unlike(truth, eagers, types=False):
        return _without_referee(near, eagers, eager_again, coarsest)
    own, theirs = _distances(ours, truth, eagers), _distances(eagers, truth, eagers)
    error, eager_error = _largest(own), _largest(theirs)
    suspects = [k for k in range(len(near)) if not near[k].within(room) and not own[k].is_as_good_as(theirs[k])]
    if suspects:
        again = _distances(eager_again(), eagers)
        suspects = [k for k in suspects if not near[k].is_as_good_as(again[k])]
    first, doubt = list(suspects), ""
    for seed in range(_ROUNDED_RUNS):
        rounded = _attempt(exact, RandomRounding(_unit_roundoff(coarsest), seed)) if suspects else None
        if rounded is None:
            break
        spread = _distances(rounded, truth, eagers)
        suspects = [k for k in suspects if not own[k].is_as_good_as(spread[k].at_least(theirs[k]))]
        for k in first:
            if coarsest in _HALF and spread[k].rms < _WELL_KNOWN:
                factor = _common_factor(ours[k], truth[k])
                doubt = doubt or (f"result {k} is off by {factor:.2g} as a whole" if factor > FLOOR[coarsest] else "")
    wrong = f"result {suspects[0]} {own[suspects[0]].beside(theirs[suspects[0]])}" if suspects else ""
    return Opinion(wrong, error, eager_error, doubt)


def _inexact(ours: Results, eagers: Results, exactness: Sequence[int], eager_again: Callable[[], Results]) -> str:
    """The errors in exact results, which have one right value. (Not if eager has several: its order of writes may be
    unspecified, or its memory uninitialised.)"""
    differing = {
        k: count
        for k, (a, b, level) in enumerate(zip(ours, eagers, exactness, strict=False))
        if level != ROUNDED and (count := unequal(a, b, level == BITWISE))
    }
    again = eager_again() if differing else []
    for k, count in differing.items():
        if not unequal(again[k], eagers[k], exactness[k] == BITWISE):
            return f"result {k} differs in {count} elements from eager's, and nothing that it is made by rounds"
    return ""


def first_look(near: Nearness) -> Opinion | None:
    """The verdict of `judge` without a referee, for results that never exist at the same time; None if it would need
    them again."""
    found = near.distances()
    is_right = near.is_complete and all(
        d.within(ROOM) or d.is_as_good_as(spread) for d, spread in zip(found, near.spreads(), strict=True)
    )
    return Opinion("", _largest(found)) if is_right else None


def _without_referee(
    near: list[Distance], eagers: Results, eager_again: Callable[[], Results], coarsest: torch.dtype
) -> Opinion:
    """Compare with eager only, with a larger tolerance and the effect of rounding on eager."""
    suspects = [k for k, d in enumerate(near) if not d.within(ROOM)]
    for attempt in range(1 + _ROUNDED_RUNS):
        if not suspects:
            break
        with RandomRounding(_unit_roundoff(coarsest), attempt) if attempt else nullcontext():
            again = _distances(eager_again(), eagers)
        suspects = [k for k in suspects if not near[k].is_as_good_as(again[k])]
    wrong = f"result {suspects[0]} {near[suspects[0]].beside(None)}" if suspects else ""
    return Opinion(wrong, _largest(near))


def _common_factor(candidate: torch.Tensor, truth: torch.Tensor) -> float:
    """The fraction by which all values together are too large or too small. Rounding errors have both signs."""
    if not truth.is_floating_point() or truth.numel() == 0:
        return 0.0
    exact, apart = truth.double(), candidate.double() - truth.double()
    size = float(exact.square().sum())
    factor = abs(float((apart * exact).sum())) / size if size > 0.0 else 0.0
    return factor if math.isfinite(factor) else 0.0


def _distances(candidates: Results, truths: Results, likes: Results | None = None) -> list[Distance]:
    return [distance(a, b, like) for a, b, like in zip(candidates, truths, likes or truths, strict=True)]


def _unlike(ours: Results, eagers: Results, types: bool = True) -> str:
    if len(ours) != len(eagers):
        return f"{len(ours)} tensors, eager has {len(eagers)}"
    for k, (a, b) in enumerate(zip(ours, eagers, strict=True)):
        if a.shape != b.shape or (types and a.dtype != b.dtype):
            return f"result {k} is {a.dtype} {list(a.shape)}, eager's is {b.dtype} {list(b.shape)}"
    return ""


def _laid_out_otherwise(ours: Results, eagers: Results) -> str:
    for k, (a, b) in enumerate(zip(ours, eagers, strict=True)):
        if _is_plain(a) and _is_plain(b) and a.stride() != b.stride() and _steps(a) != _steps(b):
            return f"result {k} has strides {a.stride()}, eager's has {b.stride()}"
    return ""


def _is_plain(x: torch.Tensor) -> bool:
    return x.layout is torch.strided and not x.is_nested


def _steps(x: torch.Tensor) -> list[int]:
    """The strides of dimensions with more than one element."""
    return [step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1] if x.numel() else []


def _largest(distances: Sequence[Distance]) -> float:
    return max((math.inf if d.lost else d.rms for d in distances), default=0.0)


def rounding_beside(coarsest: torch.dtype) -> RandomRounding | None:
    """The context of a second run of eager with random rounding: results may have a finer type than the one they were
    computed in."""
    return RandomRounding(_unit_roundoff(coarsest), 1) if coarsest in _HALF else None


def _unit_roundoff(coarsest: torch.dtype) -> float:
    """The unit roundoff of one operation. Sums of half types are computed in float32; a float32 sum is rounded many
    times."""
    unit = torch.finfo(coarsest).eps / 2
    return unit if coarsest in _HALF else 64 * unit


# -- the same graph in float64 ------------------------------------------------------------------------------------


def _attempt(exact: Exact | None, noise: RandomRounding | None = None) -> Results | None:
    """None if the graph does not run in float64: an operation has no such kernel, or requires a type."""
    if exact is None:
        return None
    for at_once in (False, True):
        try:
            with noise or nullcontext():
                return exact(InFloat64(at_once))
        except Exception:  # with some arguments in their own type, or in general
            continue
    return None


def _all_widened(args: Sequence[Any]) -> tuple[Any, ...]:
    """Raises if there is not enough memory: running out could kill the process on a CPU, and other work on a GPU."""
    narrow = [x for x in args if isinstance(x, torch.Tensor) and x.dtype in NARROW]
    for device in {x.device for x in narrow}:
        size = sum(x.numel() for x in narrow if x.device == device) * torch.float64.itemsize
        if size > _SMALL and 2 * size > free_bytes(device):
            raise CannotCopy(f"{size >> 20} MiB of arguments in float64 leave no room")
    return tuple(map(_widened, args))


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in NARROW:
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


class InFloat64(TorchFunctionMode):
    """Ignores casts in a graph (norms to float32, logits to half): a float64 run that followed them would lose its
    precision.

    An operation's operands are widened only while it runs, so a model's weights never all exist in float64. With
    `at_once` they do, for operations that no dispatch mode sees and that need all arguments in one type."""

    def __init__(self, at_once: bool = False) -> None:
        super().__init__()
        self._at_once = at_once

    def arguments(self, args: Sequence[Any], written: Collection[int] | None) -> tuple[Any, ...]:
        """The arguments of a run: those that it writes (by position) are in float64, because they are compared
        afterwards; all, if None."""
        if self._at_once or written is None:
            return _all_widened(args)
        first = iter(_all_widened([args[i] for i in sorted(written)]))
        return tuple(next(first) if i in written else x for i, x in enumerate(args))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _CASTS:
            return torch.Tensor.double(args[0])
        if func in _LOOKUPS:  # the few that are taken, not the table
            result = func(*args, **(kwargs or {}))
        elif func is torch.nn.functional.linear and not torch.is_grad_enabled() and not kwargs:
            result = _linear(*args)
        else:
            result = func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})
        if isinstance(result, (tuple, list)) and type(result) in (tuple, list):
            return type(result)(map(_wide, result))
        return _wide(result)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Some rows of the weight at a time: in float64 a vocabulary's weight takes several times the memory of a step."""
    rows = max(1, _CHUNK // (weight.shape[-1] * torch.float64.itemsize))
    if weight.dim() != 2 or len(weight) <= rows:
        return torch.nn.functional.linear(_wide(x), _wide(weight), _wide(bias))
    parts = [torch.nn.functional.linear(_wide(x), _wide(some)) for some in weight.split(rows)]
    result = torch.cat(parts, -1)
    return result if bias is None else result + _wide(bias)


def _wide(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value in NARROW else value
    if isinstance(value, torch.Tensor) and value.dtype in NARROW:
        return value.double()  # a weight, a constant of the graph's, or made from nothing in the default type
    if type(value) in (tuple, list):
        return type(value)(map(_wide, value))
    return value
