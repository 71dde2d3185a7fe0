"""The saved tensors of a forward, as autograd's node returns them.

In eager every operation has its own node. A backward that does not use some results does not read the tensors saved for
them, which may have been changed in place. A later backward may use those results, if the two share no node. A compiled
graph is one node: autograd unpacks its saved tensors all at once, and frees them after the first backward. So a
backward with missing gradients declares which saved tensors it reads, and which are kept for a later backward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from burnish.runtime.program import restrided
from burnish.torch_private.aot import unpack


class State(NamedTuple):
    """The state of a tensor when a forward has read it."""

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
    """The layout in which a program saved a tensor and needs it back: a hook on saved tensors may return another
    layout."""

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
        """A placeholder of this form without memory."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


@dataclass(frozen=True)
class Turn:
    """A backward with missing gradients: the saved tensors that it reads, those that a later backward may read, and the
    tangents of that one."""

    read: frozenset[int]
    later: frozenset[int]
    open: frozenset[int]


@dataclass(frozen=True)
class Kept:
    """Saved tensors for a later backward. For a tensor that was changed before it could be kept: the error."""

    tensor: torch.Tensor | None
    error: RuntimeError | None
    state: State | None
    layout: Layout

    @staticmethod
    def of(slot: _Slot) -> Kept:
        try:
            x = slot.read()
        except RuntimeError as error:
            return Kept(None, error, None, Layout.of(slot.form()))
        return Kept(x, None, State.of(x), Layout.of(x))

    def read(self) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        assert self.tensor is not None and self.state is not None
        if not self.state.still_of(self.tensor):
            raise RuntimeError(self.state.changed(self.tensor))
        return self.tensor

    def nowhere(self) -> torch.Tensor:
        return self.layout.nowhere()


class OwnTensors:
    """The program's own saved tensors in the state of autograd's node: this many. With `layouts`, hooks act on them."""

    def __init__(self, count: int, layouts: Sequence[Layout] | None) -> None:
        self._count = count
        self._layouts = layouts
        self._turn: Turn | None = None  # of the running backward; None if no gradient is missing
        self._kept: list[Kept | Layout] | None = None  # set after a backward that another may follow
        self.open: frozenset[int] | None = None  # the tangents of that later backward; None before

    @contextlib.contextmanager
    def during(self, ctx: Any, turn: Turn | None, *, goes_on: bool) -> Iterator[None]:
        """The context of a backward. `goes_on`: the graph is retained."""
        self._turn = turn
        if turn is None or goes_on:
            yield
            return
        later, self.open = self._kept_after(ctx, turn), turn.open
        try:
            yield
        finally:
            self._kept = later

    def leave_nothing_out(self) -> None:
        self._turn = None

    def leave_unread(self, turn: Turn | None, *, goes_on: bool) -> None:
        """For a backward that reads no saved tensor."""
        if turn is not None and not goes_on:
            self.open = turn.open

    def of(self, ctx: Any) -> tuple[torch.Tensor, ...]:
        """The tensors as saved. Tensors that the turn does not read are placeholders."""
        if not self._count:
            return ()
        if self._turn is None:
            return self._all(ctx)
        read = self._turn.read
        if self._kept is None:
            if not read and not is_held(ctx):
                return tuple(torch.empty(0, device="meta") for _ in range(self._count))
            return tuple(slot.read() if k in read else slot.form() for k, slot in enumerate(self._slots(ctx)))
        if any(isinstance(x, Layout) for k, x in enumerate(self._kept) if k in read):
            return self._all(ctx)  # which raises: these have had theirs
        return tuple(x.read() if isinstance(x, Kept) and k in read else x.nowhere() for k, x in enumerate(self._kept))

    def _kept_after(self, ctx: Any, turn: Turn) -> list[Kept | Layout] | None:
        if self._kept is not None:
            return [x if isinstance(x, Layout) or k in turn.later else x.layout for k, x in enumerate(self._kept)]
        if not turn.open or not is_held(ctx):
            return None
        slots = enumerate(self._slots(ctx))
        return [Kept.of(slot) if k in turn.later else Layout.of(slot.form()) for k, slot in slots]

    def _all(self, ctx: Any) -> tuple[torch.Tensor, ...]:
        own: tuple[torch.Tensor, ...] = ctx.saved_tensors
        if self._layouts is None:
            return own
        return tuple(layout.restored(x) for layout, x in zip(self._layouts, own, strict=False))

    def _slots(self, ctx: Any) -> Sequence[_Slot]:
        try:
            return [_Unpacked(x) for x in self._all(ctx)]
        except RuntimeError as changed:
            if unpack is None or not is_held(ctx):  # one by one, that is: torch 2.11
                raise
            raw = ctx._raw_saved_tensors
            layouts = self._layouts if self._layouts is not None else [None] * len(raw)
            # Behind them, the inputs may be saved.
            return [_Packed(each, layout, changed) for each, layout in zip(raw, layouts, strict=False)]


def is_held(ctx: Any) -> bool:
    """Whether autograd still has what was saved."""
    try:
        return ctx._raw_saved_tensors is not None
    except RuntimeError:
        return False


class _Slot(Protocol):
    def read(self) -> torch.Tensor: ...

    def form(self) -> torch.Tensor:
        """A tensor of its form."""


class _Packed(NamedTuple):
    """A packed tensor of autograd's, where some are `changed`."""

    raw: Any
    layout: Layout | None
    changed: RuntimeError

    def read(self) -> torch.Tensor:
        try:
            x: torch.Tensor = unpack(self.raw)
        except RuntimeError:  # or a result of the graph, for which a change cannot be detected
            raise self.changed from None
        return x if self.layout is None else self.layout.restored(x)

    def form(self) -> torch.Tensor:
        found: torch.Tensor = self.raw.data if self.layout is None else self.layout.nowhere()
        return found


class _Unpacked(NamedTuple):
    tensor: torch.Tensor

    def read(self) -> torch.Tensor:
        return self.tensor

    def form(self) -> torch.Tensor:
        return self.tensor
