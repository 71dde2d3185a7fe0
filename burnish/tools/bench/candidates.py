"""The candidates of a comparison: eager, a torch.compile backend, or burnish, each with its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from burnish.errors import UnknownBackend, UnknownMode
from burnish.options import MODES, nearest

_TITLES = {"eager": "eager", "inductor": "Inductor", "burnish": "burnish"}
EAGER = "eager"


@dataclass(frozen=True)
class Candidate:
    """One way to run the target. `scope` and `shapes` name what is compiled and how sizes are met; today the whole
    model and the sizes as they come are the only ones."""

    engine: str  # "eager", "burnish", or a torch.compile backend
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    scope: str = "model"
    shapes: str = "as given"

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return f"{self.engine}:{self.mode}" if self.mode else self.engine

    @property
    def title(self) -> str:
        """As a table says it."""
        engine = _TITLES.get(self.engine, self.engine)
        return f"{engine} {self.mode}" if self.mode else engine

    @property
    def compiles(self) -> bool:
        return self.engine != EAGER

    def apply(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """The model as this candidate runs it; compiling happens at its first call."""
        if not self.compiles:
            return model
        settings: Mapping[str, Any] = {"mode": self.mode, "dynamic": self.dynamic, "fullgraph": self.fullgraph}
        if self.engine == "burnish":
            from burnish import api

            return api.compile(model, **settings)
        return torch.compile(model, backend=self.engine, **settings)


def parse_candidates(text: str, *, dynamic: bool | None = None, fullgraph: bool = False) -> tuple[Candidate, ...]:
    """`eager,inductor:max-autotune,burnish` as candidates; a name that does not exist is an error here, not later."""
    found = [_parse(word.strip(), dynamic, fullgraph) for word in text.split(",") if word.strip()]
    return with_eager(found)


def default_candidates(on_cuda: bool, *, dynamic: bool | None = None, fullgraph: bool = False) -> tuple[Candidate, ...]:
    names = "eager,inductor,burnish" + (",inductor:reduce-overhead,burnish:reduce-overhead" if on_cuda else "")
    return parse_candidates(names, dynamic=dynamic, fullgraph=fullgraph)


def with_eager(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Each once, and eager first: everything is measured against it."""
    return tuple(dict.fromkeys((Candidate(EAGER), *candidates)))


def _parse(word: str, dynamic: bool | None, fullgraph: bool) -> Candidate:
    engine, colon, mode = word.partition(":")
    if engine == EAGER and not colon:
        return Candidate(EAGER)
    _check_engine(engine)
    if colon and mode not in MODES:
        raise UnknownMode(mode, nearest(mode, MODES), MODES)
    return Candidate(engine, mode if mode and mode != "default" else None, dynamic, fullgraph)


def _check_engine(engine: str) -> None:
    if engine in ("burnish", "inductor", "aot_eager"):  # without importing Dynamo, which takes a second
        return
    known = sorted({EAGER, "burnish", *torch.compiler.list_backends(exclude_tags=())})
    if engine not in known:
        raise UnknownBackend(engine, nearest(engine, known), known)
