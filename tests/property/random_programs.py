"""Random small functions over torch, as Python text: what fails prints as a function that can be pasted and run.

A value is exact while every float involved is a small whole number or a multiple of a small power of two: then any
order of summation gives the same bits, so comparisons, casts to integers and positions of maxima are decided the same
way by every correct compiler. Functions that round (exp, division) make inexact values, which only smooth functions
read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
import torch.nn.functional as F

from tests.programs import copies

LARGEST = 6000  # elements of any one value
_FLOATS = (torch.float32, torch.float64)
_SCOPE = {"torch": torch, "F": F, "inf": math.inf, "nan": math.nan}


class Refused(Exception):
    """This step does not fit the values there are: another is drawn."""


@dataclass
class Value:
    tensor: torch.Tensor
    exact: bool

    @property
    def largest(self) -> float:
        finite = self.tensor[self.tensor.isfinite()] if self.tensor.is_floating_point() else self.tensor
        return float(finite.abs().max()) if finite.numel() and finite.dtype is not torch.bool else 1.0


@dataclass
class Program:
    inputs: list[torch.Tensor]
    lines: list[str]
    results: list[str]
    exact: list[bool]

    @property
    def epsilon(self) -> float:
        """What rounding may cost where eager happens to make no error at all."""
        text = str(self)
        return 5e-2 if "float16" in text else 2e-5 if "float32" in text else 1e-11

    @property
    def text(self) -> str:
        names = "".join(f"in{k}, " for k in range(len(self.inputs)))
        body = [*self.lines, f"return ({''.join(r + ', ' for r in self.results)})"]
        return "\n".join([f"def f({names.rstrip(', ')}):", *("    " + line for line in body)])

    def function(self, double: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The program; with `double`, the referee's, which computes everything in float64."""
        scope: dict[str, Any] = dict(_SCOPE)
        exec(re.sub(r"torch\.(b?float16|float32)", "torch.float64", self.text) if double else self.text, scope)
        made: Callable[..., tuple[torch.Tensor, ...]] = scope["f"]
        return made

    def __str__(self) -> str:
        made = [
            f"in{k} = {t.dtype} {tuple(t.shape)} strides {t.stride()} offset {t.storage_offset()}"
            for k, t in enumerate(self.inputs)
        ]
        return "\n".join([self.text, *made])


def random_program(rng: Random, mutating: bool = False) -> Program:
    """With `mutating`, one that mostly writes its inputs in place and reads them before and after."""
    return _Writer(rng, _MUTATING if mutating else _STEPS).program()


