"""What an entrance is: the path of the calls of one callable. A handle knows no more of it than this.

`entrance.py` compiles, `eager_only.py` runs everything in eager, `burnish/bucketed/calls.py` pads calls to the sizes of
compiled variants, and `burnish/packs/entrance.py` serves what was loaded from a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from burnish.trust.record import WholeCall

if TYPE_CHECKING:
    from burnish.capture.background.frames import DeferredFrames  # imports TorchDynamo


class AnyEntrance(Protocol):
    @property
    def call(self) -> Callable[..., Any]:
        """The function to call; it may be another one after any of the methods below."""

    @property
    def deferred(self) -> DeferredFrames | None:
        """Its compiles in other threads, if it has any."""

    @property
    def is_racing(self) -> bool:
        """Whether calls alternate between compiled code and the original, to measure which is faster."""

    def whole_calls(self) -> tuple[WholeCall, ...]:
        """The results of the races of whole calls so far."""

    def restart(self) -> None:
        """Drop all compiled code."""

    def suspend(self) -> None:
        """Run calls in eager without compiling, until `resume`."""

    def resume(self) -> None: ...

    def seal(self, strict: bool = False) -> int:
        """Compile nothing from now on. Returns how much compiled code there is; if it is 0, nothing has changed."""

    def seal_off(self) -> None:
        """Seal an entrance without compiled code."""

    def unseal(self) -> None: ...
