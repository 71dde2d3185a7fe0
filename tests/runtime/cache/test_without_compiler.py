"""A cache that is shipped to a machine without a C compiler serves there: nothing is compiled or runs in eager."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import CompilerFailed, CompilerMissing
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.build import shared_library
from burnish.runtime.build.shared_library import CSource, build_shared
from burnish.runtime.cache.store import Cache

REAL_CC = Options().cc or "cc"
ANSWER = CSource("int answer(void) { return 42; }\n", "answer")
OTHER = CSource("int answer(void) { return 7; }\n", "other")

_PROCESS = """
import json, sys, threading, torch, burnish
from torch import nn
from burnish.runtime.host.extension import host_library
from burnish.observe.log import CompileLog
from burnish.runtime.cache.deferred_writes import later

def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)).to(sys.argv[2])

def told(compiled):
    stats = burnish.stats(compiled)
    return {
        "fallbacks": [str(each) for each in stats.fallbacks],
        "misses": stats.cache_misses,
        "reasons": list(stats.cache_reasons),
        "engines": sorted({each.engine for each in stats.variants}),
        "sources": sorted({each.gate.source for each in stats.variants if each.gate is not None}),
        "kernels": stats.kernels,
        "graphs": sum(stats.graphs.values()),
        "cc": stats.seconds.get("cc", 0.0),
        "notices": sorted(stats.notices),
    }

options = {"cache_dir": sys.argv[1], "warm_start": True, "gate": False, "products": "ours"}
x, report = torch.linspace(-1, 1, 24).reshape(4, 6).to(sys.argv[2]), {}

ours, twin = model(), model()
inference = burnish.compile(ours, options=options)
with torch.no_grad():
    for _ in range(2):
        torch.testing.assert_close(inference(x), twin(x))
report["inference"] = told(inference)

training, twin = burnish.compile(model(1), options=options), model(1)
for each in (training, twin):
    for _ in range(3):  # the trial ends with the second step
        each(x).square().sum().backward()
for got, want in zip(training.parameters(), twin.parameters(), strict=True):
    torch.testing.assert_close(got.grad, want.grad)
report["training"] = told(training)

sealed, twin = burnish.compile(model(2), options=options), model(2)
with torch.no_grad():
    sealed(x)
    sealed.burnish.seal()
    for _ in range(3):
        torch.testing.assert_close(sealed(x), twin(x))
report["sealed"] = told(sealed)
report["host"] = host_library(inference.burnish.options, CompileLog()) is not None
later.finish()
print(json.dumps(report))
"""


def run(cache: Path, device: str = "cpu", **environment: str) -> dict[str, Any]:
    base = {name: value for name, value in os.environ.items() if name not in ("CC", "BURNISH_CC")}
    command = [sys.executable, "-c", _PROCESS, str(cache), device]
    done = subprocess.run(command, env=base | environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What a process with a compiler leaves behind, and what it said."""
    root = tmp_path_factory.mktemp("shipped") / "cache"
    return root, run(root)


