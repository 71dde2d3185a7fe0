"""One compiled size: a program for padded arguments, with the guards under which it may serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from burnish.bucketed.form import Call, Shapes
from burnish.bucketed.results import Slicing
from burnish.torch_private.dynamo import set_eval_frame
from burnish.trust.whole_call import WholeCallRace

_MOST_SIZES = 4096  # remembered


@dataclass(eq=False)
class Variant:
    """`entry` is in Dynamo's cache. It was compiled while the guards of the traced graph held for padded arguments and
    for the call's own, so as long as its own guards pass, the module's state is what it was then. What the traced
    graph's guards say of sizes is checked once for each set of sizes, which `slicings` remembers."""

    shapes: Shapes
    entry: Any
    run: Callable[..., Any]
    slicings: dict[Shapes, Slicing | None] = field(default_factory=dict)  # None: the sizes are the variant's own
    race: WholeCallRace | None = None
    served: str = "compiled"
    calls: int = 0
    padded_calls: int = 0
    is_stale: bool = False  # no call has been routed to it since buckets were planned anew

    def holds(self, values: dict[str, Any] | None) -> bool:
        return values is not None and bool(self.entry.guard_manager.check(values))

    def call(self, call: Call) -> Any:
        prior = set_eval_frame(None)  # an outer compiler must not trace this code
        try:
            return self.run(*call.args, **call.kwargs)
        finally:
            set_eval_frame(prior)

    def remember(self, shapes: Shapes, slicing: Slicing | None) -> None:
        if len(self.slicings) >= _MOST_SIZES:
            self.slicings.clear()
        self.is_stale = False
        self.slicings[shapes] = slicing

    def __str__(self) -> str:
        return " ".join("x".join(map(str, shape)) for shape in self.shapes)
