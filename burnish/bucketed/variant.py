"""One compiled size: a program for padded arguments, with the guards under which it may serve."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from burnish.bucketed.form import Call, Shapes
from burnish.bucketed.results import Slicing
from burnish.capture.entry.entrance import Entrance
from burnish.torch_private.dynamo import set_eval_frame
from burnish.trust.whole_call import WholeCallRace

_MOST_SIZES = 4096  # remembered


@dataclass(eq=False)
class Contest:
    """The race of calls of which equal shares are padding: the more padding, the sooner eager is faster."""

    race: WholeCallRace | None = None
    served: str = "compiled"


@dataclass(eq=False)
class Variant:
    """`code` is of an entry in Dynamo's cache, which may be emptied at any time. It was compiled while the guards of
    the traced graph held for padded arguments and for the call's own, so as long as its own guards pass, the module's
    state is what it was then. What the traced graph's guards say of sizes is checked once for each set of sizes, which
    `slicings` remembers."""

    shapes: Shapes
    code: types.CodeType
    run: Callable[..., Any]
    slicings: dict[Shapes, Slicing | None] = field(default_factory=dict)  # None: the sizes are the variant's own
    contests: dict[int, Contest] = field(default_factory=dict)  # by how much of a call is not padding, in quarters
    calls: int = 0
    padded_calls: int = 0
    is_stale: bool = False  # no call has been routed to it since buckets were planned anew

    def holds(self, entrance: Entrance, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether its guards pass for a call, padded as it asks."""
        entry, values = entrance.entry_of(self.code), entrance.locals_of(args, kwargs)
        return entry is not None and values is not None and bool(entry.guard_manager.check(values))

    def call(self, call: Call) -> Any:
        prior = set_eval_frame(None)  # an outer compiler must not trace this code
        try:
            return self.run(*call.args, **call.kwargs)
        finally:
            set_eval_frame(prior)

    @property
    def served(self) -> str:
        found = {contest.served for contest in self.contests.values()}
        return "compiled" if not found else found.pop() if len(found) == 1 else " and ".join(sorted(found))

    def share(self, shapes: Shapes) -> int:
        """How much of a call of these sizes is not padding, in quarters; 5 if all of it is."""
        if shapes == self.shapes:
            return 5
        useful = sum(shape.numel() for shape in shapes)
        return math.ceil(4 * useful / max(sum(shape.numel() for shape in self.shapes), 1))

    def remember(self, shapes: Shapes, slicing: Slicing | None) -> None:
        if len(self.slicings) >= _MOST_SIZES:
            self.slicings.clear()
        self.is_stale = False
        self.slicings[shapes] = slicing

    def __str__(self) -> str:
        return " ".join("x".join(map(str, shape)) for shape in self.shapes)
