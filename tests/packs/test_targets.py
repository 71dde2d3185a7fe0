"""A pack for several processors: the best machine code that fits is loaded, and judged where it was not before."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import burnish
from burnish.errors import BadOptionValue, PackDiffers
from burnish.packs import container, factors
from burnish.packs.factors import NATIVE, Factors, Target
from burnish.processor import LEVELS, this_cpu
from tests.packs.conftest import OPTIONS
from tests.packs.models import an_input, tiny

BASE = {"x86_64": "x86-64-v2", "aarch64": "armv8-a"}.get(this_cpu().architecture, "")
OTHERS = "armv8-a" if BASE != "armv8-a" else "x86-64-v2"
pytestmark = pytest.mark.skipif(not BASE, reason="a processor of which no levels are known")


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory, _session_cache: Path) -> Path:
    compiled = burnish.compile(tiny(), options=OPTIONS)
    with torch.no_grad():
        for _ in range(2):
            compiled(an_input())
    path = tmp_path_factory.mktemp("targets") / "two.burnish"
    burnish.pack(compiled, path, targets=[NATIVE, BASE])
    return path


def on_a_processor_with(features: frozenset[str], monkeypatch: pytest.MonkeyPatch) -> None:
    here = factors.current()
    told = tuple((name, "another" if name == "processor identity" else value) for name, value in here.told)
    changed = dataclasses.replace(here, targets=(Target(NATIVE, features),), told=told)
    monkeypatch.setattr(factors, "current", lambda: changed)


def loaded_members(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """The loaded object, and the libraries whose machine code is in it."""
    from burnish.packs import serving

    names: list[str] = []
    library = serving._library

    def noted(data: bytes, name: str, *, exported: bool) -> Any:
        names.append(name)
        return library(data, name, exported=exported)

    monkeypatch.setattr(serving, "_library", noted)
    return burnish.load(path, tiny(), missing="error", verify="first"), names


def test_both_are_in_it(of_two: Path) -> None:
    members = container.read(of_two).members
    native = {name for name in members if name.startswith("libraries/") and name.count("/") == 1}
    assert {container.library_for(BASE, name) for name in native} == {name for name in members if name.count("/") == 2}
    assert all(members[name] != members[container.library_for(BASE, name)] for name in native)


def test_here_the_code_for_this_processor_is_loaded(of_two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, names = loaded_members(of_two, monkeypatch)
    assert names == ["libraries/0.so"]
    with torch.no_grad():
        torch.testing.assert_close(loaded(an_input()), tiny()(an_input()))
    (variant,) = burnish.stats(loaded).variants
    assert variant.gate is not None and variant.gate.source == "remembered"


def test_a_lesser_processor_gets_the_base_and_judges_it(of_two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_processor_with(LEVELS[BASE].features, monkeypatch)
    loaded, names = loaded_members(of_two, monkeypatch)
    assert names == [f"libraries/{BASE}/0.so"]
    (variant,) = burnish.stats(loaded).variants
    assert variant.state == "on trial"
    with torch.no_grad():
        torch.testing.assert_close(loaded(an_input()), tiny()(an_input()))
    (variant,) = burnish.stats(loaded).variants
    assert variant.state == "compiled" and variant.gate is not None and variant.gate.compiled_error is not None


def test_the_nearest_target_is_named_where_none_fits(of_two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = sorted(LEVELS[BASE].features)[-1]
    on_a_processor_with(LEVELS[BASE].features - {last}, monkeypatch)
    with pytest.raises(PackDiffers, match=f"processor features: built with {last} in the pack"):
        burnish.load(of_two, tiny(), missing="error")


@pytest.mark.skipif(this_cpu().architecture != "x86_64", reason="one level")
def test_the_best_target_comes_first() -> None:
    found = factors.for_targets(["x86-64-v2", "x86-64-v4", NATIVE, "x86-64-v3"])
    assert [each.name for each in found.targets] == [NATIVE, "x86-64-v4", "x86-64-v3", "x86-64-v2"]
    assert Factors.from_json(found.to_json()) == found


@pytest.mark.parametrize("targets", [[], ["x86-64-v9"], "native", [NATIVE, OTHERS]])
def test_targets_that_are_none_are_named(targets: Any, tmp_path: Path) -> None:
    with pytest.raises(BadOptionValue, match="targets"):
        burnish.pack(burnish.compile(tiny(), options=OPTIONS), tmp_path / "a.burnish", targets=targets)