@pytest.fixture(scope="module")
def without(shipped: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same in a process that finds no compiler, with a copy of that cache elsewhere."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(shipped[0], elsewhere / "cache")
    return run(elsewhere / "cache", PATH=str(elsewhere))


@pytest.mark.parametrize("what", ["inference", "training", "sealed"])
def test_it_runs_compiled(shipped: tuple[Path, dict[str, Any]], without: dict[str, Any], what: str) -> None:
    first, again = shipped[1][what], without[what]
    assert again["fallbacks"] == [] and again["engines"] == ["burnish"], again
    assert again["misses"] == 0 and again["cc"] == 0.0, again["reasons"]
    assert (again["kernels"], again["graphs"]) == (first["kernels"], first["graphs"]) and again["graphs"] > 0


def test_the_host_extension_is_there(shipped: tuple[Path, dict[str, Any]], without: dict[str, Any]) -> None:
    assert shipped[1]["host"] and without["host"]


def test_its_verdicts_are_taken(without: dict[str, Any]) -> None:
    assert without["inference"]["sources"] == ["remembered"]


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    """Kernels are cubins, and the launcher is a library in C."""
    run(tmp_path / "cache", "cuda")
    again = run(tmp_path / "cache", "cuda", PATH=str(tmp_path))
    for what in ("inference", "training", "sealed"):
        assert again[what]["fallbacks"] == [] and again[what]["misses"] == 0, again[what]


# -- by hand -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _fresh_build_state() -> Any:
    shared_library.forget_loaded()
    yield
    shared_library.forget_loaded()


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return replace(Options(), cc=REAL_CC, cache_dir=tmp_path / "cache", disable_cache=False)


def built(source: CSource, options: Options, cc: str | None = None) -> int:
    """What a new process gets of it."""
    shared_library.forget_loaded()
    options = replace(options, cc=cc or options.cc)
    cache = Cache(options.cache_dir, 1 << 26)
    return int(build_shared(source, options=options, cache=cache, log=CompileLog()).answer())


def named_compiler(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text(f'#!/bin/sh\ncase "$*" in *--version*) echo "{name} 1"; exit 0;; esac; exec {REAL_CC} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_what_is_not_stored_needs_one(options: Options) -> None:
    assert built(ANSWER, options) == 42
    assert built(ANSWER, options, "/nowhere/cc") == 42
    with pytest.raises(CompilerMissing, match="/nowhere/cc"):
        built(OTHER, options, "/nowhere/cc")


def test_a_compiler_that_does_not_answer_is_as_none(options: Options, tmp_path: Path) -> None:
    assert built(ANSWER, options) == 42
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 9\n")
    broken.chmod(0o755)
    assert built(ANSWER, options, str(broken)) == 42
    with pytest.raises(CompilerFailed, match="exit status 9"):
        built(OTHER, options, str(broken))


def test_another_compiler_compiles_for_itself(options: Options, tmp_path: Path) -> None:
    """Its identity decides where there is one."""
    assert built(ANSWER, options) == 42
    log = CompileLog()
    options = replace(options, cc=named_compiler(tmp_path, "second"))
    shared_library.forget_loaded()
    build_shared(ANSWER, options=options, cache=Cache(options.cache_dir, 1 << 26), log=log)
    assert log.cache_misses == 1


@pytest.mark.parametrize("most", ["first", "second"])
def test_of_two_that_filled_it_the_one_who_made_most_serves(options: Options, tmp_path: Path, most: str) -> None:
    first, second = (named_compiler(tmp_path, name) for name in ("first", "second"))
    for cc in (first, second):
        built(ANSWER, options, cc)
    built(OTHER, options, first if most == "first" else second)
    Path(first).unlink()
    Path(second).unlink()
    assert built(OTHER, options, first) == 7
    maker = dict(shared_library.maker_of(replace(options, cc=first), Cache(options.cache_dir, 1 << 26)))
    assert maker["compiler version"] == f"{most} 1"


def test_files_that_only_building_needs(options: Options, tmp_path: Path) -> None:
    header = tmp_path / "include" / "needed.h"
    header.parent.mkdir()
    header.write_text("#define VALUE 5\n")
    source = CSource('#include "needed.h"\nint answer(void) { return VALUE; }\n', "needs a header")

    def with_header() -> int:
        shared_library.forget_loaded()
        cache = Cache(options.cache_dir, 1 << 26)
        library = build_shared(
            source, options=options, cache=cache, log=CompileLog(), include=(header.parent,), needs=(header,)
        )
        return int(library.answer())

    assert with_header() == 5
    header.unlink()
    assert with_header() == 5
    Cache(options.cache_dir, 1 << 26).clear()
    with pytest.raises(shared_library.CompileError, match=r"needed\.h"):
        with_header()