class _Writer:
    def __init__(self, rng: Random, steps: list[Callable[[_Writer], None]]) -> None:
        self.rng, self.steps = rng, steps
        self.lines: list[str] = []
        self.values: dict[str, Value] = {}
        self.dims = [rng.choice([1, 2, 3, 4, 5, 7]) for _ in range(3)]
        if rng.random() < 0.15:
            self.dims[0] = 0
        elif rng.random() < 0.25:
            self.dims[0] = rng.choice([33, 70, 130])
        self.float = torch.float32 if rng.random() < 0.75 else torch.float64
        self.special = rng.random() < 0.15
        self.inputs = [self._input() for _ in range(rng.randint(1, 3))]
        if steps is _MUTATING:  # some of one kind, so that they can be copied into one another
            self.inputs += [self._filled(self.inputs[0].shape, self.inputs[0].dtype) for _ in range(rng.randint(0, 2))]
        for k, t in enumerate(copies(self.inputs)):  # those here change where the program writes them
            self.values[f"in{k}"] = Value(t, True)

    # --- inputs -------------------------------------------------------------------------------------------------

    def _input(self) -> torch.Tensor:
        shape = [
            self.rng.choice([*self.dims, self.dims[0], 1]) for _ in range(self.rng.choice([0, 1, 2, 2, 2, 3, 3, 4]))
        ]
        if math.prod(shape) > 1500:
            shape = shape[:1]
        dtype = self.rng.choice([self.float] * 4 + [torch.int64, torch.bool])
        kind = self.rng.choice(["plain", "plain", "plain", "moved", "strided", "expanded", "offset"])
        if kind == "strided":
            wide = self._filled([d * 2 + 1 for d in shape], dtype)
            return wide[tuple(slice(1, 2 * d + 1, 2) for d in shape)]
        if kind == "offset":
            return self._filled([4 + math.prod(shape)], dtype)[3:-1].view(shape)
        if kind == "moved" and shape:
            order = self.rng.sample(range(len(shape)), len(shape))
            return self._filled([shape[d] for d in order], dtype).permute([order.index(d) for d in range(len(shape))])
        if kind == "expanded" and shape:
            d = self.rng.randrange(len(shape))
            return self._filled([1 if e == d else n for e, n in enumerate(shape)], dtype).expand(shape)
        return self._filled(shape, dtype)

    def _filled(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        made = torch.Generator().manual_seed(self.rng.randrange(2**31))
        numbers = torch.randint(-8, 9, shape, generator=made)
        if not dtype.is_floating_point:
            return numbers > 0 if dtype is torch.bool else numbers
        out = numbers.to(dtype) / 2
        if self.special and out.numel():
            flat = out.view(-1)
            for v in (math.nan, math.inf, -math.inf, -0.0):
                flat[self.rng.randrange(flat.numel())] = v
        return out

    # --- steps --------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        for _ in range(self.rng.choice([2, 3, 4, 6, 8, 12, 16])):
            self._step()
        made = [n for n in self.values if not n.startswith("in")] or list(self.values)
        results = [made[-1], *self.rng.sample(list(self.values), min(self.rng.randint(0, 3), len(self.values)))]
        return Program(self.inputs, self.lines, results, [self.values[n].exact for n in results])

    def _step(self) -> None:
        for _ in range(30):
            kind = self.rng.choice(self.steps)
            try:
                kind(self)
                return
            except Refused:
                continue

    def pick(self, wanted: Callable[[Value], bool]) -> str:
        found = [n for n, v in self.values.items() if wanted(v)]
        if not found:
            raise Refused
        return self.rng.choice(found[-4:] if self.rng.random() < 0.6 else found)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.values[name].tensor

    def make(self, text: str, exact: bool) -> str:
        """Append `name = text`, if eager accepts it and the result stays small enough to be exact."""
        try:
            result = eval(text, dict(_SCOPE), {n: v.tensor for n, v in self.values.items()})
        except (RuntimeError, IndexError, ValueError, TypeError):
            raise Refused from None
        value = Value(result, exact)
        if result.numel() > LARGEST or value.largest > (2**18 if exact else 1e4):
            raise Refused
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.values[name] = value
        return name

    def exact_of(self, *names: str) -> bool:
        return all(self.values[n].exact for n in names)

    def dim(self, name: str) -> int:
        rank = self[name].dim()
        if rank == 0:
            raise Refused
        return self.rng.randrange(-rank, rank)

    def number(self, name: str) -> str:
        return str(self.rng.choice([0, 1, 2, -1, 3] if not self[name].is_floating_point() else [0.5, 1.0, -2.0, 0.25]))


def is_float(v: Value) -> bool:
    return v.tensor.is_floating_point()


def is_int(v: Value) -> bool:
    return v.tensor.dtype is torch.int64


def is_bool(v: Value) -> bool:
    return v.tensor.dtype is torch.bool


def is_number(v: Value) -> bool:
    return not is_bool(v)


def any_value(v: Value) -> bool:
    return True


def has_rank(least: int) -> Callable[[Value], bool]:
    return lambda v: v.tensor.dim() >= least


# --- elementwise ------------------------------------------------------------------------------------------------


def exact_unary(w: _Writer) -> None:
    x = w.pick(is_number)
    forms = ["-{0}", "{0}.abs()", "{0}.relu()", "{0}.clamp(-2, 3)", "{0} * 2", "F.leaky_relu({0}, 0.5)", "{0}.clone()"]
    if w.exact_of(x):
        forms += ["{0}.sign()", "{0}.floor()", "{0} // 2", "{0} % 3", "{0}.round()", "{0} * {0}", "{0}.trunc()"]
    w.make(w.rng.choice(forms).format(x), w.exact_of(x))


def smooth_unary(w: _Writer) -> None:
    x = w.pick(is_float)
    forms = [
        "{0}.tanh()", "{0}.sigmoid()", "{0}.sin()", "{0}.cos()", "(-{0}.abs()).exp()", "{0}.abs().sqrt()", "{0}.erf()",
        "{0}.abs().log1p()", "F.gelu({0})", "F.silu({0})", "F.softplus({0})", "({0}.abs() + 1).rsqrt()", "{0} / 3",
        "1 / ({0}.abs() + 1)", "F.gelu({0}, approximate='tanh')", "F.elu({0})", "F.hardswish({0})", "{0}.atan()",
    ]  # fmt: skip
    w.make(w.rng.choice(forms).format(x), False)


def binary(w: _Writer) -> None:
    x = w.pick(is_number)
    y = w.pick(is_number) if w.rng.random() < 0.8 else w.number(x)
    exact = w.exact_of(*(n for n in (x, y) if n in w.values))
    form = w.rng.choice(["{0} + {1}", "{0} - {1}", "{0} * {1}", "torch.maximum({0}, torch.as_tensor({1}))"])
    if y not in w.values:
        form = w.rng.choice(["{0} + {1}", "{1} - {0}", "{0} * {1}"])
    w.make(form.format(x, y), exact)


def quotient(w: _Writer) -> None:
    x, y = w.pick(is_float), w.pick(is_float)
    w.make(f"{x} / ({y}.abs() + 1)", False)


def whole_quotient(w: _Writer) -> None:
    x, y = w.pick(is_int), w.pick(is_int)
    form = w.rng.choice(
        ["{0} // ({1}.abs() + 1)", "{0} % ({1}.abs() + 1)", "torch.fmod({0}, {1}.abs() + 1)", "{0} // -({1}.abs() + 1)"]
    )
    w.make(form.format(x, y), True)


def comparison(w: _Writer) -> None:
    x = w.pick(lambda v: v.exact)
    y = w.pick(lambda v: v.exact)
    w.make(f"{x} {w.rng.choice(['<', '<=', '>', '>=', '==', '!='])} {y}", True)


def logic(w: _Writer) -> None:
    x, y = w.pick(is_bool), w.pick(is_bool)
    w.make(w.rng.choice(["{0} & {1}", "{0} | {1}", "{0} ^ {1}", "~{0}"]).format(x, y), True)


def bits(w: _Writer) -> None:
    x, y = w.pick(is_int), w.pick(is_int)
    w.make(w.rng.choice(["{0} & {1}", "{0} | {1}", "{0} ^ {1}", "~{0}", "{0} << 2", "{0} >> 1"]).format(x, y), True)


def choice(w: _Writer) -> None:
    mask, x = w.pick(is_bool), w.pick(is_number)
    y = w.pick(is_number) if w.rng.random() < 0.7 else w.number(x)
    form = w.rng.choice(["torch.where({0}, {1}, {2})", "torch.where({0}, {2}, {1})"])
    w.make(form.format(mask, x, y), w.exact_of(*(n for n in (x, y) if n in w.values)))


def masked_fill(w: _Writer) -> None:
    mask, x = w.pick(is_bool), w.pick(is_number)
    w.make(f"{x}.masked_fill({mask}, {w.number(x)})", w.exact_of(x))


def cast(w: _Writer) -> None:
    x = w.pick(any_value)
    floats = ["float32", "float64", "float32", "float64", "bfloat16", "float16"]
    target = w.rng.choice([*floats, "int64", "int64", "int64", "bool", "bool", "int32", "uint8"])
    if target in floats:
        w.make(f"{x}.to(torch.{target})", w.exact_of(x) and not target.endswith("16"))
        return
    if not w.exact_of(x) or (is_float(w.values[x]) and not bool(w[x].isfinite().all())):
        raise Refused
    if target == "uint8" and is_float(w.values[x]):  # C and torch leave a negative float's conversion open
        raise Refused
    w.make(f"{x}.to(torch.{target})", True)


# --- views ------------------------------------------------------------------------------------------------------


def view(w: _Writer) -> None:
    x = w.pick(any_value)
    t, rng = w[x], w.rng
    rank = t.dim()
    forms = [f"{{0}}.unsqueeze({rng.randint(0, rank)})", "{0}.squeeze()", "{0}.contiguous()", "{0}.reshape(-1)"]
    if rank:
        d = w.dim(x)
        n = t.shape[d]
        order = rng.sample(range(rank), rank)
        forms += [
            f"{{0}}.permute({order})", f"{{0}}.transpose({d}, {w.dim(x)})", f"{{0}}.flip({d})",
            f"{{0}}.flip({list(range(rank))})", f"{{0}}.roll({rng.randint(-3, 3)}, {d})", f"{{0}}.movedim({d}, 0)",
            f"{{0}}.expand({[2, *t.shape]})", f"{{0}}.repeat({[rng.randint(1, 2) for _ in range(rank)]})",
            "{0}[..., ::2]", "{0}[1:]", "{0}[:-1]", "{0}[None]", "{0}[-2:]", "{0}[..., 1::3]",
        ]  # fmt: skip
        if n:
            at = rng.randrange(n)
            size = rng.randint(1, n)
            forms += [
                f"{{0}}.select({d}, {at - rng.choice([0, n])})", f"{{0}}.unfold({d}, {size}, {rng.randint(1, 3)})",
                f"{{0}}.narrow({d}, {rng.randint(0, n - size)}, {size})", f"{{0}}.chunk(2, {d})[0]",
                f"{{0}}.unbind({d})[{at}]", f"{{0}}.split({size}, {d})[-1]", f"{{0}}.repeat_interleave(2, {d})",
            ]  # fmt: skip
        if n == 1:
            sizes = [4 if e == d % rank else s for e, s in enumerate(t.shape)]
            forms += [f"{{0}}.expand({sizes})"] * 4
        if rank > 1:
            forms += [
                f"{{0}}.diagonal({rng.randint(-1, 1)}, {order[0]}, {order[1]})",
                "{0}.t()" if rank == 2 else "{0}.mT",
            ]
            forms += ["{0}.flatten(0, 1)", "{0}.transpose(0, -1).reshape(-1)"]
    for _ in range(3):
        forms.append(f"{{0}}.reshape({_factors(rng, t.numel())})")
    w.make(rng.choice(forms).format(x), w.exact_of(x))


def _factors(rng: Random, n: int) -> list[int]:
    """A random shape of n elements."""
    if n == 0:
        return rng.choice([[0], [0, 3], [2, 0], [3, 0, 2]])
    shape: list[int] = []
    while n > 1 and len(shape) < 3:
        divisors = [d for d in range(1, min(n, 40) + 1) if n % d == 0]
        shape.append(rng.choice(divisors))
        n //= shape[-1]
    shape.append(n)
    if rng.random() < 0.3:
        shape.insert(rng.randint(0, len(shape)), 1)
    return shape


def triangle(w: _Writer) -> None:
    x = w.pick(has_rank(2))
    w.make(f"{x}.{w.rng.choice(['tril', 'triu'])}({w.rng.randint(-2, 2)})", w.exact_of(x))


def joined(w: _Writer) -> None:
    x = w.pick(has_rank(1))
    d = w.dim(x)
    others = [n for n, v in w.values.items() if _differs_only_in(v.tensor, w[x], d)]
    parts = [x, *w.rng.choices(others, k=w.rng.randint(1, 3))]
    w.make(f"torch.cat([{', '.join(parts)}], {d})", w.exact_of(*parts))


def _differs_only_in(a: torch.Tensor, b: torch.Tensor, d: int) -> bool:
    d %= b.dim()
    return a.dim() == b.dim() and all(e == d or m == n for e, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)))


