"""Whether a compiled case did what eager does. Bit for bit where every operation is exact; otherwise within what eager
itself makes of the case when each rounding is perturbed by one unit in the last place, and in float64. What rounding
can decide (a comparison of nearly equal numbers, an overflow that a wider intermediate avoids) is no find."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from burnish.assumptions import meets_itself
from tests.fuzz.case import Call, Case
from tests.fuzz.execute import Draws, Outcome, Record, Side, run_side

SPREAD = 4.0  # how far beyond the perturbed runs a result may lie, in units of their own spread
UNITS = 8  # units in the last place that are always allowed

_SPLIT_AT_NAN = r"elu\(|hardswish|hardtanh|relu6|softshrink|hardshrink"
_MISTAKE = r"out of range|out of (\w+ )?bounds|ZeroDivision"
_MAY_BE_MISTAKEN = r"index|gather|scatter|embedding|\{0\}\[.*\{1\}|//|%|div|fmod|remainder"
_BEYOND_32_BITS = frozenset({"special", "mixed", "huge", "wide"})
_WITH_NAN = frozenset({"special", "mixed", "nan"})


@dataclass(frozen=True)
class Find:
    kind: str
    call: int
    where: str
    detail: str
    trace: str = ""

    def __str__(self) -> str:
        return f"{self.kind} in call {self.call}, {self.where}: {self.detail}"

    @property
    def signature(self) -> str:
        """What finds of one cause are likely to share."""
        where = self.where.split("thread ")[-1].lstrip("0123456789 ")
        return f"{self.kind} / {where.split(' ')[0]} / {'first call' if self.call == 0 else 'later call'}"


def is_minor(find: Find) -> bool:
    """What few would mind: results that share memory with one another in eager and not here, or the other way round;
    a backward that works where eager's raises; and whatever works where eager has no kernel for the types or sizes."""
    if find.kind == "no exception":
        no_kernel = (
            "eager raises NotImplementedError",
            "eager raises RuntimeError: mixed dtype",
            "eager raises RuntimeError: expected scalar type",
            "eager raises RuntimeError: index_copy_(): self and source expected to have the same dtype",
            "eager raises AcceleratorError: CUDA error: invalid argument",  # a launch of no blocks
        )
        return find.where.endswith("backward") or find.detail.startswith(no_kernel)
    return find.kind == "shares" and "argument" not in find.detail


def judged(case: Case, ours: Sequence[Outcome], folder: Path, device: str = "cpu") -> list[Find]:
    """What is wrong with how our calls came out."""
    cloud = Cloud(case, case.calls, folder, device)
    finds = compared(case, cloud, ours)
    if finds and cloud.grow(13):  # a second, closer look
        finds = compared(case, cloud, ours)
    return [f for f in finds if not _is_one_of_eagers(case, f, device)]


def _is_one_of_eagers(case: Case, find: Find, device: str) -> bool:
    """Whether eager itself has no one answer, or docs/limits.md says that ours is another."""
    return any(_excuses(case, find, device))


