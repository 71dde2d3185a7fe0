"""Random small functions whose sizes vary, as text: one that is called safe and is not can be pasted and run."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import torch
import torch.nn.functional as F

from tests.shapes.cases import BATCH, SEQUENCE

Tensors = list[torch.Tensor]
_SCOPE = {"torch": torch, "F": F, "inf": math.inf, "nan": math.nan}
_SHAPES = [
    (SEQUENCE, 4), (BATCH, SEQUENCE, 4), (BATCH, SEQUENCE, 4), (BATCH, SEQUENCE), (BATCH, SEQUENCE), (SEQUENCE,),
    (BATCH, 1, SEQUENCE), (BATCH, 2, SEQUENCE, 3), (4,), (BATCH, 4), (SEQUENCE, SEQUENCE), (BATCH, 4, SEQUENCE),
]  # fmt: skip
LARGEST = 40_000


class Program:
    def __init__(self, inputs: Tensors, lines: list[str], results: list[str]) -> None:
        self.inputs, self.lines, self.results = inputs, lines, results

    @property
    def text(self) -> str:
        names = ", ".join(f"in{k}" for k in range(len(self.inputs)))
        body = [*self.lines, f"return [{', '.join(self.results)}]"]
        return "\n".join([f"def f({names}):", *("    " + line for line in body)])

    @property
    def function(self) -> Callable[..., list[torch.Tensor]]:
        scope: dict[str, Any] = dict(_SCOPE)
        exec(self.text, scope)
        made: Callable[..., list[torch.Tensor]] = scope["f"]
        return made

    def __str__(self) -> str:
        return "\n".join([self.text, *(f"in{k} = {t.dtype} {tuple(t.shape)}" for k, t in enumerate(self.inputs))])


class Writer:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.values: dict[str, torch.Tensor] = {}
        self.inputs = [self._input(k) for k in range(rng.randint(1, 3))]
        for k, t in enumerate(self.inputs):
            self.values[f"in{k}"] = t

    def _input(self, k: int) -> torch.Tensor:
        rng = self.rng
        made = torch.Generator().manual_seed(rng.randrange(2**31))
        kind = "float" if k == 0 else rng.choice(["float", "float", "bool", "bool", "mask", "ids", "lengths"])
        if kind == "lengths":
            return torch.randint(0, SEQUENCE + 1, (BATCH,), generator=made)
        if kind in ("bool", "mask"):
            shape = rng.choice([(BATCH, SEQUENCE), (SEQUENCE,), (BATCH, SEQUENCE), (SEQUENCE, SEQUENCE)])
            hit = torch.rand(shape, generator=made) < 0.7
            return hit if kind == "bool" else hit.to(torch.float64)
        if kind == "ids":
            return torch.randint(-3, 9, rng.choice([(BATCH, SEQUENCE), (SEQUENCE,)]), generator=made)
        return torch.randint(-8, 9, rng.choice(_SHAPES), generator=made).double() / 2

    def program(self) -> Program:
        for _ in range(self.rng.choice([2, 3, 4, 5, 6, 8, 10])):
            for _ in range(20):
                if self._step():
                    break
        made = [n for n in self.values if not n.startswith("in")] or list(self.values)
        results = [made[-1], *self.rng.sample(made, min(self.rng.randint(0, 2), len(made)))]
        return Program(self.inputs, self.lines, results)

    def pick(self, kind: str = "any", least: int = 0) -> str:
        def fits(t: torch.Tensor) -> bool:
            is_kind = {
                "any": True, "float": t.is_floating_point(), "int": t.dtype is torch.int64,
                "bool": t.dtype is torch.bool, "number": t.dtype is not torch.bool,
            }[kind]  # fmt: skip
            return is_kind and t.dim() >= least

        found = [n for n, t in self.values.items() if fits(t)]
        if not found:
            raise LookupError
        return self.rng.choice(found[-3:] if self.rng.random() < 0.5 else found)

    def _step(self) -> bool:
        try:
            text = self.rng.choice(_STEPS)(self)
            result = eval(text, dict(_SCOPE), dict(self.values))
        except (RuntimeError, IndexError, ValueError, TypeError, LookupError, ZeroDivisionError):
            return False
        if not isinstance(result, torch.Tensor) or result.numel() > LARGEST or result.dim() > 5:
            return False
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.values[name] = result
        return True

    def dim(self, name: str) -> int:
        rank = self.values[name].dim()
        if rank == 0:
            raise LookupError
        return self.rng.randrange(rank)


def unary(w: Writer) -> str:
    forms = """
        {0}.relu() {0}.tanh() ({0}).exp() {0}.log() {0}.sqrt() {0}.reciprocal() -{0} {0}.abs() {0}.sin() {0}.sigmoid()
        {0}*2 {0}+1 {0}*0 {0}.clamp(-1,2) {0}.isnan() {0}.abs().log1p() {0}*{0} F.gelu({0}) F.silu({0}) {0}.floor()
        ({0}*{0}+1).rsqrt() {0}.sign() {0}/3 {0}-1 {0}.isinf() {0}.nan_to_num() {0}.erf() 1/({0}+2) {0}**3 {0}%3
        {0}.clamp(min=0) {0}.atan() F.elu({0}) F.softplus({0}) {0}.abs()**0.5 {0}.cos() {0}.acos() {0}.trunc() {0}*1e9
        {0}.expm1() {0}.exp2() {0}.erfc() {0}.tan() {0}.asinh() {0}.round()
    """
    return w.rng.choice(forms.split()).format(w.pick("float"))


def binary(w: Writer) -> str:
    forms = ["{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})"]
    forms += ["torch.atan2({0}, {1})", "torch.fmax({0}, {1})", "torch.copysign({0}, {1})", "torch.hypot({0}, {1})"]
    return w.rng.choice(forms).format(w.pick("float"), w.pick("float"))


def whole(w: Writer) -> str:
    forms = ["{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} // {1}", "{0} % {1}", "{0} & {1}", "{0} | {1}", "~{0}"]
    forms += ["{0} // 2", "{0} % 3", "{0}.abs()", "-{0}", "{0}.clamp(0, 3)", "{0} + 1", "{0} // ({1}.abs() + 1)"]
    return w.rng.choice(forms).format(w.pick("int"), w.pick("int"))


def comparison(w: Writer) -> str:
    kind = w.rng.choice(["float", "int", "int"])
    x, y = w.pick(kind), w.pick(kind) if w.rng.random() < 0.6 else str(w.rng.choice([0, 1, -1, 2]))
    return f"{x} {w.rng.choice(['<', '<=', '>', '>=', '==', '!='])} {y}"


def logic(w: Writer) -> str:
    forms = ["{0} & {1}", "{0} | {1}", "{0} ^ {1}", "~{0}"]
    return w.rng.choice(forms).format(w.pick("bool"), w.pick("bool"))


def choice(w: Writer) -> str:
    number = w.rng.choice(["0.0", "1.0", "-inf", "inf", "-1e30", "nan"])
    forms = [
        "torch.where({0}, {1}, {2})",
        f"torch.where({{0}}, {{1}}, {number})",
        f"{{1}}.masked_fill({{0}}, {number})",
    ]
    forms += [f"{{1}}.masked_fill(~{{0}}, {number})", "{1} * {0}", "{1} + torch.where({0}, 0.0, -inf)"]
    mask = w.pick("bool")
    mask = w.rng.choice([mask, mask, f"{mask}[..., None]", f"{mask}.unsqueeze(1)"])
    return w.rng.choice(forms).format(mask, w.pick("float"), w.pick("float"))


def cast(w: Writer) -> str:
    return w.rng.choice(["{0}.double()", "{0}.float()", "{0}.bool()", "{0}.long()"]).format(
        w.pick(w.rng.choice(["int", "bool"]))
    )


def positions(w: Writer) -> str:
    x = w.pick("any", 1)
    d = w.dim(x)
    size = f"{x}.shape[{d}]"
    forms = [
        f"torch.arange({size})",
        f"torch.arange({size})[:, None]",
        f"torch.arange({size})[None] - torch.arange({size})[:, None]",
    ]
    forms += [
        f"torch.ones({size}, {size}, dtype=torch.bool).tril()",
        f"torch.arange({size})[None] <= torch.arange({size})[:, None]",
    ]
    forms += [f"torch.arange({size}).double()", f"torch.ones({size}).double()", f"torch.arange(1, {size} + 1)"]
    forms += [f"{x} * {size}", f"torch.arange({size} - 1, -1, -1)"]
    return w.rng.choice(forms)


def lengths(w: Writer) -> str:
    x, y = w.pick("any", 1), w.pick("int", 1)
    op = w.rng.choice(["<", "<=", ">", ">=", "=="])
    return f"torch.arange({x}.shape[{w.dim(x)}])[None] {op} {y}[:, None]"


def view(w: Writer) -> str:
    x = w.pick("any", 1)
    d, e = w.dim(x), w.dim(x)
    y = w.pick("any", 1)
    rank = w.values[x].dim()
    forms = [
        f"{{0}}.unsqueeze({d})", f"{{0}}.transpose({d}, {e})", f"{{0}}.transpose({d}, {e})", f"{{0}}.flip({d})",
        f"{{0}}.roll(1, {d})", "{0}.reshape(-1)", f"{{0}}.flatten({min(d, e)}, {max(d, e)})",
        f"{{0}}.flatten({min(d, e)}, {max(d, e)})", f"{{0}}.narrow({d}, 0, 2)", f"{{0}}.select({d}, 0)",
        f"{{0}}.select({d}, -1)", f"{{0}}.narrow({d}, 1, {{0}}.shape[{d}] - 1)", f"{{0}}.reshape({y}.shape)",
        f"{{0}}.narrow({d}, 0, {{0}}.shape[{d}] - 1)", "{0}[..., ::2]", "{0}[1:]", "{0}[:-1]", "{0}[None]",
        f"{{0}}.repeat({[w.rng.randint(1, 2) for _ in range(rank)]})", f"{{0}}.repeat_interleave(2, {d})",
        f"{{0}}.unfold({d}, 2, 1)", f"{{0}}.unfold({d}, 2, 2)", f"{{0}}.expand_as({y})", "{0}.diagonal(0, -2, -1)",
        f"{{0}}.reshape({y}.shape[0], -1)", "{0}.reshape(-1, {0}.shape[-1])", "{0}.mT", "{0}.tril()", "{0}.triu()",
        f"{{0}}.reshape({y}.shape[0], -1, {{0}}.shape[-1])", f"{{0}}.chunk(2, {d})[0]", "{0}.squeeze()",
        f"{{0}}.movedim({d}, 0)", f"{{0}}.reshape({y}.shape)", f"{{0}}.unflatten({d}, (2, -1))",
        f"{{0}}.unflatten({d}, (-1, 2))",
    ]  # fmt: skip
    return w.rng.choice(forms).format(x)


def padded(w: Writer) -> str:
    x = w.pick("number", 1)
    pad = [w.rng.choice([0, 1, 2, -1]) for _ in range(2 * w.rng.randint(1, min(w.values[x].dim(), 2)))]
    return f"F.pad({x}, {pad}, value={w.rng.choice([0, 0, 1])})"


def joined(w: Writer) -> str:
    x = w.pick("any", 1)
    y = w.pick("any", 1)
    return f"torch.{w.rng.choice(['cat', 'stack'])}([{x}, {y}], {w.dim(x)})"


def total(w: Writer) -> str:
    x = w.pick("any", 1)
    d, keep = w.dim(x), w.rng.random() < 0.4
    forms = ["{0}.sum({1}, {2})", "{0}.sum({1}, {2})", "{0}.amax({1}, {2})", "{0}.amin({1}, {2})", "{0}.any({1}, {2})"]
    forms += ["{0}.all({1}, {2})", "{0}.mean({1}, {2})", "{0}.argmax({1}, {2})", "{0}.argmin({1}, {2})"]
    forms += [
        "{0}.prod({1}, {2})",
        "{0}.count_nonzero({1})",
        "{0}.sum()",
        "{0}.amax()",
        "{0}.var({1})",
        "{0}.max({1})[1]",
    ]
    return w.rng.choice(forms).format(x, d, keep)


def along(w: Writer) -> str:
    x = w.pick("float", 1)
    forms = ["{0}.softmax({1})", "{0}.softmax({1})", "{0}.log_softmax({1})", "{0}.logsumexp({1})", "{0}.cumsum({1})"]
    forms += [
        "{0}.cumprod({1})",
        "{0}.cummax({1})[0]",
        "{0}.sort({1})[0]",
        "{0}.norm(dim={1})",
        "F.normalize({0}, dim={1})",
    ]
    forms += ["{0}.logcumsumexp({1})", "{0}.argsort({1})", "{0}.topk(1, {1})[0]", "F.layer_norm({0}, ({0}.shape[-1],))"]
    forms += ["{0} - {0}.amax({1}, True)", "{0} - {0}.mean({1}, True)", "({0} - {0}.amax({1}, True)).exp()"]
    return w.rng.choice(forms).format(x, w.dim(x))


def product(w: Writer) -> str:
    x, y = w.pick("float", 2), w.pick("float", 2)
    forms = [
        "{0} @ {1}",
        "{0} @ {1}.mT",
        "{0}.mT @ {1}",
        "{0} @ {0}.mT",
        "{0}.mT @ {0}",
        "({0} @ {0}.mT).softmax(-1) @ {0}",
    ]
    forms += ["F.linear({0}, torch.ones(3, 4, dtype=torch.float64))", "{0}[:, 0] @ {1}"]
    return w.rng.choice(forms).format(x, y)


def attention(w: Writer) -> str:
    x, y, m = w.pick("float", 3), w.pick("float", 3), w.rng.choice(list(w.values))
    heads, others = f"{x}[:, None]" if w.values[x].dim() == 3 else x, f"{y}[:, None]" if w.values[y].dim() == 3 else y
    how = w.rng.choice(["is_causal=True", "is_causal=True", f"attn_mask={m}[:, None, None]", f"attn_mask={m}", ""])
    return f"F.scaled_dot_product_attention({heads}, {others}, {others}, {how})"


def lookup(w: Writer) -> str:
    x, i = w.pick("any", 1), w.pick("int")
    d = w.dim(x)
    index = w.rng.choice([i, f"{i}.clamp(0, 1)", f"{i}.abs() % 3"])
    forms = [
        f"{{0}}.index_select({d}, {{1}})",
        f"{{0}}.gather({d}, {{1}})",
        "{0}[{1}]",
        "F.embedding({1}, {0})",
        "{0}[:, {1}]",
    ]
    return w.rng.choice(forms).format(x, index)


def written(w: Writer) -> str:
    x, i, y = w.pick("float", 1), w.pick("int"), w.pick("float", 1)
    d = w.dim(x)
    index = w.rng.choice([f"{i}.clamp(0, 1)", f"{i}.abs() % 3", f"torch.arange({y}.shape[0])"])
    forms = [
        f"{{0}}.scatter_add({d}, {{1}}, {{2}})",
        f"{{0}}.index_add({d}, {{1}}, {{2}})",
        f"{{0}}.scatter({d}, {{1}}, {{2}})",
    ]
    forms += [f"{{0}}.select_scatter({{2}}, {d}, 0)", f"{{0}}.slice_scatter({{2}}, {d}, 1)"]
    forms += [f"{{0}}.slice_scatter({{2}}, {d}, 0, {{2}}.shape[{d}])", f"{{0}}.index_copy({d}, {{1}}, {{2}})"]
    return w.rng.choice(forms).format(x, index, y)


def windows(w: Writer) -> str:
    x = w.pick("float", 2)
    forms = ["F.conv1d({0}, torch.ones(3, {0}.shape[1], 3, dtype=torch.float64), padding={1})"]
    forms += [
        "F.max_pool1d({0}, 2)",
        "F.avg_pool1d({0}, 2)",
        "F.conv1d(F.pad({0}, (2, 0)), torch.ones(3, 4, 3, dtype=torch.float64))",
    ]
    forms += ["F.conv1d({0}, torch.ones(4, 1, 3, dtype=torch.float64), padding={1}, groups=4)"]
    return w.rng.choice(forms).format(w.rng.choice([x, f"{x}.mT"]), w.rng.choice([0, 1, 2]))


def loss(w: Writer) -> str:
    x, i = w.pick("float", 2), w.pick("int", 1)
    forms = ["F.cross_entropy({0}.flatten(0, -2), ({1}.abs() % 4).flatten())", "F.mse_loss({0}, {0} * 0)"]
    forms += ["F.cross_entropy({0}.flatten(0, -2), torch.where({1} > 0, {1} % 4, -100).flatten())"]
    return w.rng.choice(forms).format(x, i)


_STEPS: list[Callable[[Writer], str]] = [
    unary, unary, unary, binary, binary, whole, comparison, comparison, logic, choice, choice, choice, cast, positions,
    positions, lengths, view, view, view, view, padded, joined, total, total, total, along, along, product, product,
    attention, lookup, lookup, written, windows, loss,
]  # fmt: skip
