"""The engines of one graph, eager and its compiled forms: the call path of each, and the checks on it."""

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
    """Wraps an exception that eager raised, so that it is not mistaken for a failure of a compiled program."""

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
        """`direct` runs engine "burnish" on one list of arguments. `timed` adds the latency measurement. `host` returns
        the extension that checks assumptions natively, if available. `guarded`: Dynamo's guards check all inputs, so
        only the assumptions that guards do not cover are left to check."""
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
        """The engine for a graph that cannot be tried."""
        return next(iter(self._compiled), "eager")

    def behind_assumptions(self, engine: Engine) -> Boxed:
        """The engine with the check of its assumptions in front, and timed if requested. Eager needs no check, because
        guards have selected this graph; a sealed call evaluates no guards."""
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
        """This engine serves from now on; returns its serving function."""
        self._serving[engine] = serve = self.behind_assumptions(engine)
        return serve

    def settle_again(self) -> None:
        """Rebuild the engines' call paths after a change."""
        self._serving = {engine: self.behind_assumptions(engine) for engine in self._serving}

    def unsettle(self) -> None:
        """No engine is selected any more."""
        self._serving = {"eager": self._run_eager}

    def alone(self, engine: Engine) -> Boxed:
        """Run a given engine, regardless of the current one."""
        if (serving := self._serving.get(engine)) is not None:
            return serving
        call = self._compiled.get(engine, self.eager)
        return lambda boxed: call(*boxed)

    def without_guards(self, host: Host | None) -> None:
        """The object is sealed: from now on only assumptions are checked."""
        self._host, self._is_sealed = (lambda: host), True

    def give_up(self) -> None:
        """Drop the compiled forms, which are not available after all."""
        self._compiled.clear()
        self._direct = None
        self.unsettle()

    def _run_eager(self, args: Sequence[Any]) -> Any:
        try:
            return self.eager(*args)
        except Exception as error:
            raise EagersOwn(error) from None


def _or_undrawn(engine: Call, boxed: bool = False) -> Call:
    """The engine, with the random state restored if it raises and the call will be repeated."""

    def run(*args: Any) -> Any:
        devices = devices_of(args[0] if boxed else args)
        if any(d.type == "cuda" for d in devices) and torch.cuda.is_current_stream_capturing():
            return engine(*args)  # during a capture, generators cannot be read, and a failed capture is not repeated
        before = RandomState(devices)
        try:
            return engine(*args)
        except Exception as error:
            if not getattr(error, "inputs_changed", False):  # not repeated, and eager would have drawn too
                before.restore()
            raise

    return run
