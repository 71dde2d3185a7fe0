"""The race of whole calls: the compiled object, with everything around its graphs, against the original.

A graph's own race (`gate.py`) covers the graph only, not guards, graph breaks and the Python between graphs. So once
calls neither compile nor hold trials, they alternate: the compiled object serves one, the original the next. Each call
is made once, by one of the two, because the user's calls may have side effects.

1. Calls of one kind (sizes, types, grad mode) make pairs; the order within a pair follows the Thue-Morse sequence, so
   that neither a drift nor alternating data favours an engine. The first short call after a change of engine does not
   count, because its caches are cold; in a loop they would be warm.
2. After five pairs or more, the interval of the ratio's median decides, once it lies on one side of 1. If it is still
   undecided after 25 pairs, the original serves, unless the median promises a gain: then the race continues, and after
   100 pairs the median decides. Kinds that are raced together have different sizes, so their median says little and
   their race is not continued. The race of long calls ends early after a clear win. It is skipped if the whole call
   takes less time than its graphs alone took in eager when they were judged.
3. The original serves a kind that lost. Once each kind is decided, the caller of this module applies the `outcome`: the
   compiled path, the original, or, for mixed results, `call`, which looks up the kind.

A call whose result requires gradients is only half of a training step. Its forward is timed like any call. For the
backward, the gate's times of the graphs in the call are added. Without such times (a verdict stored by an older
version, or a decision by a rule), the call is not raced; the races of its graphs decide.

Not timed: a call that raises, compiles or holds a trial; calls of other threads and nested calls while a call is timed;
and calls that `can_time` excludes. Nothing here waits for a lock.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from burnish.runtime.host.function_modes import unseen
from burnish.trust.interval import Interval, median
from burnish.trust.record import WholeCall

Served = Literal["compiled", "eager"]
Outcome = Literal["racing", "mixed", "compiled", "eager"]
KindOf = Callable[[tuple[Any, ...], dict[str, Any]], Hashable]

LOSES_ABOVE = 1.02
MOST_PAIRS = 25  # pairs of an unclear race, unless a gain is possible
LAST_PAIR = 100
_GAIN = 0.97  # fraction of eager's time: a median above this does not justify more pairs
_CLEAR_WIN = 0.85  # fraction of eager's time: a clear win in two pairs of long calls
_LONG = 0.02  # seconds of a long call, which the original does not serve if it cannot win
_SHORT = 5e-4  # seconds of a short call; the first after a change of engine has cold caches and does not count
_QUIET = 2  # calls in a row that compiled and judged nothing, before the first one is timed
_MOST_KINDS = 32  # raced one by one; all further ones together
_LINGERS = 64  # calls of decided kinds only, after which the search for new kinds ends
_PATIENCE = 512  # unpaired calls of one kind, after which the races of its graphs decide
_OTHERS: Hashable = "all other kinds"
_IN_VAIN = "its calls raise, compile or are judged again and again"


@dataclass(frozen=True)
class Graphs:
    """The gate's times of the graphs that a call runs, in seconds. `eager` is the time of all graphs in eager, with the
    backward of training graphs: a lower bound of the original's time. None: not known for every graph."""

    compiled_backward: float | None = 0.0
    eager_backward: float | None = 0.0
    eager: float | None = None


class Surroundings:
    """The race's view of the object whose calls it times; the capture layer implements it."""

    def can_time(self) -> bool:
        """Whether this thread's next call is an ordinary one, and no other work would disturb its time."""
        return True

    def exempt(self) -> str:
        """The reason why calls must not alternate, if there is one."""
        return ""

    def activity(self) -> int:
        """A number that changes whenever something is compiled or judged for the object."""
        return 0

    def synchronise(self, args: tuple[Any, ...]) -> None:
        """Wait for the devices on which calls run."""

    def watching(self) -> Callable[[], Graphs]:
        """Begin to record which graphs run. The returned function ends that, and returns the gate's times of them."""
        return Graphs

    def allowance(self) -> float:
        """Seconds of long calls after which the race of a clear winner ends."""
        return 0.25