def stacked(w: _Writer) -> None:
    x = w.pick(any_value)
    y = w.pick(lambda v: v.tensor.shape == w[x].shape)
    w.make(f"torch.stack([{x}, {y}], {w.rng.randint(0, w[x].dim())})", w.exact_of(x, y))


def padded(w: _Writer) -> None:
    x = w.pick(lambda v: v.tensor.dim() >= 1 and is_number(v))
    pad = [w.rng.choice([0, 1, 2, -1]) for _ in range(2 * w.rng.randint(1, min(w[x].dim(), 2)))]
    w.make(f"F.pad({x}, {pad}, value={w.rng.choice([0, 1, -2])})", w.exact_of(x))


# --- reductions -------------------------------------------------------------------------------------------------


def total(w: _Writer) -> None:
    x = w.pick(any_value)
    t = w[x]
    dims = w.rng.sample(range(t.dim()), w.rng.randint(0, t.dim()))
    keep = w.rng.random() < 0.4
    over = f"({dims}, {keep})" if dims else "()"
    form = w.rng.choice(["sum", "sum", "amax", "amin", "any", "all", "count_nonzero", "mean", "var"])
    if form in ("amax", "amin") and t.numel() == 0:
        raise Refused
    if form == "count_nonzero":
        over = f"({dims})" if dims else "()"
    if form in ("any", "all") and dims:
        over = f"({dims[0]}, {keep})"
    if form == "mean" and t.numel() == 0 and not t.is_floating_point():
        raise Refused
    if form in ("any", "all", "count_nonzero") and not w.exact_of(x):
        raise Refused
    w.make(f"{x}.{form}{over}", w.exact_of(x) and form not in ("mean", "var"))