def _excuses(case: Case, find: Find, device: str) -> Iterator[bool]:
    call, kind = case.calls[find.call], find.kind
    values, dtypes = {s.kind for s in call.storages}, {s.dtype for s in call.storages}
    on_gpu, on_arm = device == "cuda", device == "cpu" and platform.machine() == "aarch64"

    def uses(pattern: str) -> bool:
        return any(re.search(pattern, step.template) for step in case.program.steps)

    # Eager's vectors and its last elements, which are computed one by one, differ in some gradients at NaN, ...
    is_gradient = find.where.split("thread ")[-1].lstrip("0123456789 ").startswith("gradient")
    has_nan = kind == "not finite" or any(v in _WITH_NAN or "NaN" in v for v in values)
    yield is_gradient and has_nan and uses(_SPLIT_AT_NAN)
    # ... in which of two zeros of unlike sign is the larger, ...
    tells_zeros = uses("signbit") if kind == "integer value" else uses("copysign") or _is_of_a_zero(find)
    yield tells_zeros and uses(r"max|min|sort|topk|median|kthvalue|clamp")
    # ... in the mean beside a variance, of infinities, ...
    yield kind in ("not finite", "integer value") and has_nan and uses("(var|std)_mean")
    # ... in powers of subnormal numbers, which are none to its vectors on ARM, ...
    yield on_arm and "eager's 0.0" in find.detail and bool(values & _WITH_NAN) and uses(r"\*\*|pow")
    # ... in what is left of a division by a subnormal number, ...
    yield kind == "not finite" and "tiny" in values and uses(r"remainder|fmod|%")
    # ... and, on ARM, in the integers that they make of doubles which fit no 32 bits.
    is_beyond = bool(values & _BEYOND_32_BITS) and bool(dtypes & {"float64", "int32", "int64"})
    yield on_arm and is_beyond and uses(r"\.to\(torch\.int(8|16|32)\)")
    # Eager's derivatives in inference mode are zero.
    yield call.mode == "inference" and kind in ("value", "not finite", "integer value") and uses(r"torch\.func\.")
    # The weights of keys that are all NaN are zero in eager if they are few.
    yield kind == "not finite" and "eager's 0.0 " in find.detail and uses("scaled_dot_product")
    # What is masked out is not read, where eager multiplies it by zero.
    yield kind == "not finite" and "eager's nan" in find.detail and uses("is_causal=True")
    # A bad index whose element is cut off is not noticed, and some strides are torch's: docs/limits.md.
    is_of_an_index = kind == "no exception" and re.search("IndexError|out of .*bounds|out of range", find.detail)
    yield bool(is_of_an_index) and uses(r"F\.pad\(.*-\d|tri[ul]|where|argm")
    yield bool(is_of_an_index) and any(0 in (*a.shape, *a.stride) for a in call.args)
    yield (
        kind == "no exception" and "ZeroDivision" in find.detail and uses(r"\[|select|gather|split|chunk|unbind|where")
    )
    # Of several mistakes in one call that cannot be repeated in eager, any one is told.
    both = kind == "exception type" and len(re.findall(_MISTAKE, find.detail)) == 2
    places = [step for step in case.program.steps if re.search(_MAY_BE_MISTAKEN, step.template)]
    yield both and len(places) > 1 and any(step.writes for step in case.program.steps)
    sizes = [[a.shape for a in c.args] for c in case.calls]
    yield kind == "strides" and (case.compile.get("verify") == "off" or sizes[find.call] != sizes[0])
    is_lazy = any("neg" in a.flags for a in call.args)
    yield call.mode == "inference" and is_lazy and uses("training=False|atleast_")
    yield is_lazy and uses("max_pool1d")
    yield kind == "not finite" and uses("interpolate")
    # Forward AD has one level for all threads, and that which traces in the background is not done.
    yield kind == "left behind" and "forward AD" in find.detail and bool(case.compile.get("background"))
    # A GPU's atomic additions know no subnormal numbers; its sums begin from zero or from the first element, by layout;
    # its means go by way of an infinity less itself; and its writes into memory that elements share have no order.
    yield on_gpu and "tiny" in values and uses(r"accumulate|index_add|scatter_add|scatter_reduce")
    yield on_gpu and uses("cumsum") and (kind == "not finite" or (kind == "integer value" and uses("signbit")))
    yield on_gpu and kind == "not finite" and "running_" in find.where and bool(values & _WITH_NAN)
    is_of_values = kind.startswith(("value", "integer value"))
    is_shared = any(meets_itself(a.shape, a.stride) for a in call.args)
    yield on_gpu and is_of_values and uses(r"slice_scatter|_\(") and is_shared
    # Products of many numbers, and what they pass by, depend on their order; a mean of squares goes by another way.
    yield on_gpu and uses("prod") and (kind == "not finite" or bool(values & {"tiny", "special"}))
    yield on_gpu and kind == "not finite" and "RMSNorm" in case.texts and bool(values & _WITH_NAN)
    # What is left of a logarithm of a sum near one is the sum's rounding, which no wider type shows for doubles.
    yield kind == "value" and uses("log_softmax|logsumexp|logaddexp|cross_entropy") and _is_off_by_units(find)
    # A variance beyond the largest number is infinite, or NaN where two of them are put together.
    yield on_gpu and kind == "not finite" and "Norm" in case.texts and bool(values & _BEYOND_32_BITS)
    # Whether a view that is made under no_grad says that it requires gradients: docs/limits.md.
    in_no_grad = any("no_grad" in step.scope for step in case.program.steps)
    yield in_no_grad and (kind in ("requires_grad", "spec") or "does not require grad" in find.detail)