@dataclass
class _Kind:
    """One kind of calls."""

    quiet: int = 0
    calls: int = 0
    backwards: tuple[float, float] = (0.0, 0.0)  # compiled and eager's
    clear: int = 0  # long calls that took clearly less than their graphs alone take in eager
    half: tuple[Served, float] | None = None  # of the pair that is being made
    last: Served = "compiled"  # who served the call before
    ratios: list[float] = field(default_factory=list)
    compiled: list[float] = field(default_factory=list)
    eager: list[float] = field(default_factory=list)
    served: Served | None = None  # the verdict
    note: str = ""
    is_mixed: bool = False  # of several kinds

    @property
    def turn(self) -> Served:
        first: Served = "compiled" if (len(self.ratios).bit_count() & 1) == 0 else "eager"
        if self.half is None:
            return first
        return "eager" if first == "compiled" else "compiled"

    def add(self, served: Served, seconds: float) -> None:
        if self.half is None:
            self.half = (served, seconds)
            return
        mine: dict[str, float] = {served: seconds, self.half[0]: self.half[1]}
        self.half = None
        self.compiled.append(mine["compiled"] + self.backwards[0])
        self.eager.append(mine["eager"] + self.backwards[1])
        self.ratios.append(self.compiled[-1] / max(self.eager[-1], 1e-9))

    def verdict(self, allowance: float) -> Served | None:
        interval = Interval.of(self.ratios)
        if interval is None:
            return "compiled" if self._is_long_and_clear(allowance) else None
        if interval.high <= LOSES_ABOVE:
            return "compiled"
        if interval.low > LOSES_ABOVE:
            return "eager"
        if len(self.ratios) < MOST_PAIRS:
            return None
        if self.is_mixed or self._balanced() > _GAIN:
            return "eager"  # a lost race costs no later call any time
        return "compiled" if len(self.ratios) >= LAST_PAIR else None

    def _is_long_and_clear(self, allowance: float) -> bool:
        spent = sum(self.compiled) + sum(self.eager)
        return len(self.ratios) >= 2 and spent > allowance and max(self.ratios) <= _CLEAR_WIN

    def _balanced(self) -> float:
        """The median over two neighbouring pairs of opposite order each: with alternating data, each engine has had
        both kinds."""
        twos = zip(self.ratios[::2], self.ratios[1::2], strict=False)
        return median([math.sqrt(one * other) for one, other in twos])