def along(w: _Writer) -> None:
    x = w.pick(lambda v: v.tensor.dim() >= 1 and is_float(v))
    d = w.dim(x)
    form = w.rng.choice(
        ["{0}.softmax({1})", "{0}.log_softmax({1})", "{0}.logsumexp({1})", "{0}.cumsum({1})", "{0}.norm(dim={1})",
         "F.normalize({0}, dim={1})", "{0}.softmax({1}) * {0}", "{0} - {0}.mean({1}, keepdim=True)"]
    )  # fmt: skip
    w.make(form.format(x, d), False)


def norm(w: _Writer) -> None:
    x = w.pick(lambda v: v.tensor.dim() >= 1 and is_float(v) and v.tensor.shape[-1] > 0)
    n = w[x].shape[-1]
    w.make(w.rng.choice([f"F.layer_norm({x}, ({n},), eps=0.1)", f"F.rms_norm({x}, ({n},), eps=0.1)"]), False)


def running(w: _Writer) -> None:
    x = w.pick(lambda v: v.tensor.dim() >= 1 and v.exact)
    w.make(f"{x}.cumsum({w.dim(x)})", True)


def extreme(w: _Writer) -> None:
    x = w.pick(lambda v: v.exact and is_number(v) and v.tensor.numel() > 0)
    if not w[x].dim() or w.rng.random() < 0.2:
        w.make(f"{x}.{w.rng.choice(['argmax()', 'argmin()', 'max()', 'min()'])}", True)
        return
    d, keep = w.dim(x), w.rng.random() < 0.4
    form = w.rng.choice(
        ["{0}.argmax({1}, {2})", "{0}.argmin({1}, {2})", "{0}.max({1}, {2})[0]", "{0}.min({1}, {2})[1]"]
    )
    w.make(form.format(x, d, keep), True)


