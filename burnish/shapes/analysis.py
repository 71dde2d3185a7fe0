"""What the transfer functions of one analysis share: the padded symbols, names for messages, and states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.ir.dtypes import DType
from burnish.ir.expr import Dim
from burnish.ir.graph import Input, Map, Node, View
from burnish.shapes.content import Content, Need, Number, anything
from burnish.shapes.state import REAL, Digits, Padding, Refusal, Region, State

_MOST_REASONS = 6


@dataclass(frozen=True)
class Facts:
    """What is known of a graph besides itself. `names` are the inputs' names; `static` are the inputs that no call
    chooses (parameters, buffers); `ranges` are the least and the greatest number of such; `lines` is the source line
    that a node comes from."""

    names: Mapping[int, str] = field(default_factory=dict)
    static: frozenset[int] = frozenset()
    ranges: Mapping[int, tuple[Number, Number]] = field(default_factory=dict)
    lines: Mapping[int, str] = field(default_factory=dict)

    def name(self, position: int) -> str:
        name = self.names.get(position)
        return f"input {position} ({name})" if name else f"input {position}"


class Analysis:
    def __init__(self, padded: Mapping[str, str], fills: Mapping[int, Number], facts: Facts) -> None:
        self.padding = Padding(padded)
        self.fills = fills
        self.facts = facts
        self.states: dict[int, tuple[State, ...]] = {}
        self.unhidden: dict[int, tuple[State, ...]] = {}  # of nodes that may hide a NaN: without what that needs
        self.drawn = False  # whether a draw has taken another number of the stream than in a real run
        self.plans: dict[Any, Any] = {}  # of views, by what they depend on: equal blocks have equal views

    def state(self, node: Node) -> State:
        return self.states[node.id][0]

    # --- states -------------------------------------------------------------------------------------------------

    def refused(self, node: Node, reason: str) -> State:
        """A result whose real elements may differ."""
        operation = node.origin or type(node.op).__name__.lower()
        refusal = Refusal(operation, self.facts.lines.get(node.id, ""), reason)
        return State(tuple((d,) for d in node.shape), mixed=(refusal,))

    def spoilt(self, node: Node, operands: Sequence[State], position: int = 0) -> State | None:
        """The state of a result whose operands differ already; None if none does."""
        reasons = tuple(dict.fromkeys(r for s in operands for r in s.mixed))[:_MOST_REASONS]
        if not reasons:
            return None
        return State(tuple((d,) for d in node.types[position].shape), mixed=reasons)

    def made(
        self,
        node: Node,
        axes: Sequence[Digits | None],
        contents: Mapping[Region, Content],
        operands: Sequence[State] = (),
        needs: frozenset[Need] = frozenset(),
        position: Dim | None = None,
    ) -> State:
        """The state of a result whose real elements are the same in both runs."""
        first = contents.get(REAL)
        sure = first is not None and first.bits and first.is_exact and not first.needs
        if first is not None and sure and all(c == first for c in contents.values()):
            axes, contents = (None,) * len(axes), {REAL: first}  # one number everywhere, however it was made
            if type(first.low) is int and node.types[0].dtype in (DType.i64, DType.i32):
                position = first.low
        if self.padding.too_many(axes):
            return self.refused(node, "has more padded dimensions than are followed")
        return State(
            tuple(axes),
            contents,
            needs.union(*(s.needs for s in operands)),
            position=position,
            given=any(s.given for s in operands),
        )

    def unknown(self, node: Node, axes: Sequence[Digits | None], position: int = 0) -> dict[Region, Content]:
        return dict.fromkeys(self.padding.regions(axes), anything(node.types[position].dtype))

    def axes_as(self, node: Node, position: int = 0) -> tuple[Digits, ...]:
        """One digit for each dimension."""
        return tuple((d,) for d in node.types[position].shape)

    def full_axes(self, node: Node, position: int, axes: Sequence[Digits | None]) -> tuple[Digits, ...]:
        """The same with digits everywhere: a result is not constant where an operand is."""
        return tuple((d,) if a is None else a for a, d in zip(axes, node.types[position].shape, strict=True))

    def everywhere(self, node: Node, state: State) -> dict[Region, Content]:
        """A state's contents, for `full_axes` of a node."""
        return {r: state.within(r) for r in self.padding.regions(self.full_axes(node, 0, state.axes))}

    def input_of(self, node: Node) -> int | None:
        """The input that a node is a view or a copy of, its numbers unchanged."""
        while isinstance(node.op, View | Map):
            if isinstance(node.op, View) and node.op.fill is not None:
                return None
            if isinstance(node.op, Map) and node.op.fn != "cast":
                return None
            node = node.inputs[0]
        return node.op.position if isinstance(node.op, Input) else None
