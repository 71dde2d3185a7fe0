"""Weights in 8 or 4 bits: `quantize(model)` puts small integers and scales in place of the matrices of linear layers.

A decoding step is bound by reading its matrices, so a quarter of the bytes gives up to four times the speed. Each
layer's forward is plain torch code that dequantises the matrix. Eager runs it unchanged; in a compiled step on a GPU
the product dequantises each element as it reads it.

8 bits: one scale for each row, none of the range below zero wasted. 4 bits: a scale and a least value for each `group`
of neighbours in a row; a byte holds one element of the first half of the row (its low bits) and the one that far into
the second half (its high bits), so that reading bytes in order reads the elements of each half in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from burnish.errors import UsageError

_LEAST_GROUP = 16


class EightBitLinear(torch.nn.Module):
    """A linear layer whose matrix is `values * scale`, a scale for each row."""

    def __init__(self, values: torch.Tensor, scale: torch.Tensor, bias: torch.nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = values.shape
        self.values = _fixed(values)
        self.scale = _fixed(scale)
        self.bias = bias

    @staticmethod
    def of(linear: torch.nn.Linear) -> EightBitLinear:
        weight = linear.weight.detach()
        wide = weight.float()
        scale = _steps(wide.abs().amax(1) / 127, weight.dtype)
        values = (wide / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        return EightBitLinear(values, scale, linear.bias)

    def dequantized(self) -> torch.Tensor:
        return self.values.float() * self.scale.float()[:, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.linear(x, self.values.to(x.dtype)) * self.scale
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class FourBitLinear(torch.nn.Module):
    """A linear layer whose matrix is `value * scale + least`, a scale and a least value for each group of a row."""

    def __init__(
        self, packed: torch.Tensor, scale: torch.Tensor, least: torch.Tensor, bias: torch.nn.Parameter | None
    ) -> None:
        super().__init__()
        self.out_features, half = packed.shape
        self.in_features = 2 * half
        self.group = self.in_features // scale.shape[1]
        self.packed = _fixed(packed)
        self.scale = _fixed(scale)
        self.least = _fixed(least)
        self.bias = bias

    @staticmethod
    def of(linear: torch.nn.Linear, group: int) -> FourBitLinear:
        weight = linear.weight.detach()
        rows, columns = weight.shape
        groups = weight.float().view(rows, columns // group, group)
        least, most = groups.amin(-1), groups.amax(-1)
        scale = _steps((most - least) / 15, weight.dtype)
        least = least.to(weight.dtype)
        steps = (groups - least.float()[..., None]) / scale.float()[..., None]
        low, high = steps.round().clamp(0, 15).to(torch.uint8).view(rows, columns).chunk(2, 1)
        return FourBitLinear(low | (high << 4), scale, least, linear.bias)

    def dequantized(self) -> torch.Tensor:
        return self._matrix(torch.float32)

    def _matrix(self, dtype: torch.dtype) -> torch.Tensor:
        halves = []
        for n, values in enumerate((self.packed & 15, self.packed >> 4)):
            grouped = values.view(self.out_features, -1, self.group).to(dtype)
            scale, least = (t.to(dtype).chunk(2, 1)[n].unsqueeze(-1) for t in (self.scale, self.least))
            halves.append((grouped * scale + least).view(self.out_features, -1))
        return torch.cat(halves, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._matrix(x.dtype), self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, group={self.group}"


def _steps(wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Steps that can be divided by; a row of zeros has one, too."""
    return wide.clamp(min=torch.finfo(dtype).smallest_normal).to(dtype)


def _fixed(values: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values.contiguous(), requires_grad=False)