def multiplied(w: _Writer) -> None:
    x = w.pick(lambda v: v.tensor.dim() >= 1 and is_float(v))
    w.make(f"({x}.clamp(-1, 1)).prod({w.dim(x)})", w.exact_of(x) and w[x].numel() < 10)


# --- products ---------------------------------------------------------------------------------------------------


def product(w: _Writer) -> None:
    x = w.pick(lambda v: is_float(v) and v.tensor.dim() in (1, 2, 3))
    inner = w[x].shape[-1]
    y = w.pick(lambda v: v.tensor.dtype is w[x].dtype and v.tensor.dim() in (1, 2, 3) and inner in v.tensor.shape[-2:])
    right = y if w[y].dim() == 1 or w[y].shape[-2] == inner else f"{y}.mT"
    form = w.rng.choice(["{0} @ {1}", "{0} @ {1} + {2}", "F.relu({0} @ {1})", "({0} @ {1}).mT", "({0} @ {1}).sum(0)"])
    z = w.pick(lambda v: v.tensor.dtype is w[x].dtype)
    w.make(form.format(x, right, z), w.exact_of(x, y, z))


# --- indexing ---------------------------------------------------------------------------------------------------


def positions(w: _Writer, size: int, shape: Sequence[int]) -> str:
    """Whole numbers in [0, size) of this shape, as an expression: constants, or read from a value."""
    if size == 0:
        raise Refused
    held = [n for n, v in w.values.items() if is_int(v) and list(v.tensor.shape) == list(shape)]
    if held and w.rng.random() < 0.5:
        return f"({w.rng.choice(held)} % {size})"
    n = math.prod(shape)
    return f"torch.tensor({[w.rng.randrange(size) for _ in range(n)]}, dtype=torch.int64).reshape({list(shape)})"


