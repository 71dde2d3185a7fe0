"""Which private names the running torch lacks.

A name in a part of torch that is loaded is looked up. For a part that is not (Dynamo takes seconds to load), torch's
source is read instead: whether the file is there, and defines or imports the name. Both together take milliseconds.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from burnish.torch_private import (
    aot,
    cuda,
    dispatch,
    dynamo,
    fake_tensors,
    graphs,
    guards,
    inductor,
    marks,
    modules,
    operators,
    replaced,
    symbolic_sizes,
    tensors,
    variables,
)
from burnish.torch_private.names import SEEN, PrivateName, PrivateNameMissing
from burnish.torch_private.versions import running, version_pair

_TABLES = (
    *(dynamo, guards, variables, aot, inductor, dispatch, operators),
    *(tensors, fake_tensors, graphs, modules, marks, cuda, replaced, symbolic_sizes),
)
NAMES: tuple[PrivateName, ...] = tuple(name for table in _TABLES for name in table.NAMES)


@dataclass(frozen=True)
class Probe:
    """What a look at the running torch found."""

    found: tuple[PrivateName, ...]
    missing: tuple[PrivateName, ...]

    def __str__(self) -> str:
        looked_at = len(self.found) + len(self.missing)
        return f"torch's private names: {len(self.found)} of {looked_at} found"


def probe() -> Probe:
    """Look at every name that this torch should have, without loading more of torch."""
    expected = [name for name in NAMES if _is_expected(name)]
    found = [name for name in expected if _is_there(name)]
    return Probe(tuple(found), tuple(name for name in expected if name not in found))


@dataclass(frozen=True)
class Lack:
    """Why a fallback is taken."""

    reason: str
    way_out: str
    stage: str = "torch"

    def __str__(self) -> str:
        return self.reason


@functools.cache
def why(fallback: str) -> Lack | None:
    """What is missing, where this fallback is taken. Loads the parts of torch that it is about; asked once a process,
    since what failed to load half-way fails for another reason the next time."""
    wanted = [name for name in NAMES if fallback in name.fallback and _is_expected(name)]
    missing = {name.path: error for name in wanted if (error := _missing(name)) is not None}
    for path, error in missing.items():
        if error.failure:
            reason = f"torch {torch.__version__} cannot load {path}: {error.failure}"
            return Lack(reason, "mend what that names, and start the process again")
    if not missing:
        return None
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    reason = f"torch {torch.__version__} has no {', '.join([*missing][:3])}{more}"
    return Lack(reason, "install a torch that burnish knows, or a newer burnish: `burnish doctor` says which")


def _is_expected(name: PrivateName) -> bool:
    if not name.probed or (name.with_cuda_only and not torch.backends.cuda.is_built()):
        return False
    first, last = version_pair(name.seen_in[0]), version_pair(name.seen_in[-1])
    is_gone = name.seen_in[-1] != SEEN[-1] and last is not None and running() > last
    return not is_gone and (first is None or running() >= first)


def _is_there(name: PrivateName) -> bool:
    module, rest = _module_of(name.path)
    if module is None or module in sys.modules:
        return _can_be_had(name)
    return _is_in_source(module, rest if name.on is None else rest[:-1])


def _can_be_had(name: PrivateName) -> bool:
    return _missing(name) is None


def _missing(name: PrivateName) -> PrivateNameMissing | None:
    try:
        name.found()
    except PrivateNameMissing as error:
        return error
    return None


def _module_of(path: str) -> tuple[str | None, list[str]]:
    """The module of torch's that a path goes through last, and the rest of the path. None where there is no source."""
    parts = path.split(".")
    for end in range(len(parts), 1, -1):
        module = ".".join(parts[:end])
        if _source_of(module) is not None:
            return module, parts[end:]
    return None, parts


@functools.cache
def _source_of(module: str) -> Path | None:
    place = Path(torch.__file__).parent.joinpath(*module.split(".")[1:])
    found = (place.with_suffix(".py"), place / "__init__.py")
    return next((each for each in found if each.is_file()), None)


@functools.cache
def _text_of(module: str) -> str:
    source = _source_of(module)
    return source.read_text(encoding="utf-8") if source is not None else ""


def _is_in_source(module: str, rest: list[str]) -> bool:
    return all(_defines(_text_of(module), word) for word in rest)


def _defines(text: str, word: str) -> bool:
    """Whether a line defines the word, assigns to it or imports it."""
    made, listed = rf"(?:class|def) {word}\b", rf"{word}\b *(?:[:=]|,? *(?:#.*)?$)"
    imported = rf".*\b(?:import|as)\b.*\b{word}\b"
    defining = re.compile(rf"\s*(?:{made}|{listed}|{imported})")
    return any(defining.match(line) for line in _lines_with(text, word))


def _lines_with(text: str, word: str) -> Iterator[str]:
    at = text.find(word)
    while at >= 0:
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        yield text[text.rfind("\n", 0, at) + 1 : end]
        at = text.find(word, end)
