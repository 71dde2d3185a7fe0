"""A compiled graph's assumptions about its inputs: data that is printed, part of every key, and checked.

Compiled code is made for inputs of certain types, sizes, strides, devices and aliasing. All these facts are stated here
and nowhere else. A call that violates one is served by eager and counted. The native checks before each call:

- open calls: Dynamo's guards check types, sizes, strides, devices and gradients; `runtime/host/checks.py` checks the
  rest: the aliasing of written inputs, and storage offsets where they matter;
- sealed calls: `runtime/host/checks.py` checks everything, for arguments and for the module's own tensors.

`Assumptions.unmet` is the reference implementation in plain Python; the native check (`native/host/assumed.h`) is
tested against it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from burnish.ir.expr import Dim, Div, Expr, Extreme, Mod, Sym, evaluate, symbols

PLAIN = "Tensor"  # plain tensors, fully described by their memory: Tensor, Parameter, Buffer
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True)
class TensorInput:
    name: str  # where it comes from, as Dynamo writes it
    kind: str  # its class: PLAIN, or the name of a subclass, which has no other assumptions
    dtype: torch.dtype
    device: torch.device
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: int | None = None  # its storage offset; None: any
    negative: bool = False  # its memory holds the negatives of its values
    conjugate: bool = False
    requires_grad: bool = False
    written: bool = False  # a call writes it: it must not overlap another input or itself

    def __str__(self) -> str:
        sizes, strides = (", ".join(map(str, dims)) for dims in (self.shape, self.strides))
        marks = [self.kind] if self.kind != PLAIN else []
        marks += ["lies apart from the others"] if self.written else []
        marks += [f"begins at {self.offset}"] if self.offset is not None else []
        marks += [
            mark
            for mark, holds in (
                ("negative", self.negative),
                ("conjugate", self.conjugate),
                ("requires grad", self.requires_grad),
            )
            if holds
        ]
        kind = str(self.dtype).removeprefix("torch.")
        return f"{kind}[{sizes}] by ({strides}) on {self.device}{''.join(f', {mark}' for mark in marks)}"


@dataclass(frozen=True)
class NumberInput:
    name: str
    value: Dim  # a symbol, or the very number

    def __str__(self) -> str:
        return f"int {self.value}"


@dataclass(frozen=True)
class OtherInput:
    """Neither a tensor nor a size: the only assumption is that it is not a tensor."""

    name: str

    def __str__(self) -> str:
        return "no tensor"


Input = TensorInput | NumberInput | OtherInput


@dataclass(frozen=True)
class Assumptions:
    """The assumptions of one graph, in the order of its inputs."""

    inputs: tuple[Input, ...]
    records_gradients: bool = False  # captured in grad mode: the computation depends on which inputs require a gradient

    def __str__(self) -> str:
        width = max((len(each.name) for each in self.inputs), default=0)
        lines = [f"{each.name:<{width}}  {each}" for each in self.inputs]
        lines += [f"{symbol.name} >= {symbol.lo}" for symbol in self._symbols() if symbol.lo > 0]
        return "\n".join(lines)

    def key(self) -> str:
        """A key of the assumptions, independent of the inputs' names."""
        return "; ".join(
            map(str, (*self.inputs, *(f"{s.name} >= {s.lo}" for s in self._symbols()), self.records_gradients))
        )

    def _symbols(self) -> list[Sym]:
        found = {s for dim in self._dims() if isinstance(dim, Expr) for s in symbols(dim)}
        return sorted(found, key=lambda symbol: symbol.name)

    def _dims(self) -> Iterator[Dim]:
        for each in self.inputs:
            if isinstance(each, TensorInput):
                yield from (*each.shape, *each.strides)
            elif isinstance(each, NumberInput):
                yield each.value

    @property
    def beyond_guards(self) -> bool:
        """Whether some assumption is not covered by Dynamo's guards."""
        return any(isinstance(x, TensorInput) and (x.written or x.offset is not None) for x in self.inputs)

    @property
    def is_plain(self) -> bool:
        """Whether all tensors are plain, so that no property is checked by guards only."""
        return all(x.kind == PLAIN for x in self.inputs if isinstance(x, TensorInput))

    def with_offsets(self, values: Sequence[Any]) -> Assumptions:
        """Tensors must begin where these do in their storage."""
        fixed = [
            dataclasses.replace(x, offset=int(value.storage_offset()))
            if isinstance(x, TensorInput) and x.kind == PLAIN
            else x
            for x, value in zip(self.inputs, values, strict=True)
        ]
        return dataclasses.replace(self, inputs=tuple(fixed))

    # -- the check -----------------------------------------------------------------------------------------------

    def unmet(self, args: Sequence[Any]) -> str:
        """The first assumption that does not hold of a call's inputs, in words; "" if all do."""
        if len(args) != len(self.inputs):
            return f"{len(args)} inputs, not {len(self.inputs)}"
        for expected, x in zip(self.inputs, args, strict=True):
            if why := self._unlike(expected, x):
                return f"{expected.name} {why}"
        return self._sizes_unmet(args) or self.unmet_beyond_guards(args)

    def unmet_beyond_guards(self, args: Sequence[Any]) -> str:
        for expected, x in zip(self.inputs, args, strict=True):
            offset = expected.offset if isinstance(expected, TensorInput) else None
            if offset is not None and x.storage_offset() != offset:
                return f"{expected.name} begins at {x.storage_offset()} in its storage, not at {offset}"
        places = [memory_of(x) if isinstance(x, torch.Tensor) else None for x in args]
        for k, expected in enumerate(self.inputs):
            if not isinstance(expected, TensorInput) or not expected.written:
                continue
            if places[k] is not None and meets_itself(args[k].shape, args[k].stride()):
                return f"{expected.name} is written and its elements share memory"
            for j, place in enumerate(places):
                if j != k and overlap(places[k], place):
                    return f"{expected.name} is written and overlaps {self.inputs[j].name} in memory"
        return ""

    def _unlike(self, expected: Input, x: Any) -> str:
        if isinstance(expected, NumberInput):
            return "" if type(x) is int else f"is a {type(x).__name__}, not an int"
        if isinstance(expected, OtherInput):
            return "is a tensor" if isinstance(x, torch.Tensor) else ""
        if not isinstance(x, torch.Tensor):
            return f"is a {type(x).__name__}, not a tensor"
        if class_of(x) != expected.kind:
            return f"is a {class_of(x)}, not a {expected.kind}"
        if expected.kind != PLAIN:
            return ""
        if x.layout is not torch.strided:
            return f"is {x.layout}"
        if x.dtype != expected.dtype:
            return f"is {x.dtype}, not {expected.dtype}"
        if not _same_device(x.device, expected.device):
            return f"is on {x.device}, not {expected.device}"
        if x.is_neg() != expected.negative or x.is_conj() != expected.conjugate:
            return "is lazily negated or conjugated in another way"
        if x.dim() != len(expected.shape):
            return f"has {x.dim()} dimensions, not {len(expected.shape)}"
        if self.records_gradients and x.requires_grad != expected.requires_grad:
            return f"{'requires' if x.requires_grad else 'does not require'} a gradient"
        return ""

    def _sizes_unmet(self, args: Sequence[Any]) -> str:
        """Symbols are bound by the inputs that are just a symbol; everything else must follow."""
        values: dict[str, int] = {}
        for _, expected, found in self._sizes(args):
            if (symbol := bare_symbol(expected)) is not None:
                values.setdefault(symbol.name, found)
        for symbol in self._symbols():
            if values.get(symbol.name, symbol.lo) < symbol.lo:
                return f"the size {symbol.name} is {values[symbol.name]}, below {symbol.lo}"
        for name, expected, found in self._sizes(args):
            known = not isinstance(expected, Expr) or all(s.name in values for s in symbols(expected))
            if known and (wanted := evaluate(expected, values)) != found:
                return f"{name} has a size or stride of {found}, not {wanted}"
        return ""

    def _sizes(self, args: Sequence[Any]) -> Iterator[tuple[str, Dim, int]]:
        for expected, x in zip(self.inputs, args, strict=True):
            if isinstance(expected, NumberInput):
                yield expected.name, expected.value, x
            elif isinstance(expected, TensorInput) and expected.kind == PLAIN:
                for size, found in zip(expected.shape, x.shape, strict=True):
                    yield expected.name, size, found
                for size, stride, found in zip(expected.shape, expected.strides, x.stride(), strict=True):
                    if size != 1:  # the stride of a single element says nothing
                        yield expected.name, stride, found


