"""What a forward has saved for its backward, as autograd's node gives it back.

In eager every operation has a node of its own. A backward that leaves results out does not look at what was saved for
these: it may have been changed in place. And a later backward may come for them, if both share nothing. A compiled
graph is one node, whose tensors autograd unpacks all at once, and lets go after the first backward. So a backward that
leaves something out says which of them it reads, and which are kept for a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from burnish.runtime.program import restrided


class State(NamedTuple):
    """A tensor's, when a forward has read it."""

    version: int | None  # inference tensors have none
    shape: torch.Size

    @staticmethod
    def of(x: torch.Tensor) -> State:
        return State(None if x.is_inference() else x._version, x.shape)

    def still_of(self, x: torch.Tensor) -> bool:
        return self == State.of(x)

    def changed(self, x: torch.Tensor) -> str:
        """As autograd says it."""
        told = f"[{x.type()} {list(x.shape)}] is at version {State.of(x).version}; expected version {self.version}"
        return (
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{told} instead."
        )


@dataclass(frozen=True)
class Layout:
    """How a program has saved a tensor, and wants it back: a hook on saved tensors may give back another."""

    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    strides: tuple[int, ...]

    @staticmethod
    def of(x: torch.Tensor) -> Layout:
        return Layout(x.dtype, x.device, x.shape, x.stride())

    def restored(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.device, self.dtype)
        if x.shape != self.shape:
            raise RuntimeError(f"a hook on saved tensors gave {list(x.shape)} back for {list(self.shape)}")
        return restrided(x, self.shape, self.strides)

    def nowhere(self) -> torch.Tensor:
        """A tensor of this form, in no memory."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


@dataclass(frozen=True)
class Turn:
    """A backward that leaves something out: the saved tensors that it reads, those that a later one may, and for which
    tangents that would be."""

    read: frozenset[int]
    later: frozenset[int]
    open: frozenset[int]


@dataclass(frozen=True)
class Kept:
    """For a later backward, of a tensor that was changed before it could be kept the error that says so."""

    tensor: torch.Tensor | None
    error: RuntimeError | None
    state: State | None
    layout: Layout

    @staticmethod
    def of(slot: Any, layout: Layout | None) -> Kept:
        try:
            x = _unpacked(slot, layout)
        except RuntimeError as error:
            return Kept(None, error, None, layout or Layout.of(slot.data))
        return Kept(x, None, State.of(x), Layout.of(x))

    def read(self) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        assert self.tensor is not None and self.state is not None
        if not self.state.still_of(self.tensor):
            raise RuntimeError(self.state.changed(self.tensor))
        return self.tensor


class OwnTensors:
    """What a program saves beside autograd's node, whose state this is. With `layouts` there are hooks on it."""

    def __init__(self, layouts: Sequence[Layout] | None) -> None:
        self._layouts = layouts
        self._kept: list[Kept | Layout] | None = None  # since there was a backward that another may follow
        self.open: frozenset[int] | None = None  # tangents for which it may; None before
        self.turn: Turn | None = None  # of the backward that runs; None if it leaves nothing out

    def of(self, ctx: Any, *, goes_on: bool) -> tuple[torch.Tensor, ...]:
        """As it was saved. What the turn does not read has its form alone. `goes_on`: the graph is retained."""
        if self.turn is None:
            return self._all(ctx)
        if not goes_on:
            self.open = self.turn.open
        if self._kept is None:
            return self._first(ctx, self.turn, goes_on)
        if any(isinstance(x, Layout) for k, x in enumerate(self._kept) if k in self.turn.read):
            return self._all(ctx)  # which raises: these have had theirs
        found = tuple(
            x.nowhere() if isinstance(x, Layout) else x.read() if k in self.turn.read else x.layout.nowhere()
            for k, x in enumerate(self._kept)
        )
        if not goes_on:
            later = self.turn.later
            self._kept = [x if isinstance(x, Layout) or k in later else x.layout for k, x in enumerate(self._kept)]
        return found

    def _all(self, ctx: Any) -> tuple[torch.Tensor, ...]:
        own: tuple[torch.Tensor, ...] = ctx.saved_tensors
        if self._layouts is None:
            return own
        return tuple(layout.restored(x) for layout, x in zip(self._layouts, own, strict=False))

    def _first(self, ctx: Any, turn: Turn, goes_on: bool) -> tuple[torch.Tensor, ...]:
        slots = ctx._raw_saved_tensors
        layouts = self._layouts if self._layouts is not None else [None] * len(slots)
        pairs = list(zip(slots, layouts, strict=False))  # behind them, the inputs may be saved
        found = tuple(
            _unpacked(slot, layout) if k in turn.read else slot.data if layout is None else layout.nowhere()
            for k, (slot, layout) in enumerate(pairs)
        )
        if turn.later and not goes_on:
            self._kept = [
                Kept.of(slot, layout) if k in turn.later else Layout.of(found[k])
                for k, (slot, layout) in enumerate(pairs)
            ]
        return found


def _unpacked(slot: Any, layout: Layout | None) -> torch.Tensor:
    x: torch.Tensor = slot.unpack()
    return x if layout is None else layout.restored(x)