def read(w: _Writer) -> None:
    x = w.pick(has_rank(1))
    t, rng = w[x], w.rng
    d = w.dim(x) % t.dim()
    count = rng.randint(1, 4)
    kind = rng.randint(0, 5)
    if kind == 0:
        text = f"{x}.index_select({d}, {positions(w, t.shape[d], [count])})"
    elif kind == 1:
        shape = [rng.randint(1, n) if n else 0 for n in t.shape]
        text = f"{x}.gather({d}, {positions(w, t.shape[d], shape)})"
    elif kind == 2:
        text = f"{x}[{positions(w, t.shape[0], [count])}]"
    elif kind == 3 and t.dim() >= 2:
        text = f"{x}[{positions(w, t.shape[0], [count, 1])}, {positions(w, t.shape[1], [2])}]"
    elif kind == 4 and t.dim() >= 3:
        text = f"{x}[{positions(w, t.shape[0], [count])}, :, {positions(w, t.shape[2], [count])}]"
    else:
        text = f"{x}[..., {positions(w, t.shape[-1], [count])} - {t.shape[-1]}]"
    w.make(text, w.exact_of(x))


def written(w: _Writer) -> None:
    x = w.pick(lambda v: v.tensor.dim() >= 1 and is_number(v))
    t, rng = w[x], w.rng
    d = w.dim(x) % t.dim()
    n = t.shape[d]
    src = w.pick(lambda v: v.tensor.shape == t.shape and v.tensor.dtype is t.dtype)
    exact = w.exact_of(x, src)
    places = f"torch.tensor({rng.sample(range(n), n)}, dtype=torch.int64)"
    kind = rng.randint(0, 5)
    if kind == 0:
        text = f"{x}.index_add({d}, {positions(w, n, [n])}, {src})"
    elif kind == 1:
        text = f"{x}.index_copy({d}, {places}, {src})"
    elif kind == 2:
        text = f"{x}.scatter_add({d}, {positions(w, n, t.shape)}, {src})"
    elif kind == 3:
        spread = f"reshape({[-1 if e == d else 1 for e in range(t.dim())]}).expand({list(t.shape)})"
        text = f"{x}.scatter({d}, {places}.{spread}, {src})"
    elif kind == 4:
        text = f"{x}.index_put(({positions(w, t.shape[0], [3])},), {src}[:1], accumulate=True)"
    else:
        text = f"{x}.slice_scatter({src}[{', '.join([':'] * d + ['1::2'])}], {d}, 1, None, 2)"
    w.make(text, exact)


# --- in place, and calls of ATen ---------------------------------------------------------------------------------