def _is_of_a_zero(find: Find) -> bool:
    """Whether an infinity has the other sign, as that of a zero's inverse."""
    return bool(re.match(r"-inf at [^']*'s inf |inf at [^']*'s -inf ", find.detail))


def _is_off_by_units(find: Find) -> bool:
    """Whether a result differs from eager's by no more than the rounding of a double near one."""
    numbers = re.match(r"(\S+) at [^']*'s (\S+) ", find.detail)
    if numbers is None:
        return False
    return abs(float(numbers[1]) - float(numbers[2])) <= UNITS * torch.finfo(torch.float64).eps


class Cloud:
    """Eager's outcomes of the calls: plain, and perturbed as often as is wanted."""

    def __init__(self, case: Case, calls: Sequence[Call], folder: Path, device: str) -> None:
        self.case, self.calls, self.folder, self.device = case, calls, folder, device
        self.eager = self._run(Side(device=device))
        self.others: list[list[Outcome]] = []
        self.again: list[list[Outcome]] = []  # eager once more, and with its arguments laid out differently
        self.drawn = 0

    def _run(self, side: Side) -> list[Outcome]:
        return run_side(self.case, self.calls, side, self.folder)[0]

    def grow(self, draws: int = 3) -> bool:
        for _ in range(draws):
            self.drawn += 1
            self.others.append(self._run(Side(noise=self.drawn, device=self.device)))
        if self.drawn == draws:
            self.others.append(self._wide())
        if not self.again and draws > 3:
            self.again = [self._run(Side(spread=spread, device=self.device)) for spread in (False, True)]
        return True

    def _wide(self) -> list[Outcome]:
        draws: Draws | None = None
        if self.case.program.is_random:  # what another type draws from the same state is something else
            draws = {}
            self._run(Side(device=self.device, draws=draws))
        return self._run(Side(wide=True, device=self.device, draws=draws))

    def records(self, call: int, path: str, like: Record) -> list[torch.Tensor]:
        """The perturbed runs' values of a tensor; those that failed, or made something else, are left out."""
        found = []
        for outcomes in self.others:
            record = outcomes[call].records.get(path)
            tensor = None if record is None else record.tensor
            if tensor is not None and like.tensor is not None and tensor.shape == like.tensor.shape:
                found.append(tensor)
        return found

    def near_limit(self, call: int) -> bool:
        """Whether an infinity, or what comes of one, may be there in one order of summing and not in another."""
        return any(outcomes[call].near_limit for outcomes in self.others)

    def repeated(self, call: int, path: str) -> list[torch.Tensor]:
        records = [outcomes[call].records.get(path) for outcomes in self.again]
        return [r.tensor for r in records if r is not None and r.tensor is not None]


def compared(case: Case, cloud: Cloud, ours: Sequence[Outcome]) -> list[Find]:
    for k, (want, got) in enumerate(zip(cloud.eager, ours, strict=True)):
        finds = _call_compared(case, cloud, k, want, got)
        if finds:
            return finds  # what comes after one is likely to come of it
        if want.error and (want.stage != "forward" or case.program.is_module):
            break  # what was written before it was raised is not said (docs/limits.md)
    return []


def _call_compared(case: Case, cloud: Cloud, k: int, want: Outcome, got: Outcome) -> list[Find]:
    if left := [f"{what} {got.left[what]}, eager's {was}" for what, was in want.left.items() if got.left[what] != was]:
        return [Find("left behind", k, "state", "; ".join(left))]
    if want.error or got.error:
        return _errors_compared(k, want, got, cloud)
    finds = []
    for path, record in want.records.items():
        other = got.records.get(path)
        if other is None:
            finds.append(Find("structure", k, path, "missing"))
        elif problem := _record_compared(case, cloud, k, record, other):
            finds.append(Find(problem[0], k, path, problem[1]))
    finds += [Find("structure", k, path, "eager has none") for path in got.records if path not in want.records]
    return finds


def _errors_compared(k: int, want: Outcome, got: Outcome, cloud: Cloud) -> list[Find]:
    if not got.error:
        return [Find("no exception", k, want.stage, f"eager raises {want.error}: {_short(want.message)}")]
    if not want.error:
        return [Find("exception", k, got.stage, f"{got.error}: {_short(got.message)}", got.trace)]
    if want.error != got.error:
        told = f"{got.error}: {_short(got.message)}; eager raises {want.error}: {_short(want.message)}"
        return [Find("exception type", k, want.stage, told)]
    return []


