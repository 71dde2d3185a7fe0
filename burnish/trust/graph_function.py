"""The function that Dynamo calls for a graph. Its target is the content of one closure cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from burnish.runtime.host.boxed import BOXED
from burnish.runtime.host.checks import Boxed
from burnish.runtime.host.function_modes import unseen
from burnish.torch_private.dispatch import len_torch_function_stack
from burnish.trust.checkpoints import Checkpoint, checkpoint_here
from burnish.trust.gate import Call
from burnish.trust.record import State
from burnish.trust.sampling import Watched, gaps, sampled


class Served(Watched, Protocol):
    """The part of a Variant that this module needs."""

    number: int
    state: State

    def recover(self, error: Exception, args: Sequence[Any]) -> Any: ...

    def run_in_checkpoint(self, checkpoint: Checkpoint, boxed: list[Any], serve: Boxed) -> Any: ...


def graph_function(variant: Served, share: float) -> tuple[Call, Callable[[Boxed], None]]:
    """The function, and a setter for its target. The fraction `share` of its calls is compared with eager."""
    recover = variant.recover
    training = variant.facts.kind == "training"
    assumptions = variant.facts.assumptions
    # Whether Python sees what we do: a mode, or the class of some input (a tensor's, of the user's).
    is_seen: Callable[[], object] = len_torch_function_stack
    if assumptions is not None and not assumptions.is_plain:
        is_seen = lambda: True  # noqa: E731
    serve: Boxed = list

    def in_training(other: Boxed) -> Boxed:
        def run(boxed: list[Any]) -> Any:
            checkpoint = checkpoint_here()
            return other(boxed) if checkpoint is None else variant.run_in_checkpoint(checkpoint, boxed, other)

        return run

    def call(*args: Any) -> Any:
        try:
            return unseen(serve, list(args)) if is_seen() else serve(list(args))
        except Exception as error:
            return recover(error, args)

    def boxed(args: list[Any]) -> Any:
        return unseen(serve, args) if is_seen() else serve(args)

    def serve_with(other: Boxed) -> None:
        nonlocal serve
        serve = in_training(other) if training else other

    if not share:
        setattr(call, BOXED, (boxed, recover))
        return call, serve_with
    next_gap = gaps(share, variant.number)
    left = next_gap()

    def sample(args: Sequence[Any]) -> Any:
        return sampled(variant, lambda args: serve(list(args)), args)

    def call_or_sample(*args: Any) -> Any:
        nonlocal left
        left -= 1
        try:
            if left > 0 or variant.state != "compiled":
                return boxed(list(args))
            left = next_gap()
            return unseen(sample, args) if is_seen() else sample(args)
        except Exception as error:
            return recover(error, args)

    return call_or_sample, serve_with
