"""What a pack depends on, stored beside it and compared with this process."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from burnish.errors import Mismatch
from burnish.processor import this_cpu
from burnish.runtime.build.shared_library import source_hash
from burnish.version import __version__

FEATURES = "processor features"
# The features that decide which instructions a compiler may use; what the system tells beside them (mitigations, power
# management) changes no code.
_INSTRUCTIONS = re.compile(
    r"(s?sse\d?(_\d)?|sse4a|avx\w*|fma4?|f16c|bmi[12]|abm|lzcnt|popcnt|movbe|aes|pclmulqdq|vaes|vpclmulqdq|gfni|adx|"
    r"sha\w*|sm[34]|rd(rand|seed|pid)|fsgsbase|xsave\w*|cl(flushopt|wb|demote)|amx_\w+|lahf_lm|cx16|3dnowprefetch|"
    r"mov(diri|dir64b)|serialize|waitpkg|ptwrite|xop|tbm|pku|shstk|user_shstk|cmov|fxsr|mmx|rtm|tsxldtrk|uintr|hreset)"
)


@dataclass(frozen=True)
class Factors:
    """`exact` must be equal. The processor must have all of `features`. `told` is for people, and for verdicts: a race
    that was won on another processor is held again."""

    exact: tuple[tuple[str, str], ...]
    features: frozenset[str]
    told: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {"exact": dict(self.exact), "features": sorted(self.features), "told": dict(self.told)}

    @staticmethod
    def from_json(found: Any) -> Factors:
        """Raises ValueError, TypeError or KeyError."""
        exact, features, told = found["exact"], found["features"], found["told"]
        if type(exact) is not dict or type(features) is not list or type(told) is not dict:
            raise TypeError("not factors")
        texts = [*exact, *exact.values(), *features, *told, *told.values()]
        if not all(type(text) is str and len(text) < 4096 for text in texts):
            raise TypeError("not factors")
        return Factors(tuple(exact.items()), frozenset(features), tuple(told.items()))


def current() -> Factors:
    cpu = this_cpu()
    known = frozenset(f for f in cpu.features if cpu.architecture != "x86_64" or _INSTRUCTIONS.fullmatch(f))
    exact = [
        ("burnish", f"{__version__}, sources {source_hash()[:16]}"),
        ("torch", str(torch.__version__)),
        ("python", f"{sys.implementation.cache_tag}, bytecode {importlib.util.MAGIC_NUMBER.hex()}"),
        ("system", f"{sys.platform}, {cpu.architecture}"),
    ]
    if not known:  # where the system does not tell them
        exact.append(("processor", cpu.instructions))
    told = (
        ("processor", cpu.name),
        ("processor identity", cpu.identity),
        ("threads", str(torch.get_num_threads())),
        ("python", platform.python_version()),
    )
    return Factors(tuple(exact), known, told)


def differences(stored: Factors, now: Factors) -> Iterator[Mismatch]:
    """Every factor that forbids a pack here."""
    before, here = dict(stored.exact), dict(now.exact)
    for factor in {**before, **here}:
        if before.get(factor) != here.get(factor):
            yield Mismatch(factor, before.get(factor, "not stated"), here.get(factor, "not stated"))
    if missing := stored.features - now.features:
        yield Mismatch(FEATURES, "built with " + " ".join(sorted(missing)), "this processor has none of these")


def is_same_processor(stored: Factors, now: Factors) -> bool:
    name = "processor identity"
    return bool(dict(stored.told).get(name)) and dict(stored.told).get(name) == dict(now.told).get(name)


def described(manifest: Mapping[str, Any]) -> str:
    """A pack in a few words, from its manifest."""
    variants = manifest.get("variants")
    count = len(variants) if isinstance(variants, list) else 0
    return f"{manifest.get('name', '')}: {count} variant{'s' * (count != 1)}"
