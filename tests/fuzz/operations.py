"""What programs are made of: each function adds one step to a program that is being written, or refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

import torch

from tests.fuzz.values import FLOATS, INTEGERS

if TYPE_CHECKING:
    from tests.fuzz.generate import Writer

Test = Callable[[torch.Tensor], bool]


class Refused(Exception):
    """This step does not fit the values there are: another is drawn."""


def is_float(t: torch.Tensor) -> bool:
    return t.is_floating_point()


def is_int(t: torch.Tensor) -> bool:
    return not t.is_floating_point() and t.dtype is not torch.bool


def is_bool(t: torch.Tensor) -> bool:
    return t.dtype is torch.bool


def is_number(t: torch.Tensor) -> bool:
    return t.dtype is not torch.bool


def anything(t: torch.Tensor) -> bool:
    return True


def with_rank(least: int, most: int = 9, also: Test = anything) -> Test:
    return lambda t: least <= t.dim() <= most and also(t)


# --- elementwise ------------------------------------------------------------------------------------------------

_EXACT = (
    "-{0}|{0}.abs()|{0}.relu()|{0}.clamp(-2, 3)|{0}.clamp(min=0)|{0}.clamp(max=1)|{0}.sign()|F.relu6({0})|{0}.clone()|"
    "{0}.neg()|{0}.floor()|{0}.ceil()|{0}.trunc()|{0}.round()|{0}.signbit()|F.hardtanh({0})|F.threshold({0}, 0.5, 2)|"
    "{0}.isnan()|{0}.isinf()|{0}.isfinite()|{0}.nan_to_num()|{0}.nan_to_num(1.0, 2.0, -3.0)|{0}.logical_not()|"
    "{0}.sgn()|torch.heaviside({0}, {0})|{0}.bool()|{0}.contiguous()|{0} > 0|{0} == 0|{0} != {0}|{0} <= 1.5|0 < {0}|"
    "torch.zeros_like({0})|torch.ones_like({0})|torch.full_like({0}, 3)|{0}.new_zeros(3)|{0}.positive()"
).split("|")
_ROUNDED = (
    "{0} + 1|{0} * 2|{0} - 0.5|1 - {0}|{0} / 3|{0} * 0.1|{0}.square()|{0} ** 2|{0}.sqrt()|{0}.abs().sqrt()|2 / {0}|"
    "{0}.reciprocal()|{0} ** 0.5|{0}.frac()|F.leaky_relu({0}, 0.1)|{0} % 3|{0} // 2|torch.remainder({0}, -1.5)|"
    "torch.fmod({0}, 2.5)|{0} / -0.7|{0} * 1e10|{0} * 1e-10|{0}.floor_divide(0.3)|"
    "torch.div({0}, 3, rounding_mode='trunc')"
).split("|")
_SMOOTH = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid "
    "lgamma rsqrt digamma logit erfinv deg2rad"
).split()
_APPROXIMATE = (
    "F.gelu({0})|F.gelu({0}, approximate='tanh')|F.silu({0})|F.softplus({0})|F.elu({0})|F.selu({0})|F.celu({0})|"
    "F.mish({0})|F.hardswish({0})|F.hardsigmoid({0})|F.logsigmoid({0})|F.softsign({0})|F.tanhshrink({0})|"
    "F.softshrink({0})|F.hardshrink({0})|{0} ** 3|{0} ** -1|{0} ** 1.7|{0} ** -0.5|2 ** {0}|{0}.abs() ** 0.3|"
    "{0}.sinc()|{0}.pow(4)|torch.special.i0({0})|{0}.xlogy({0})"
).split("|")
_INTEGER = (
    "-{0}|{0}.abs()|{0}.sign()|{0} + 1|{0} - 1|{0} * 3|{0} * {0}|{0} ** 2|{0} ** 3|{0} // 3|{0} // -3|{0} // -1|"
    "{0} % 3|{0} % -3|{0} % -1|torch.fmod({0}, -3)|torch.div({0}, -3, rounding_mode='trunc')|{0} << 2|{0} >> 1|"
    "{0} >> 70|~{0}|{0} & 3|torch.bitwise_or({0}, 4)|{0} ^ 5|{0} > 300|{0} < -1|{0} == 256|{0} > 2.5|"
    "{0}.clamp(-5, 100)|{0}.clamp(-500, 1000)|({0} + 1) > {0}|({0} * 2) // 2|(-{0}) == {0}|{0}.abs() < 0|5 - {0}|"
    "{0} + 300|{0}.square()|{0}.relu()|{0} << 40|torch.where({0} > 0, {0}, -{0})|torch.where({0} > 0, 1000, {0})|"
    "{0}.masked_fill({0} > 0, 7)|{0}.logical_not()|{0}.floor()|{0}.clone()|({0} * {0}) % 1000|"
    "({0} * 2654435761) >> 16|{0} * -1|torch.add({0}, {0}, alpha=3)|{0} << {0}.clamp(0, 9)|{0} >> {0}.clamp(-1, 80)"
).split("|")


def exact_unary(w: Writer) -> None:
    x = w.pick(is_float)
    w.emit(w.rng.choice(_EXACT), x)


def rounded_unary(w: Writer) -> None:
    x = w.pick(is_float)
    w.emit(w.rng.choice(_ROUNDED), x, exactness="rounded")


def smooth_unary(w: Writer) -> None:
    x = w.pick(is_float if w.rng.random() < 0.93 else anything)
    form = f"{{0}}.{w.rng.choice(_SMOOTH)}()" if w.rng.random() < 0.6 else w.rng.choice(_APPROXIMATE)
    w.emit(form, x, exactness="approximate")


def integer_unary(w: Writer) -> None:
    w.need("integers")
    w.emit(w.rng.choice(_INTEGER), w.pick(is_int))


def binary(w: Writer) -> None:
    x = w.pick(is_number)
    y = w.pick(is_number) if w.rng.random() < 0.8 else w.number(x)
    form = w.rng.choice(
        ["{0} + {1}", "{0} - {1}", "{0} * {1}", "{1} - {0}", "torch.add({0}, {1}, alpha=2)", "{0} / {1}", "{1} / {0}"]
    )
    whole = all(is_int(w[n]) for n in (x, y) if n in w.values) and "." not in y and "/" not in form
    w.emit(form, x, y, exactness="exact" if whole else "rounded")


def exact_binary(w: Writer) -> None:
    x, y = w.pick(is_number), w.pick(is_number)
    form = w.rng.choice(
        [
            "torch.maximum({0}, {1})",
            "torch.minimum({0}, {1})",
            "torch.fmax({0}, {1})",
            "torch.fmin({0}, {1})",
            "torch.copysign({0}, {1})",
            "torch.nextafter({0}, {1})",
            "torch.where({0} < {1}, {0}, {1})",
            "{0}.clamp(min={1})",
            "{0} == {1}",
            "{0} < {1}",
            "{0} >= {1}",
            "{0} != {1}",
            "torch.logical_and({0}, {1})",
            "torch.logical_xor({0}, {1})",
            "{0}.clamp({0}, {1})",
            "torch.isclose({0}, {1})",
        ]
    )
    w.emit(form, x, y)


def approximate_binary(w: Writer) -> None:
    x, y = w.pick(is_float), w.pick(is_float)
    form = w.rng.choice(
        [
            "torch.atan2({0}, {1})",
            "torch.hypot({0}, {1})",
            "{0} ** {1}",
            "{0}.abs() ** {1}",
            "torch.lerp({0}, {1}, 0.3)",
            "torch.addcmul({0}, {0}, {1}, value=0.5)",
            "torch.addcdiv({0}, {1}, {1}.abs() + 1)",
            "torch.logaddexp({0}, {1})",
            "torch.remainder({0}, {1})",
            "torch.fmod({0}, {1})",
            "{0} // {1}",
            "torch.xlogy({0}, {1})",
            "F.mse_loss({0}, {1})",
            "F.smooth_l1_loss({0}, {1})",
            "F.binary_cross_entropy_with_logits({0}, {1}.sigmoid())",
            "F.l1_loss({0}, {1})",
            "F.cosine_similarity({0}, {1}, -1)",
            "torch.dist({0}, {1})",
            "F.huber_loss({0}, {1})",
            "F.kl_div({0}, {1})",
        ]
    )
    w.emit(form, x, y, exactness="approximate")


def integer_binary(w: Writer) -> None:
    w.need("integers")
    x, y = w.pick(is_int), w.pick(is_int)
    form = w.rng.choice(
        [
            "{0} // ({1} | 1)",
            "{0} % ({1} | 1)",
            "torch.fmod({0}, {1} | 1)",
            "{0} & {1}",
            "{0} | {1}",
            "{0} ^ {1}",
            "{0} << ({1} & 7)",
            "{0} >> ({1} & 7)",
            "{0} * {1}",
            "{0} + {1}",
            "{0} - {1}",
            "{0} // {1}",
            "{0} % {1}",
            "torch.div({0}, {1} | 1, rounding_mode='trunc')",
            "torch.gcd({0}, {1})",
            "{0} << {1}",
            "{0} >> {1}",
            "{0} ** ({1} & 3)",
            "torch.minimum({0}, {1})",
            "torch.addcmul({0}, {0}, {1})",
            "torch.where({0} > {1}, {0}, {1})",
        ]
    )
    w.emit(form, x, y)


def logic(w: Writer) -> None:
    x, y = w.pick(is_bool), w.pick(is_bool)
    form = ["{0} & {1}", "{0} | {1}", "{0} ^ {1}", "~{0}", "{0} + {1}", "{0} * {1}", "{0}.int() - {1}", "{0} < {1}"]
    w.emit(w.rng.choice(form), x, y)


def choice(w: Writer) -> None:
    mask, x = w.pick(is_bool), w.pick(anything)
    y = w.pick(anything) if w.rng.random() < 0.6 else w.number(x)
    w.emit(
        w.rng.choice(["torch.where({0}, {1}, {2})", "torch.where({0}, {2}, {1})", "{1}.masked_fill({0}, 0)"]),
        mask,
        x,
        y,
    )


def cast(w: Writer) -> None:
    w.need("casts")
    x = w.pick(anything)
    target = w.rng.choice([*FLOATS, *INTEGERS, "bool", "float32", "float64"])
    w.emit(f"{{0}}.to(torch.{target})", x)


def scalar_argument(w: Writer) -> None:
    numbers = [n for n in w.numbers if n in w.inputs]
    if not numbers:
        raise Refused
    x = w.pick(is_float)
    forms = ["{0} * {1}", "{0} + {1}", "{0} / ({1} + 0.5)", "torch.where({0} > {1}, {0}, 0)", "{0} if {1} else -{0}"]
    w.emit(w.rng.choice(forms), x, w.rng.choice(numbers), exactness="rounded")


# --- views ------------------------------------------------------------------------------------------------------


def view(w: Writer) -> None:
    x = w.pick(anything)
    t, rng, rank = w[x], w.rng, w[x].dim()
    forms = [f"{{0}}.unsqueeze({rng.randint(0, rank)})", "{0}.squeeze()", "{0}.reshape(-1)", "{0}.view(-1)", "{0}[...]"]
    if rank:
        forms += _dimension_views(w, x)
    if rank > 1:
        a, b = rng.sample(range(rank), 2)
        forms += [
            f"{{0}}.diagonal({rng.randint(-1, 1)}, {a}, {b})",
            "{0}.mT",
            "{0}.flatten(0, 1)",
            "{0}.T" if rank == 2 else "{0}.mT",
            "{0}.transpose(0, -1).reshape(-1)",
            "{0}.tril()",
            f"{{0}}.triu({rng.randint(-2, 2)})",
            "{0}.rot90()",
            "{0}.swapaxes(0, 1)",
            f"{{0}}.permute({rng.sample(range(rank), rank)})",
        ]
    if not w.generic:
        forms += [f"{{0}}.reshape({factors(rng, t.numel())})" for _ in range(3)]
        if t.is_contiguous() and t.numel() > 3 and w.has("overlap"):
            forms.append(f"{{0}}.as_strided((2, {t.numel() - 1}), (1, 1))")
            forms.append(f"{{0}}.as_strided(({t.numel() // 2},), (2,), {t.storage_offset()})")
    w.emit(rng.choice(forms), x)


def _dimension_views(w: Writer, x: str) -> list[str]:
    t, rng, rank = w[x], w.rng, w[x].dim()
    d = rng.randrange(-rank, rank)
    n = t.shape[d]
    forms = [
        f"{{0}}.transpose({d}, {rng.randrange(rank)})",
        f"{{0}}.flip({d})",
        f"{{0}}.roll({rng.randint(-3, 3)}, {d})",
        f"{{0}}.movedim({d}, 0)",
        "{0}[..., ::2]",
        "{0}[1:]",
        "{0}[:-1]",
        "{0}[None]",
        "{0}[-2:]",
        "{0}[..., 1::3]",
        "{0}[..., :2]",
        f"{{0}}.chunk(2, {d})[0]",
        f"{{0}}.repeat_interleave(2, {d})",
        "{0}.expand(2, *{0}.shape)",
        f"{{0}}.repeat({[rng.randint(1, 2) for _ in range(rank)]})",
        f"{{0}}.diff(dim={d})",
        "{0}.unsqueeze(-1).expand(*{0}.shape, 2)",
        "{0}.tile(2)",
        "torch.atleast_2d({0})",
        f"{{0}}.squeeze({d})",
    ]
    if n:
        size = rng.randint(1, n)
        forms += [
            f"{{0}}.select({d}, {rng.choice([0, -1])})",
            f"{{0}}.unfold({d}, {min(size, 3)}, {rng.randint(1, 3)})",
            f"{{0}}.narrow({d}, {rng.randint(0, n - size)}, {size})",
            f"{{0}}.unbind({d})[{rng.randrange(n)}]",
            f"{{0}}.split({size}, {d})[-1]",
            f"{{0}}.index_select({d}, torch.tensor([0, {n - 1}], device={{0}}.device))",
        ]
    if n == 1:
        forms += [f"{{0}}.expand({[4 if e == d % rank else s for e, s in enumerate(t.shape)]})"] * 4
    return forms


def factors(rng: Random, n: int) -> list[int]:
    """A random shape of n elements."""
    if n == 0:
        return rng.choice([[0], [0, 3], [2, 0], [3, 0, 2]])
    shape: list[int] = []
    while n > 1 and len(shape) < 3:
        shape.append(rng.choice([d for d in range(1, min(n, 40) + 1) if n % d == 0]))
        n //= shape[-1]
    return [*shape, n]


def joined(w: Writer) -> None:
    x = w.pick(with_rank(1))
    rank = w[x].dim()
    d = w.rng.randrange(rank)

    def fits(t: torch.Tensor) -> bool:
        return t.dim() == rank and all(
            e == d or m == n for e, (m, n) in enumerate(zip(t.shape, w[x].shape, strict=True))
        )

    others = [w.pick(fits) for _ in range(w.rng.randint(1, 3))]
    places = ", ".join(f"{{{k}}}" for k in range(len(others) + 1))
    w.emit(f"torch.cat([{places}], {d})", x, *others)


def stacked(w: Writer) -> None:
    x = w.pick(anything)
    y = w.pick(lambda t: t.shape == w[x].shape)
    w.emit(f"torch.stack([{{0}}, {{1}}], {w.rng.randint(0, w[x].dim())})", x, y)


def padded(w: Writer) -> None:
    x = w.pick(with_rank(1, also=is_number))
    pad = [w.rng.choice([0, 1, 2, -1]) for _ in range(2 * w.rng.randint(1, min(w[x].dim(), 2)))]
    mode = w.rng.choice(["constant", "constant", "reflect", "replicate", "circular"])
    if mode == "circular" and min(pad) < 0:  # eager leaves memory as it was there
        raise Refused
    value = f", value={w.rng.choice([0, 1, -2])}" if mode == "constant" else f", mode='{mode}'"
    w.emit(f"F.pad({{0}}, {pad}{value})", x)


# --- reductions -------------------------------------------------------------------------------------------------


def total(w: Writer) -> None:
    x = w.pick(anything)
    t = w[x]
    dims = sorted(w.rng.sample(range(t.dim()), w.rng.randint(0, t.dim())))
    over = f"({dims}, {w.rng.random() < 0.4})" if dims else "()"
    form = w.rng.choice(["sum", "sum", "sum", "amax", "amin", "mean", "var", "std", "nansum"])
    summed = (t.is_floating_point() and form not in ("amax", "amin")) or form in ("mean", "var", "std")
    w.emit(f"{{0}}.{form}{over}", x, exactness="approximate" if summed else "exact")


def total_typed(w: Writer) -> None:
    x = w.pick(anything)
    target = w.rng.choice(["float32", "float64", "int64", "int32", "float16"])
    form = w.rng.choice(["{0}.sum(dtype=torch.%s)", "{0}.cumsum(0, dtype=torch.%s)", "{0}.prod(dtype=torch.%s)"])
    exact = not w[x].is_floating_point() and target.startswith("int")
    w.emit(form % target, x, exactness="exact" if exact else "approximate")


def test_all(w: Writer) -> None:
    x = w.pick(anything)
    t = w[x]
    over = f"({w.rng.randrange(t.dim())}, {w.rng.random() < 0.4})" if t.dim() and w.rng.random() < 0.7 else "()"
    form = w.rng.choice(["any", "all", "any", "count_nonzero"])
    w.emit(f"{{0}}.{form}" + ("()" if form == "count_nonzero" else over), x)


def along(w: Writer) -> None:
    x = w.pick(with_rank(1, also=is_float))
    d = w.rng.randrange(-w[x].dim(), w[x].dim())
    form = w.rng.choice(
        [
            "{0}.softmax(%d)",
            "{0}.log_softmax(%d)",
            "{0}.logsumexp(%d)",
            "{0}.cumsum(%d)",
            "{0}.norm(dim=%d)",
            "F.normalize({0}, dim=%d)",
            "{0}.softmax(%d) * {0}",
            "{0} - {0}.mean(%d, keepdim=True)",
            "{0}.cumprod(%d)",
            "{0}.prod(%d)",
            "{0}.norm(1, %d)",
            "{0}.norm(inf, %d)",
            "{0}.logcumsumexp(%d)",
            "torch.linalg.vector_norm({0}, 3, %d)",
            "torch.std_mean({0}, %d)[0]",
            "torch.var_mean({0}, %d)[1]",
            "{0}.softmax(%d, dtype=torch.float32)",
            "F.softmin({0}, %d)",
            "{0}.var(%d, correction=0)",
        ]
    )
    w.emit(form % d, x, exactness="approximate")


def running(w: Writer) -> None:
    w.need("integers")
    x = w.pick(with_rank(1, also=lambda t: not t.is_floating_point()))
    d = w.rng.randrange(w[x].dim())
    form = w.rng.choice(["{0}.cumsum(%d)", "{0}.prod(%d)", "{0}.cumprod(%d)", "{0}.cummax(%d)[0]", "{0}.sum(%d)"])
    w.emit(form % d, x)


def extreme(w: Writer) -> None:
    x = w.pick(lambda t: is_number(t) and t.numel() > 0)
    if not w[x].dim() or w.rng.random() < 0.2:
        w.emit("{0}." + w.rng.choice(["argmax()", "argmin()", "max()", "min()"]), x)
        return
    d, keep = w.rng.randrange(w[x].dim()), w.rng.random() < 0.4
    form = w.rng.choice(
        [
            f"{{0}}.argmax({d}, {keep})",
            f"{{0}}.argmin({d}, {keep})",
            f"{{0}}.max({d}, {keep})[0]",
            f"{{0}}.min({d}, {keep})[1]",
            f"{{0}}.max({d})[1]",
            f"{{0}}.cummax({d})[0]",
            f"{{0}}.sort({d}, stable=True)[0]",
            f"{{0}}.sort({d}, stable=True)[1]",
            f"{{0}}.topk(1, {d})[0]",
            f"{{0}}.sort({d}, True, stable=True)[0]",
            f"{{0}}.kthvalue(1, {d})[0]",
            f"{{0}}.aminmax(dim={d})[1]",
            f"{{0}}.contiguous().median({d})[0]",  # eager's reads past an expanded one
            f"{{0}}.argsort({d}, stable=True)",
            f"{{0}}.topk(2, {d}, largest=False)[0]",
        ]
    )
    w.emit(form, x)


# --- products, convolutions, norms, attention -------------------------------------------------------------------


def product(w: Writer) -> None:
    x = w.pick(with_rank(1, 3, is_number))
    inner = w[x].shape[-1]
    y = w.pick(lambda t: t.dtype is w[x].dtype and 1 <= t.dim() <= 3 and inner in t.shape[-2:])
    right = "{1}" if w[y].dim() == 1 or w[y].shape[-2] == inner else "{1}.mT"
    z = w.pick(lambda t: t.dtype is w[x].dtype)
    form = w.rng.choice(
        [
            "{0} @ R",
            "{0} @ R + {2}",
            "F.relu({0} @ R)",
            "({0} @ R).mT",
            "({0} @ R).sum(0)",
            "torch.einsum('...i,...i->...', {0}, {0})",
            "torch.matmul({0}, R) * 0.5",
            "F.gelu({0} @ R)",
            "({0} @ R).softmax(-1)",
            "torch.einsum('...i,...j->...ij', {0}, {0})",
            "{0}.mT @ {0}",
        ]
    )
    w.emit(
        form.replace("R", right),
        x,
        y,
        z,
        exactness="exact" if is_int(w[x]) and "softmax" not in form else "approximate",
    )


def linear(w: Writer) -> None:
    x = w.pick(with_rank(1, 3, lambda t: is_float(t) and t.shape[-1] > 0))
    n, m = w[x].shape[-1], w.rng.choice([1, 2, 3, 5, 8, 16])
    if w.generic and w[x].dim() < 2:
        raise Refused
    layer = w.member(f"torch.nn.Linear({n}, {m}, bias={w.rng.random() < 0.7})", w[x].dtype)
    w.emit(
        w.rng.choice(["{0}(X)", "F.relu({0}(X))", "{0}(X).tanh()", "{0}(X) + 1"]).replace("X", "{1}"),
        layer,
        x,
        exactness="approximate",
    )


def convolution(w: Writer) -> None:
    x = w.pick(lambda t: is_float(t) and t.dim() in (2, 3, 4) and min(t.shape) > 0)
    rank = max(1, w[x].dim() - 2)
    c = w[x].shape[1 if w[x].dim() > 2 else 0]
    groups = w.rng.choice([g for g in (1, 1, c) if c % g == 0])
    k, stride, pad = w.rng.choice([1, 1, 2, 3]), w.rng.choice([1, 1, 2]), w.rng.choice([0, 1, 1, 2])
    dilation, bias = w.rng.choice([1, 1, 2]), w.rng.random() < 0.6
    rest = f"{k}, stride={stride}, padding={pad}, groups={groups}, bias={bias}, dilation={dilation}"
    kind = w.rng.choice(["Conv", "Conv", "Conv", "ConvTranspose"])
    layer = w.member(f"torch.nn.{kind}{rank}d({c}, {groups * w.rng.randint(1, 3)}, {rest})", w[x].dtype)
    w.emit(w.rng.choice(["{0}(X)", "F.relu({0}(X))"]).replace("X", "{1}"), layer, x, exactness="approximate")


def norm(w: Writer) -> None:
    x = w.pick(with_rank(2, 4, lambda t: is_float(t) and min(t.shape) > 0))
    n, c, rank = w[x].shape[-1], w[x].shape[1], w[x].dim()
    forms = [
        f"torch.nn.LayerNorm({n})",
        f"torch.nn.LayerNorm({n}, elementwise_affine=False)",
        f"torch.nn.RMSNorm({n}, eps=1e-3)",
    ]
    forms += [f"torch.nn.GroupNorm(1, {c})", f"torch.nn.GroupNorm({c}, {c})"]
    batch = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d"}[rank]
    forms += [f"torch.nn.{batch}({c})"] * 2 + [
        f"torch.nn.{batch}({c}, track_running_stats=False)",
        f"torch.nn.{batch}({c}, momentum=None)",
    ]
    if rank > 2:
        forms.append(f"torch.nn.InstanceNorm{rank - 2}d({c})")
    layer = w.member(w.rng.choice(forms), w[x].dtype)
    w.emit(
        w.rng.choice(["{0}(X)", "F.relu({0}(X))", "{0}(X) + X"]).replace("X", "{1}"), layer, x, exactness="approximate"
    )


def attention(w: Writer) -> None:
    x = w.pick(with_rank(3, 4, lambda t: is_float(t) and min(t.shape) > 0))
    y = w.pick(lambda t: t.shape == w[x].shape and t.dtype is w[x].dtype)
    z = w.pick(lambda t: t.shape == w[x].shape and t.dtype is w[x].dtype)
    more = w.rng.choice(
        [
            "",
            ", is_causal=True",
            ", scale=0.5",
            ", attn_mask=torch.ones({0}.shape[-2], {0}.shape[-2], device={0}.device).tril().bool()",
        ]
    )
    w.emit(f"F.scaled_dot_product_attention({{0}}, {{1}}, {{2}}{more})", x, y, z, exactness="approximate")


def pooled(w: Writer) -> None:
    x = w.pick(with_rank(3, 4, lambda t: is_float(t) and min(t.shape) > 0))
    rank = w[x].dim() - 2
    k, s, corners = w.rng.choice([1, 2, 3]), w.rng.choice([1, 2]), w.rng.random() < 0.5
    forms = [
        (f"F.max_pool{rank}d({{0}}, {k}, {s}, {k // 2})", "exact"),
        (f"F.avg_pool{rank}d({{0}}, {k}, {s}, {k // 2})", "approximate"),
        (f"F.adaptive_avg_pool{rank}d({{0}}, {w.rng.randint(1, 3)})", "approximate"),
        (f"F.adaptive_max_pool{rank}d({{0}}, {w.rng.randint(1, 2)})", "exact"),
        (f"F.interpolate({{0}}, scale_factor={w.rng.choice([2, 0.5, 1.5])}, mode='nearest')", "exact"),
        (
            f"F.interpolate({{0}}, scale_factor=2, mode='{'bi' * (rank == 2)}linear', align_corners={corners})",
            "approximate",
        ),
        (f"F.avg_pool{rank}d({{0}}, {k}, {s}, count_include_pad=False, ceil_mode=True)", "approximate"),
        (
            f"F.unfold({{0}}, {k}, padding=1)" if rank == 2 else f"F.max_pool{rank}d({{0}}, {k}, ceil_mode=True)",
            "exact",
        ),
    ]
    form, exactness = w.rng.choice(forms)
    w.emit(form, x, exactness=exactness)  # type: ignore[arg-type]


def dropped(w: Writer) -> None:
    w.need("random")
    x = w.pick(is_float)
    form = w.rng.choice(
        [
            "F.dropout({0}, 0.4)",
            "torch.rand_like({0}) * {0}",
            "{0} + torch.randn_like({0})",
            "torch.nn.Dropout(0.3)",
            "torch.bernoulli({0}.sigmoid().nan_to_num(0.5).clamp(0, 1))",
            "F.dropout({0}, 0.4, training=False)",
        ]
    )
    if form.startswith("torch.nn"):
        w.emit("{0}({1})", w.member(form), x, exactness="approximate")
        return
    w.emit(form, x, exactness="approximate")


# --- indexing ---------------------------------------------------------------------------------------------------


def places(w: Writer, size: int, shape: Sequence[int], like: str, distinct: bool = False) -> str:
    """Whole numbers below `size`, as an expression: constants, computed from a value, or an argument."""
    if size == 0:
        raise Refused
    if not w.generic and w.rng.random() < 0.5:
        return w.index_input(size, shape, distinct)
    held = [n for n, t in w.values.items() if t.dtype is torch.int64 and list(t.shape) == list(shape)]
    if held and not distinct and w.rng.random() < 0.5:
        return f"({w.rng.choice(held)} % {size})"
    n = math.prod(shape)
    numbers = w.rng.sample(range(size), n) if distinct and n <= size else [w.rng.randrange(size) for _ in range(n)]
    if distinct and n > size:
        raise Refused
    return f"torch.tensor({numbers}, dtype=torch.int64, device={like}.device).reshape({list(shape)})"


def read(w: Writer) -> None:
    x = w.pick(with_rank(1))
    t, rng = w[x], w.rng
    d = rng.randrange(t.dim())
    count = rng.randint(1, 4)
    kind = rng.randint(0, 6)
    if kind == 0:
        w.emit(f"{{0}}.index_select({d}, {{1}})", x, places(w, t.shape[d], [count], x))
    elif kind == 1:
        shape = [rng.randint(1, n) if n else 0 for n in t.shape]
        w.emit(f"{{0}}.gather({d}, {{1}})", x, places(w, t.shape[d], shape, x))
    elif kind == 2:
        w.emit("{0}[{1}]", x, places(w, t.shape[0], [count], x))
    elif kind == 3 and t.dim() >= 2:
        w.emit("{0}[{1}, {2}]", x, places(w, t.shape[0], [count, 1], x), places(w, t.shape[1], [2], x))
    elif kind == 4 and t.dim() >= 3:
        w.emit("{0}[{1}, :, {2}]", x, places(w, t.shape[0], [count], x), places(w, t.shape[2], [count], x))
    elif kind == 5 and t.dim() == 2 and is_float(t):
        w.emit("F.embedding({1}, {0})", x, places(w, t.shape[0], [2, count], x))
    else:
        w.emit(f"{{0}}[..., {{1}} - {t.shape[-1]}]", x, places(w, t.shape[-1], [count], x))


def written(w: Writer) -> None:
    x = w.pick(with_rank(1, also=is_number))
    t, rng = w[x], w.rng
    d = rng.randrange(t.dim())
    n = t.shape[d]
    src = w.pick(lambda u: u.shape == t.shape and u.dtype is t.dtype)
    summed = "approximate" if is_float(t) else "exact"
    kind = rng.randint(0, 6)
    if kind == 0:
        w.emit(f"{{0}}.index_add({d}, {{1}}, {{2}})", x, places(w, n, [n], x), src, exactness=summed)  # type: ignore[arg-type]
    elif kind == 1:
        w.emit(f"{{0}}.index_copy({d}, {{1}}, {{2}})", x, places(w, n, [n], x, True), src)
    elif kind == 2:
        w.emit(f"{{0}}.scatter_add({d}, {{1}}, {{2}})", x, places(w, n, t.shape, x), src, exactness=summed)  # type: ignore[arg-type]
    elif kind == 3 and t.dim() == 1:
        w.emit("{0}.scatter(0, {1}, {2})", x, places(w, n, [n], x, True), src)
    elif kind == 4:
        at = places(w, t.shape[0], [3], x)
        w.emit("{0}.index_put(({1},), {2}[:1], accumulate=True)", x, at, src, exactness=summed)  # type: ignore[arg-type]
    elif kind == 5:
        w.emit(f"{{0}}.scatter_reduce({d}, {{1}}, {{2}}, 'amax')", x, places(w, n, t.shape, x), src)
    else:
        w.emit(f"{{0}}.slice_scatter({{1}}[{', '.join([':'] * d + ['1::2'])}], {d}, 1, None, 2)", x, src)


# --- in place, control flow -------------------------------------------------------------------------------------


def mutated(w: Writer) -> None:
    """Write an input, or a value through any name it has: a view of an input writes the input."""
    w.need("inplace")
    x = w.rng.choice(w.tensor_inputs()) if w.rng.random() < 0.6 else w.pick(anything)
    y = w.pick(lambda t: t.dtype is w[x].dtype) if w.rng.random() < 0.6 else w.number(x)
    form, exactness = w.rng.choice(
        [
            ("{0}.add_({1})", "rounded"),
            ("{0}.mul_({1})", "rounded"),
            ("{0}.mul_(2)", "rounded"),
            ("{0}.copy_({1})", "exact"),
            ("{0}.sub_({0})", "exact"),
            ("{0}.zero_()", "exact"),
            ("{0}[..., 0] = {1}", "exact"),
            ("{0}[1:] = 3", "exact"),
            ("{0}[::2].add_(1)", "rounded"),
            ("{0}.mT.add_({1})", "rounded"),
            ("{0}.copy_({0}.flip(0))", "exact"),
            ("{0}.clamp_(-1, 1)", "exact"),
            ("{0}.t_()", "exact"),
            ("{0}.relu_()", "exact"),
            ("{0}.fill_(2)", "exact"),
            ("{0}[..., :1] *= 2", "rounded"),
            ("{0}.neg_()", "exact"),
            ("{0}.unsqueeze_(0)", "exact"),
            ("{0}.tanh_()", "approximate"),
            ("{0}.masked_fill_({0} > 0, 1)", "exact"),
            ("{0}.squeeze_()", "exact"),
            ("{0}.div_(3)", "rounded"),
            ("{0} += {1}", "rounded"),
        ]
    )
    if not is_float(w[x]) and exactness == "rounded":
        exactness = "exact"
    w.emit_statement(form, x, y, exactness=exactness)  # type: ignore[arg-type]


def state(w: Writer) -> None:
    """A buffer that the module writes, or a parameter that it reads."""
    x = w.pick(with_rank(1, 3, lambda t: is_float(t) and t.numel() > 0))
    n = w[x].shape[-1]
    if w.rng.random() < 0.5:
        name = w.member(f"torch.nn.Parameter(torch.randn({n}))", w[x].dtype)
        w.emit("{0} * {1}", x, name, exactness="rounded")
        return
    name = w.member(f"torch.zeros({n})", w[x].dtype, "buffer")
    form = w.rng.choice(["{0}.add_(1)", "{0}.copy_(torch.ones_like({0}))", "{0}.mul_(0.5)"])
    w.emit_statement(form, name, exactness="rounded")
    w.emit("{0} + {1}", x, name, exactness="rounded")


def broken(w: Writer) -> None:
    w.need("breaks")
    w.breaks = True
    kind = w.rng.randint(0, 2)
    if kind == 0:
        w.emit_statement("print(end='')", exactness="exact", writes=False)
    elif kind == 1:
        w.emit_statement("torch._dynamo.graph_break()", exactness="exact", writes=False)
    else:
        x, y = w.pick(lambda t: is_int(t) or is_bool(t)), w.pick(is_float)
        w.emit("{0} * {1}.sum().item()", y, x, exactness="rounded")


def higher(w: Writer) -> None:
    """Functions of functions: checkpoints, transforms, hooks."""
    w.need("higher")
    x = w.pick(with_rank(1, also=is_float))
    inner = w.rng.choice(["t.sin() * t", "t.exp().sum(-1, keepdim=True) + t", "F.gelu(t)", "(t * t).softmax(-1)"])
    form = w.rng.choice(
        [
            f"torch.utils.checkpoint.checkpoint(lambda t: {inner}, {{0}}, use_reentrant=False)",
            f"torch.utils.checkpoint.checkpoint(lambda t: {inner}, {{0}}, use_reentrant=True)",
            f"torch.func.vmap(lambda t: {inner.replace('(-1', '(0')})({{0}}.reshape({{0}}.shape[0], -1))",
            f"torch.func.grad(lambda t: ({inner}).sum())({{0}})",
            f"torch.func.jvp(lambda t: {inner}, ({{0}},), (torch.ones_like({{0}}),))[1]",
        ]
    )
    w.emit(form, x, exactness="approximate")


def by_size(w: Writer) -> None:
    x = w.pick(with_rank(1))
    y = w.pick(lambda t: t.shape == w[x].shape)
    form = f"{{0}} if {{0}}.shape[0] > {w.rng.randint(0, 4)} else {{1}}"
    w.emit(form, x, y)


def by_number(w: Writer) -> None:
    x = w.pick(with_rank(1, also=is_float))
    form = w.rng.choice(
        [
            "{0} * {0}.shape[0]",
            "{0} / {0}.numel()",
            "{0} + torch.arange({0}.shape[-1], device={0}.device)",
            "{0}.reshape({0}.shape[0], -1)",
            "{0}.reshape(-1, {0}.shape[-1])",
            "{0}.sum(0) / {0}.size(0)",
            "{0}[:{0}.shape[0] // 2]",
            "torch.zeros({0}.shape[0], 2, device={0}.device)",
            "{0}[..., -{0}.shape[-1] :]",
            "{0}[..., -({0}.shape[-1] // 2) :]",
            "{0}[..., {0}.shape[-1] - 1 :]",
            "{0}[..., 1 - {0}.shape[-1] :]",
            "{0}[..., 1:-1]",
            "{0}.narrow(-1, -({0}.shape[-1] // 2), {0}.shape[-1] // 2)",
            "{0}.select(0, -{0}.shape[0])",
            "{0}.roll({0}.shape[0] // 2, 0)",
            "F.pad({0}, ({0}.shape[-1] // 2, 1))",
            "F.pad({0}, (2 - {0}.shape[-1], 1))",
            "torch.cat([{0}, {0}[: {0}.shape[0] // 2]])",
            "torch.stack([{0}[: {0}.shape[0] // 2], {0}[{0}.shape[0] - {0}.shape[0] // 2 :]])",
            "torch.arange(-{0}.shape[0], {0}.shape[0], device={0}.device)",
            "torch.full(({0}.shape[0],), {0}.shape[-1], device={0}.device)",
            "(-1) ** torch.arange({0}.shape[-1], device={0}.device) * {0}",
            "{0} * max({0}.shape[0] - 3, 0)",
            "{0} * ({0}.shape[0] % 3 - 1)",
        ]
    )
    w.emit(form, x, exactness="approximate")


def by_argument(w: Writer) -> None:
    """A whole number that the caller gives, and may give another of: a place, a count or a factor."""
    whole = [name for name, value in w.numbers.items() if type(value) is int]
    if not whole:
        raise Refused
    x = w.pick(with_rank(1, also=is_float))
    form = w.rng.choice(
        [
            "{0}[{1}]",
            "{0}[{1}:]",
            "{0}[:{1}]",
            "{0}[..., {1}::2]",
            "{0}.narrow(0, {1}, 1)",
            "{0}.select(-1, {1})",
            "{0}.roll({1}, 0)",
            "{0}.tril({1})",
            "torch.diagonal({0}, {1})",
            "F.pad({0}, ({1}, 1))",
            "{0} * {1}",
            "{0} * max({1}, 0)",
            "{0} + min({1}, 1)",
            "{0} * ({1} // 2) + {1} % 3",
            "{0} * abs({1})",
            "{0}.clamp(min={1})",
            "torch.where({0} > {1}, {0}, {0} * {1})",
            "torch.full((2,), {1}, device={0}.device)",
        ]
    )
    w.emit(form, x, w.rng.choice(whole), exactness="approximate")


STEPS: tuple[tuple[Callable[[Writer], None], int], ...] = (
    (exact_unary, 4),
    (rounded_unary, 4),
    (smooth_unary, 5),
    (integer_unary, 5),
    (binary, 6),
    (exact_binary, 4),
    (approximate_binary, 3),
    (integer_binary, 4),
    (logic, 1),
    (choice, 3),
    (cast, 4),
    (scalar_argument, 2),
    (view, 12),
    (joined, 2),
    (stacked, 1),
    (padded, 2),
    (total, 5),
    (total_typed, 1),
    (test_all, 1),
    (along, 4),
    (running, 1),
    (extreme, 4),
    (product, 3),
    (linear, 3),
    (convolution, 2),
    (norm, 2),
    (attention, 1),
    (pooled, 2),
    (dropped, 1),
    (read, 4),
    (written, 3),
    (mutated, 5),
    (state, 1),
    (broken, 1),
    (by_size, 1),
    (by_number, 4),
    (by_argument, 3),
    (higher, 1),
)