@dataclass(frozen=True)
class QuantizationReport:
    """The result of `quantize`. `errors` has, for each layer, the norm of its matrix's error relative to the matrix's
    norm."""

    bits: int
    bytes_before: int
    bytes_after: int
    errors: dict[str, float] = field(default_factory=dict)
    left: tuple[str, ...] = ()  # linear layers that are as they were

    @property
    def error(self) -> float:
        """The greatest of the errors."""
        return max(self.errors.values(), default=0.0)

    def __str__(self) -> str:
        sizes = f"{self.bytes_before / 1e6:.1f} MB became {self.bytes_after / 1e6:.1f} MB"
        left = f"; {len(self.left)} left as they were" if self.left else ""
        return f"{len(self.errors)} matrices in {self.bits} bits: {sizes}, relative error up to {self.error:.2g}{left}"


@torch.no_grad()
def quantize(model: torch.nn.Module, bits: int = 8, group: int = 128, skip: Sequence[str] = ()) -> QuantizationReport:
    """Put the matrices of the model's linear layers into 8 or 4 bits, in place; compile it afterwards.

    A head that shares its matrix with the embedding gets one of its own; the embedding stays. Layers whose names
    contain one of `skip` stay, and so do those whose rows cannot be cut into two halves of whole groups, however small
    a group gets. A state dict saved from a quantised model is loaded into one that was quantised in the same way."""
    if bits not in (4, 8):
        raise UsageError(f"quantize: bits is {bits}; 8 and 4 are what there is")
    if group < _LEAST_GROUP or group & (group - 1):
        raise UsageError(f"quantize: group is {group}; it must be a power of two, {_LEAST_GROUP} at least")
    errors: dict[str, float] = {}
    left: list[str] = []
    before = after = 0
    for name, linear in list(_linears(model)):
        small = None if any(part in name for part in skip) else _quantized(linear, bits, group)
        if small is None:
            left.append(name)
            continue
        small.train(linear.training)
        errors[name] = _relative(small.dequantized(), linear.weight)
        before += linear.weight.numel() * linear.weight.element_size()
        after += sum(p.numel() * p.element_size() for n, p in small.named_parameters() if n != "bias")
        _put(model, name, small)
    _untie_head(model)
    return QuantizationReport(bits, before, after, errors, tuple(left))


def _linears(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Linear]]:
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear:
            yield name, module


def _quantized(linear: torch.nn.Linear, bits: int, group: int) -> EightBitLinear | FourBitLinear | None:
    if not linear.weight.is_floating_point() or linear.weight.is_meta:
        return None
    if bits == 8:
        return EightBitLinear.of(linear)
    while group >= _LEAST_GROUP and linear.in_features % (2 * group):
        group //= 2
    return FourBitLinear.of(linear, group) if group >= _LEAST_GROUP else None


def _put(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def _untie_head(model: Any) -> None:
    """A head with its own matrix must not be tied again when the model is saved or loaded."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if isinstance(head, EightBitLinear | FourBitLinear) and getattr(model.config, "tie_word_embeddings", False):
        model.config.tie_word_embeddings = False


def _relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    wide = wanted.float()
    return float((found.float() - wide).norm() / wide.norm().clamp(min=1e-30))


@dataclass(frozen=True)
class LogitError:
    """How far a model's logits are from another's: the norm of the difference against that of the other's, about
    their mean, and the share of places where both say the same token."""

    relative: float
    agreement: float


@torch.no_grad()
def quantization_error(quantized: Any, original: Any, **inputs: torch.Tensor) -> LogitError:
    """The error of a quantised model against the one it was made from, over the places of one batch of inputs."""
    return logit_error(*(model(**inputs).logits for model in (quantized, original)))


def logit_error(found: torch.Tensor, wanted: torch.Tensor) -> LogitError:
    found, wanted = found.float(), wanted.float()
    centred = wanted - wanted.mean(-1, keepdim=True)
    difference = found - found.mean(-1, keepdim=True) - centred
    same = (found.argmax(-1) == wanted.argmax(-1)).float().mean()
    return LogitError(float(difference.norm() / centred.norm().clamp(min=1e-30)), float(same))
