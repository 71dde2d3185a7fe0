"""The engines of one graph, eager and its compiled forms: how a call reaches each, and what is checked on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from burnish.runtime.host.checks import Boxed, checked
from burnish.runtime.host.extension import Host
from burnish.trust.gate import Call, GraphFacts
from burnish.trust.inputs import RandomState, devices_of
from burnish.trust.record import Engine


class EagersOwn(Exception):
    """Carries what eager raised past the code that watches compiled programs for failures."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class Engines:
    """`compiled` are forms of the graph; the first is ours where there is one."""

    def __init__(
        self,
        facts: GraphFacts,
        eager: Call,
        compiled: Mapping[Engine, Call],
        *,
        direct: Boxed | None = None,
        timed: Callable[[Engine, Boxed], Boxed] | None = None,
        host: Callable[[], Host | None] = lambda: None,
        guarded: bool = True,
    ) -> None:
        """`direct` is what engine "burnish" does, called with one list. `timed` adds what measures latency. `host`
        gives the extension that checks assumptions natively, if it is there; `guarded`: Dynamo's guards look at all
        inputs, so that without it only the rest has to be asked."""
        self.eager = eager
        self._compiled = dict(compiled)
        self._direct = direct
        if facts.draws:  # a call that fails is repeated in eager, with the same numbers
            self._compiled = {name: _or_undrawn(call) for name, call in self._compiled.items()}
            self._direct = _or_undrawn(direct, boxed=True) if direct is not None else None
        self._assumptions = facts.assumptions
        self._timed = timed
        self._host = host
        self._guarded = guarded
        self._is_sealed = False
        self._serving: dict[Engine, Boxed] = {"eager": self._run_eager}

    def __bool__(self) -> bool:
        """Whether there is any compiled form."""
        return bool(self._compiled)

    @property
    def compiled(self) -> Mapping[Engine, Call]:
        return self._compiled

    @property
    def first(self) -> Engine:
        """Who serves what cannot be tried."""
        return next(iter(self._compiled), "eager")

    def behind_assumptions(self, engine: Engine) -> Boxed:
        """The engine behind its assumptions, and timed where that is asked for. Eager makes no assumptions, as long as
        guards say that it is this graph that a call wants: a sealed one asks no guards."""
        serve: Boxed
        if engine == "eager":
            serve = self._run_eager
        elif engine == "burnish" and self._direct is not None:
            serve = self._direct
        else:
            call = self._compiled[engine]
            serve = lambda boxed: call(*boxed)  # noqa: E731
        if self._assumptions is not None and (engine != "eager" or self._is_sealed):
            serve = checked(serve, self._assumptions, self._host(), guarded=self._guarded and not self._is_sealed)
        return self._timed(engine, serve) if self._timed else serve

    def settle(self, engine: Engine) -> Boxed:
        """It serves from now on: how."""
        self._serving[engine] = serve = self.behind_assumptions(engine)
        return serve

    def settle_again(self) -> None:
        """Something about the way to them has changed."""
        self._serving = {engine: self.behind_assumptions(engine) for engine in self._serving}

    def unsettle(self) -> None:
        """None has been chosen."""
        self._serving = {"eager": self._run_eager}

    def alone(self, engine: Engine) -> Boxed:
        """What one does, whoever serves."""
        if (serving := self._serving.get(engine)) is not None:
            return serving
        call = self._compiled.get(engine, self.eager)
        return lambda boxed: call(*boxed)

    def without_guards(self, host: Host | None) -> None:
        """The object is sealed: from now on assumptions are all that is asked."""
        self._host, self._is_sealed = (lambda: host), True

    def give_up(self) -> None:
        """What was compiled cannot be had, after all: as if there had been nothing."""
        self._compiled.clear()
        self._direct = None
        self.unsettle()

    def _run_eager(self, args: Sequence[Any]) -> Any:
        try:
            return self.eager(*args)
        except Exception as error:
            raise EagersOwn(error) from None


def _or_undrawn(engine: Call, boxed: bool = False) -> Call:
    """As the engine, but where it raises and the call is to be repeated, it has drawn no random numbers."""

    def run(*args: Any) -> Any:
        devices = devices_of(args[0] if boxed else args)
        if any(d.type == "cuda" for d in devices) and torch.cuda.is_current_stream_capturing():
            return engine(*args)  # generators cannot be asked then, and a capture that fails is not repeated
        before = RandomState(devices)
        try:
            return engine(*args)
        except Exception as error:
            if not getattr(error, "inputs_changed", False):  # then nothing is repeated, and eager would have drawn
                before.restore()
            raise

    return run