def assigned(w: _Writer) -> None:
    """Write into a copy: functionalised into a scatter."""
    x = w.pick(has_rank(1))
    form = w.rng.choice(["[..., 0]", "[1:]", "[::2]", "[..., ::2]", "[-1]", "[..., 1:]"])
    name = w.make(f"{x}.clone()", w.exact_of(x))
    y = w.pick(lambda v: v.tensor.dim() == 0 or v.tensor.shape == w[x].shape)
    value = y if w[y].dim() == 0 or y == name else f"{y}{form}"
    _in_place(w, f"{name}{form} = {value}", name, w.exact_of(x, y), y)


def mutated(w: _Writer) -> None:
    """Write an input, or a value through any name it has: a view of an input writes the input."""
    inputs = [n for n in w.values if n.startswith("in")]
    x = w.rng.choice(inputs) if w.rng.random() < 0.8 else w.pick(lambda v: v.exact)
    if is_bool(w.values[x]) or _overlaps(w[x]):
        raise Refused
    y = w.pick(lambda v: v.exact and is_number(v))
    form = w.rng.choice(
        ["{0}.add_({1})", "{0}.mul_(2)", "{0}.copy_({1})", "{0}.sub_({0})", "{0}.zero_()", "{0}[..., 0] = {1}",
         "{0}[1:] = 3", "{0}[::2].add_(1)", "{0}.mT.add_({1})", "{0}.copy_({0}.flip(0))", "{0}.copy_({0}.mT.clone())",
         "{0}.clamp_(-1, 1)"]
    )  # fmt: skip
    _in_place(w, form.format(x, y), x, True, y)


def swapped(w: _Writer) -> None:
    """Two inputs that get each other's old values."""
    x = w.rng.choice([n for n in w.values if n.startswith("in")])
    y = w.pick(lambda v: v.tensor.shape == w[x].shape and v.tensor.dtype is w[x].dtype and v.exact)
    if x == y or _overlaps(w[x]) or _overlaps(w[y]):
        raise Refused
    old = w.make(f"{x}.clone()", w.exact_of(x))
    _in_place(w, f"{x}.copy_({y})", x, w.exact_of(y), y)
    _in_place(w, f"{y}.copy_({old} + 1)", y, w.exact_of(old), old)


def scattered(w: _Writer) -> None:
    """Write some rows of an input, as a cache is written: from new rows, from its own old ones, from both."""
    x = w.rng.choice([n for n in w.values if n.startswith("in")])
    t, rng = w[x], w.rng
    if is_bool(w.values[x]) or _overlaps(t) or not t.numel() or not t.dim():
        raise Refused
    d = rng.randrange(t.dim())
    n = t.shape[d]
    count = rng.randint(1, n)
    places = rng.sample(range(n), count)
    start = rng.randint(0, n - count)
    at = f"torch.tensor({places}, dtype=torch.int64)"
    rows = f"{x}.narrow({d}, {start}, {count})"
    y = w.pick(lambda v: v.exact and v.tensor.dtype is t.dtype)
    new = y if _differs_only_in(w[y], t, d) and w[y].shape[d] == count else None
    held = [f"({rows} + 1)", f"{rows}.clone()", f"{x}.flip({d}).narrow({d}, {start}, {count})"]
    source = rng.choice([*held, *([new, f"({new} * 2)", f"({rows} + {new})"] if new else [])])
    spread = f"{at}.reshape({[-1 if e == d else 1 for e in range(t.dim())]}).expand_as({rows})"
    lead = "(" + "slice(None), " * d + f"{at})"
    form = rng.choice(
        [f"{x}.index_copy_({d}, {at}, {source})", f"{x}.index_add_({d}, {at}, {source})",
         f"{x}.scatter_({d}, {spread}, {source})", f"{x}.scatter_add_({d}, {spread}, {source})",
         f"{x}[{lead}] = {source}", f"{x}[{lead}] += {source}", f"{x}.narrow({d}, {start}, {count}).copy_({source})",
         f"{x}.narrow({d}, {start}, {count}).add_({source})", f"{x}.index_fill_({d}, {at}, 2)",
         f"{x}.narrow({d}, {n - count}, {count}).copy_({source})"]
    )  # fmt: skip
    _in_place(w, form, x, True, y)
    alike = [n for n in w.values if n.startswith("in") and n != x and w[n].shape == t.shape and not _overlaps(w[n])]
    if alike and rng.random() < 0.3:
        other = rng.choice(alike)
        _in_place(w, f"{other}.copy_({x})", other, w.exact_of(x), x)