class AssumptionUnmet(Exception):
    """A compiled graph's assumptions do not hold for these inputs. Nothing has run: eager serves the call."""


def class_of(x: torch.Tensor) -> str:
    return PLAIN if type(x) in _PLAIN_CLASSES else type(x).__name__


def bare_symbol(dim: Dim) -> Sym | None:
    """The symbol, if a size is just that."""
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        ((factors, coefficient),) = dim.terms.items()
        if coefficient == 1 and len(factors) == 1 and isinstance(factors[0], Sym):
            return factors[0]
    return None


def is_polynomial(dim: Dim) -> bool:
    """Whether a size is made of symbols by adding and multiplying alone."""
    if not isinstance(dim, Expr):
        return True
    return not any(isinstance(factor, Div | Mod | Extreme) for factors in dim.terms for factor in factors)


def _same_device(a: torch.device, b: torch.device) -> bool:
    return a.type == b.type and (a.index or 0) == (b.index or 0)


# -- memory -------------------------------------------------------------------------------------------------------

Place = tuple[int, int]  # addresses: of the first byte, and of the one behind the last


def memory_of(x: torch.Tensor) -> Place | None:
    """The bytes between the first and the last element; None where there are none."""
    if class_of(x) != PLAIN or x.layout is not torch.strided or x.numel() == 0:
        return None
    steps = sum((d - 1) * s for d, s in zip(x.shape, x.stride(), strict=True))
    start = x.data_ptr()
    return start, start + (steps + 1) * x.itemsize


def meets_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements may share memory: some dimension's stride is smaller than the span of the narrower ones."""
    if 0 in shape:
        return False
    reach = 0
    for stride, size in sorted((s, d) for d, s in zip(shape, strides, strict=True) if d != 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def overlap(a: Place | None, b: Place | None) -> bool:
    return a is not None and b is not None and a[0] < b[1] and b[0] < a[1]