class WholeCallRace:
    """The race of one entrance. `changed` is called when `outcome` may have changed, `told` with each verdict."""

    def __init__(
        self,
        compiled: Callable[..., Any],
        eager: Callable[..., Any],
        kind_of: KindOf,
        around: Surroundings,
        changed: Callable[[], None] = lambda: None,
        told: Callable[[WholeCall], None] = lambda verdict: None,
        words: Callable[[Hashable], str] = str,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._compiled = compiled
        self._eager = eager
        self._kind_of = kind_of
        self._around = around
        self._changed = changed
        self._told = told
        self._words = words
        self._clock = clock
        self._turn = threading.Lock()  # held by the call that is timed; no other call waits for it
        self._kinds: dict[Hashable, _Kind] = {}
        self._verdicts: dict[Hashable, Served] = {}
        self._lingers = _LINGERS
        self.call = self._make_call()

    def _make_call(self) -> Callable[..., Any]:
        compiled, eager, kind_of, verdicts = self._compiled, self._eager, self._kind_of, self._verdicts

        def call(*args: Any, **kwargs: Any) -> Any:
            kind = kind_of(args, kwargs)
            served = verdicts.get(kind)
            if served is None:
                return self._undecided(kind, args, kwargs)
            if self._lingers:
                self._linger()
            return eager(*args, **kwargs) if served == "eager" else compiled(*args, **kwargs)

        return call

    # -- what came of it ---------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        if self._lingers or not self._verdicts:
            return "racing"
        found = set(self._verdicts.values())
        return "mixed" if len(found) > 1 else next(iter(found))

    @property
    def is_undecided(self) -> bool:
        """Whether some known kind of call is still raced."""
        return any(entry.served is None for entry in list(self._kinds.values()))

    def lost(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the original serves calls of this kind."""
        return self._verdicts.get(self._kind_of(args, kwargs)) == "eager"

    def look_again(self) -> None:
        """Something new was compiled or judged: look for new kinds of calls again."""
        if not self._lingers:
            self._lingers = _LINGERS
            self._changed()

    def forget(self) -> None:
        """The serving engine has changed: discard all measurements, also that of a call in flight."""
        self._kinds = {}
        self._verdicts.clear()
        self._lingers = _LINGERS
        self._changed()

    def stats(self) -> tuple[WholeCall, ...]:
        return tuple(
            self._said(kind, entry) for kind, entry in list(self._kinds.items()) if entry.served or entry.calls > _QUIET
        )

    def _said(self, kind: Hashable, entry: _Kind) -> WholeCall:
        interval = Interval.of(entry.ratios)
        return WholeCall(
            inputs=kind if kind is _OTHERS else self._words(kind),  # type: ignore[arg-type]
            served=entry.served or "racing",
            compiled_us=median(entry.compiled) * 1e6 if entry.compiled else None,
            eager_us=median(entry.eager) * 1e6 if entry.eager else None,
            ratio=interval.median if interval else None,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            rounds=len(entry.ratios),
            note=entry.note,
        )

    # -- calls of kinds that are not decided -------------------------------------------------------------------

    def _linger(self) -> None:
        self._lingers -= 1
        if self._lingers <= 0:
            self._lingers = 0
            self._changed()

    def _undecided(self, kind: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            kind = _OTHERS
            if (served := self._verdicts.get(kind)) is not None:
                if self._lingers:
                    self._linger()
                return (self._eager if served == "eager" else self._compiled)(*args, **kwargs)
        if not self._turn.acquire(blocking=False):
            return self._compiled(*args, **kwargs)
        try:
            if not self._around.can_time():
                return self._compiled(*args, **kwargs)
            entry = self._kinds.setdefault(kind, _Kind(is_mixed=kind is _OTHERS))
            self.look_again()
            self._lingers = _LINGERS
            return self._raced(kind, entry, args, kwargs)
        finally:
            self._turn.release()

    def _raced(self, kind: Hashable, entry: _Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry.calls += 1
        reason = self._around.exempt() or (_IN_VAIN if entry.calls > _PATIENCE else "")
        if reason:
            entry.note = f"left to the graphs' own races: {reason}"
            self._decide(kind, entry, "compiled")
            return self._compiled(*args, **kwargs)
        if entry.quiet < _QUIET and kind is not _OTHERS:
            return self._warm(kind, entry, args, kwargs)
        try:
            result = self._timed(entry, args, kwargs)
        except BaseException:
            entry.half = None
            raise
        if (served := entry.verdict(self._around.allowance())) is not None:
            self._decide(kind, entry, served)
        return result

    def _warm(self, kind: Hashable, entry: _Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        around, clock = self._around, self._clock
        before, watched = around.activity(), around.watching()
        try:
            around.synchronise(args)
            start = clock()
            result = self._compiled(*args, **kwargs)
            around.synchronise(args)
            seconds = clock() - start
        finally:
            graphs = watched()
        if around.activity() != before:
            entry.quiet = entry.clear = 0
            return result
        entry.quiet += 1
        trains = torch.is_grad_enabled() and unseen(_requires_grad, result)
        compiled, eager = (graphs.compiled_backward, graphs.eager_backward) if trains else (0.0, 0.0)
        if compiled is None or eager is None:
            if entry.quiet == _QUIET:
                entry.note = "a training step, left to the graphs' own races"
                self._decide(kind, entry, "compiled")
            return result
        entry.backwards = compiled, eager
        seconds += compiled
        entry.clear += seconds > _LONG and graphs.eager is not None and seconds < _CLEAR_WIN * graphs.eager
        if entry.clear == _QUIET:
            entry.note = "in less time than its graphs alone take in eager"
            self._decide(kind, entry, "compiled")
        return result

    def _timed(self, entry: _Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        around, clock, served = self._around, self._clock, entry.turn
        run = self._eager if served == "eager" else self._compiled
        before = around.activity()
        around.synchronise(args)
        start = clock()
        result = run(*args, **kwargs)
        around.synchronise(args)
        seconds = clock() - start
        is_cold, entry.last = entry.last != served and seconds < _SHORT, served
        if around.activity() != before:
            entry.half, entry.quiet = None, 0
        elif not is_cold:
            entry.add(served, seconds)
        return result

    def _decide(self, kind: Hashable, entry: _Kind, served: Served) -> None:
        if self._kinds.get(kind) is not entry:  # forgotten meanwhile
            return
        entry.served = self._verdicts[kind] = served
        self._told(self._said(kind, entry))


def _requires_grad(result: Any) -> bool:
    if isinstance(result, torch.Tensor):
        return result.requires_grad
    if isinstance(result, dict):
        return any(map(_requires_grad, result.values()))
    return isinstance(result, (tuple, list)) and any(map(_requires_grad, result))