def _in_place(w: _Writer, line: str, name: str, exact: bool, other: str) -> None:
    saved = {n: v.tensor.clone() for n, v in w.values.items()}
    if is_int(w.values[name]) and is_float(w.values[other]) and not bool(w[other].isfinite().all()):
        raise Refused
    try:
        exec(line, dict(_SCOPE), {n: v.tensor for n, v in w.values.items()})
    except (RuntimeError, IndexError, TypeError):
        raise Refused from None
    if any(v.exact and v.largest > 2**18 for v in w.values.values()):
        for n, t in saved.items():
            if not _overlaps(w[n]):
                w[n].copy_(t)
        raise Refused
    w.lines.append(line)
    w.values[name].exact = w.values[name].exact and exact


def _overlaps(t: torch.Tensor) -> bool:
    return any(s == 0 and d > 1 for d, s in zip(t.shape, t.stride(), strict=True))


def called(w: _Writer) -> None:
    x = w.pick(lambda v: v.tensor.dim() >= 1 and v.exact and is_number(v))
    w.make(f"{x}.sort({w.dim(x)}, stable=True)[{w.rng.randint(0, 1)}]", True)


_STEPS: list[Callable[[_Writer], None]] = [
    exact_unary, exact_unary, smooth_unary, smooth_unary, binary, binary, binary, binary, quotient, whole_quotient,
    comparison, logic, bits, choice, masked_fill, cast, view, view, view, view, view, triangle, joined, stacked,
    padded, total, total, total, along, along, norm, running, extreme, extreme, multiplied, product, product, read,
    read, written, written, assigned, mutated, mutated, scattered, swapped, called,
]  # fmt: skip
_MUTATING: list[Callable[[_Writer], None]] = [
    exact_unary, binary, view, view, total, along, norm, running, extreme, product, read, written, assigned, joined,
    mutated, mutated, mutated, scattered, scattered, scattered, scattered, scattered, swapped, swapped, called,
]  # fmt: skip


@dataclass
class Check:
    """How the results of two runs of a program compare, with float64 as the referee."""

    program: Program
    problems: list[str] = field(default_factory=list)

    def compare(self, label: str, got: Sequence[Any], want: Sequence[Any], referee: Sequence[Any]) -> None:
        for k, (g, e, r) in enumerate(zip(got, want, referee, strict=True)):
            exact = self.program.exact[k] if k < len(self.program.exact) else True
            problem = difference(g, e, r, exact, self.program.epsilon)
            if problem:
                name = self.program.results[k] if k < len(self.program.results) else f"in{k - len(self.program.exact)}"
                self.problems.append(f"{label}, {name}: {problem}")


def _same_number(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def difference(got: torch.Tensor, want: torch.Tensor, referee: torch.Tensor, exact: bool, epsilon: float = 2e-5) -> str:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{tuple(got.shape)}, eager {want.dtype}{tuple(want.shape)}"
    if exact or not want.is_floating_point():
        equal = _same_number(got, want)
        return "" if bool(equal.all()) else f"{int((~equal).sum())} of {want.numel()} elements differ from eager's"
    wild = ~(want.isfinite() & got.isfinite())
    if not bool((_same_number(got, want) | _same_number(got, referee.to(got.dtype)))[wild].all()):
        return f"not finite in {int((~got.isfinite()).sum())} elements, eager in {int((~want.isfinite()).sum())}"
    fine = ~wild & referee.isfinite()
    truth = referee[fine].double()
    ours, theirs = (got[fine].double() - truth).abs(), (want[fine].double() - truth).abs()
    allowed = torch.maximum(2 * theirs.max() if theirs.numel() else torch.tensor(0.0), epsilon * (1 + truth.abs()))
    if not bool((ours > allowed).any()):
        return ""
    return f"error {float(ours.max()):.3g} against float64, eager's {float(theirs.max()):.3g}"
