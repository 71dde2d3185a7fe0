"""What a pack depends on, stored beside it and compared with this process."""

from __future__ import annotations

import dataclasses
import importlib.util
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from burnish.errors import BadOptionValue, Mismatch
from burnish.processor import LEVELS, this_cpu
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


NATIVE = "native"  # the processor that a pack was made on


@dataclass(frozen=True)
class Target:
    """Processors for which a pack has machine code: those with all of these features."""

    name: str  # NATIVE, or one of `processor.LEVELS`
    features: frozenset[str]

    @property
    def level(self) -> str:
        """As builds name it."""
        return "" if self.name == NATIVE else self.name


@dataclass(frozen=True)
class Factors:
    """`exact` must be equal. The processor must be one of `targets`, the best of them first. `told` is for people, and
    for verdicts: a race that was won on another processor is held again."""

    exact: tuple[tuple[str, str], ...]
    targets: tuple[Target, ...]
    told: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        targets = [{"name": each.name, "features": sorted(each.features)} for each in self.targets]
        return {"exact": dict(self.exact), "targets": targets, "told": dict(self.told)}

    @staticmethod
    def from_json(found: Any) -> Factors:
        """Raises ValueError, TypeError or KeyError."""
        exact, targets, told = found["exact"], found["targets"], found["told"]
        if type(exact) is not dict or type(targets) is not list or not targets or type(told) is not dict:
            raise TypeError("not factors")
        features = [text for each in targets for text in each["features"]]
        names = [each["name"] for each in targets]
        texts = [*exact, *exact.values(), *names, *features, *told, *told.values()]
        if not all(type(text) is str and len(text) < 4096 for text in texts):
            raise TypeError("not factors")
        if not set(names) <= {NATIVE, *LEVELS}:
            raise TypeError("targets that are none")
        known = tuple(Target(each["name"], frozenset(each["features"])) for each in targets)
        return Factors(tuple(exact.items()), known, tuple(told.items()))


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
    return Factors(tuple(exact), (Target(NATIVE, known),), told)


def for_targets(names: Sequence[str]) -> Factors:
    """Of a pack with machine code for these, as `burnish.pack` takes them. Raises BadOptionValue."""
    here = current()
    valid = [NATIVE, *(level.name for level in LEVELS.values() if level.architecture == this_cpu().architecture)]
    if isinstance(names, str) or not names or not set(names) <= set(valid):
        raise BadOptionValue("targets", names, f"some of {', '.join(valid)}")
    (native,) = here.targets
    found = {native if name == NATIVE else Target(name, LEVELS[name].features) for name in names}
    best = sorted(found, key=lambda each: (each.name != NATIVE, -len(each.features)))
    return dataclasses.replace(here, targets=tuple(best))


def target_here(stored: Factors, now: Factors) -> Target | None:
    """The best of a pack's targets that this processor is one of."""
    return next((each for each in stored.targets if each.features <= now.targets[0].features), None)


def differences(stored: Factors, now: Factors) -> Iterator[Mismatch]:
    """Every factor that forbids a pack here."""
    before, here = dict(stored.exact), dict(now.exact)
    for factor in {**before, **here}:
        if before.get(factor) != here.get(factor):
            yield Mismatch(factor, before.get(factor, "not stated"), here.get(factor, "not stated"))
    if target_here(stored, now) is None:
        missing = min((each.features - now.targets[0].features for each in stored.targets), key=len)
        yield Mismatch(FEATURES, "built with " + " ".join(sorted(missing)), "this processor has none of these")


def is_same_processor(stored: Factors, now: Factors) -> bool:
    name = "processor identity"
    return bool(dict(stored.told).get(name)) and dict(stored.told).get(name) == dict(now.told).get(name)


def described(manifest: Mapping[str, Any]) -> str:
    """A pack in a few words, from its manifest."""
    variants = manifest.get("variants")
    count = len(variants) if isinstance(variants, list) else 0
    return f"{manifest.get('name', '')}: {count} variant{'s' * (count != 1)}"