def _short(text: str) -> str:
    return " ".join(text.split())[:220]


def _record_compared(case: Case, cloud: Cloud, k: int, want: Record, got: Record) -> tuple[str, str] | None:
    for fact, value in want.facts.items():
        if got.facts.get(fact) != value:
            return fact, f"{got.facts.get(fact)}, eager's {value}"
    if want.tensor is None or got.tensor is None:
        return None
    if _equal(want.tensor, got.tensor).all():
        return None
    exact = _is_exact(case, want.path)
    if not exact and not cloud.others:
        cloud.grow()
    return _values_compared(cloud, k, want, got.tensor, exact)


def _is_exact(case: Case, path: str) -> bool:
    words = path.split()
    exact = case.program.exact_values()
    if "gradient" in words or "state" in words:
        return False
    n = int(words[-1])
    if "argument" in words:
        return bool(exact) and not case.program.is_module
    return n < len(case.program.results) and case.program.results[n] in exact


def _equal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.is_floating_point() or a.is_complex():
        return (a == b) | (a.isnan() & b.isnan())
    return a == b


def _values_compared(cloud: Cloud, k: int, want: Record, got: torch.Tensor, exact: bool) -> tuple[str, str] | None:
    assert want.tensor is not None
    theirs = want.tensor
    wrong = ~_equal(theirs, got)
    repeated = [again for again in cloud.repeated(k, want.path) if again.shape == theirs.shape]
    if exact or not theirs.is_floating_point():
        for again in repeated:
            wrong &= _equal(again, theirs)  # where eager itself is not sure, nothing is right or wrong
    kind = "value"
    if not exact:
        others = [*cloud.records(k, want.path, want), *repeated]
        if not theirs.is_floating_point():
            wrong &= not cloud.near_limit(k)  # it may say where infinities are
            for other in others:
                wrong &= _equal(other.to(theirs.dtype), theirs)
        else:
            wrong &= _beyond(theirs, got, others, _unit_of(cloud.case, theirs.dtype))
            if cloud.near_limit(k):  # and a gradient is another one where a comparison met an infinity
                wrong &= theirs.isfinite() & got.isfinite() & ("gradient" not in want.path)
    if not wrong.any():
        return None
    if theirs.is_floating_point() and not (theirs.isfinite() & got.isfinite())[wrong].all():
        kind = "not finite"
    elif not theirs.is_floating_point():
        kind = "integer value"
    at = wrong.nonzero()[0].tolist() if wrong.dim() else []
    shown = f"{got[tuple(at)].item()!r} at {at}, eager's {theirs[tuple(at)].item()!r}"
    return kind, f"{shown} ({int(wrong.sum())} of {wrong.numel()} elements{', exact' if exact else ''})"


def _unit_of(case: Case, dtype: torch.dtype) -> float:
    """What a result may be off by: a float64 may be made of a float32, of which no perturbed run need show it."""
    all_double = not case.program.is_module and all(s.dtype == "float64" for call in case.calls for s in call.storages)
    return torch.finfo(dtype if all_double or dtype is not torch.float64 else torch.float32).eps


def _beyond(
    theirs: torch.Tensor, got: torch.Tensor, others: Sequence[torch.Tensor], unit: float | None = None
) -> torch.Tensor:
    """The elements that lie where no rounding of eager's computation leads."""
    info = torch.finfo(theirs.dtype)
    everyone = torch.stack([theirs.double(), *(o.double() for o in others)])
    agree_on_kind = (everyone.isfinite() == everyone[0].isfinite()).all(0)
    same_wild = _equal(everyone, everyone[:1].expand_as(everyone)).all(0)
    ours = got.double()
    low, high = everyone.amin(0), everyone.amax(0)
    spread = high - low
    room = SPREAD * spread + UNITS * (unit or info.eps) * everyone.abs().amax(0) + 4 * info.smallest_normal
    outside = (ours < low - room) | (ours > high + room) | ~ours.isfinite()
    near_overflow = everyone.abs().amax(0) > info.max / 4
    finite = everyone[0].isfinite()
    are_places = (everyone == everyone.round()).all(0) & (spread >= 1) & (ours == ours.round())
    outside &= ~are_places  # of the largest, as floats: where rounding chooses among them, it may choose any
    return torch.where(finite, outside & agree_on_kind & ~(near_overflow & ~ours.isfinite()), same_wild & agree_on_kind)
