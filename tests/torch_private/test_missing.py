"""A torch that lacks private names, or is newer than those we know: burnish imports, and works or serves eager."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from burnish.tools.doctor import software
from burnish.torch_private import names, probe, versions
from burnish.torch_private.names import EAGER

_LACKING = """
import warnings, torch
from burnish.torch_private import names
ordinary = names.look_up

def look_up(path):
    if {lacks}:
        raise AttributeError(path)
    return ordinary(path)

names.look_up = look_up
"""
_COMPILES = """
import burnish
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    compiled = burnish.compile(model)
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    stats = burnish.stats(compiled)
print(stats.kernels > 0, *stats.fallbacks, *stats.notices, *(w.message for w in caught), sep="|")
"""


def python(code: str, folder: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("BURNISH_")}
    env["BURNISH_CACHE_DIR"] = str(folder)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def lacking(paths: str) -> str:
    return _LACKING.format(lacks=paths)


def test_without_a_name_that_all_needs_eager_serves_and_says_why(tmp_path: Path) -> None:
    code = lacking("path == 'torch._dynamo.optimize'") + _COMPILES + _EVERYTHING_ELSE
    compiles, *told = python(code, tmp_path).split("|")
    assert compiles == "False"
    assert any("runs in eager" in line and "has no torch._dynamo.optimize" in line for line in told)


_EVERYTHING_ELSE = """
@burnish.compile
def double(x):
    return 2 * x

assert torch.equal(double(x), 2 * x)
handle = compiled.burnish
handle.rollback(); handle.retry(); handle.close(); handle.reset(); handle.unseal()
try:
    handle.seal()
    raise AssertionError("there is nothing to seal")
except burnish.errors.NothingToSeal:
    pass
assert torch.equal(burnish.disable(double)(x), 2 * x)
burnish.reset()
assert not compiled.burnish.is_racing and burnish.stats(compiled).whole_call == ()
"""


def test_without_any_name_burnish_imports_and_eager_serves(tmp_path: Path) -> None:
    code = lacking("'._' in path") + _COMPILES + "import burnish.capture.dynamo\n" + _EVERYTHING_ELSE
    compiles, *told = python(code, tmp_path).split("|")
    assert compiles == "False" and any("runs in eager" in line and "more" in line for line in told)


def test_the_backend_of_torch_compile_serves_eager_then(tmp_path: Path) -> None:
    code = (
        lacking("path == 'torch._functorch.aot_autograd.aot_module_simplified'")
        + """
from burnish.capture.dynamo import burnish_backend, torch_compile_stats
x = torch.randn(4)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert torch.equal(torch.compile(lambda x: 2 * x, backend=burnish_backend)(x), 2 * x)
print(*torch_compile_stats().fallbacks)
"""
    )
    assert "has no torch._functorch.aot_autograd.aot_module_simplified" in python(code, tmp_path)


def test_without_dynamos_variables_blocks_are_traced_one_by_one(tmp_path: Path) -> None:
    code = lacking("path.startswith('torch._dynamo.variables')") + _COMPILES
    compiles, *told = python(code, tmp_path).split("|")
    assert compiles == "True" and any(line.startswith(names.NO_REGIONS) for line in told)
    assert not any("runs in eager" in line for line in told)


def test_without_parts_of_guards_there_is_no_warm_start(tmp_path: Path) -> None:
    gone = "path in ('torch._dynamo.guards.CheckFunctionManager', 'torch._guards.GuardsSet')"
    for _ in range(2):
        compiles, *told = python(lacking(gone) + _COMPILES, tmp_path).split("|")
        assert compiles == "True" and any(line.startswith(names.NO_WARM_START) for line in told)
        assert not any("restored" in line or "runs in eager" in line for line in told)


def test_a_name_that_is_really_gone(tmp_path: Path) -> None:
    code = "import warnings, torch, torch._dynamo\ndel torch._dynamo.mark_static_address\n" + _COMPILES
    compiles, *told = python(code, tmp_path).split("|")
    assert compiles == "False" and any("has no torch._dynamo.mark_static_address" in line for line in told)


def test_a_part_that_cannot_be_loaded_is_not_said_to_be_missing(tmp_path: Path) -> None:
    code = """
import warnings, torch, importlib.abc, sys
class Refuses(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch._dynamo.convert_frame":
            raise FileNotFoundError(2, "No usable temporary directory found")
sys.meta_path.insert(0, Refuses())
"""
    compiles, *told = python(code + _COMPILES, tmp_path).split("|")
    (warning,) = (line for line in told if "runs in eager" in line)
    assert compiles == "False"
    assert "cannot load torch._dynamo" in warning and "No usable temporary directory" in warning
    assert "has no" not in warning and "install a torch" not in warning


def test_doctor_says_what_is_missing_and_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.check_private_names().says == str(probe.probe())
    gone = names.PrivateName("torch._dynamo.guards.NoSuchBuilder", "a test", fallback="nothing is done")
    monkeypatch.setattr(probe, "NAMES", (*probe.NAMES, gone))
    line = software.check_private_names()
    found = len(probe.probe().found)
    assert line.status == "warn" and line.says.startswith(f"torch's private names: {found} of {found + 1} found. no ")
    assert line.says.endswith("no torch._dynamo.guards.NoSuchBuilder: nothing is done")
    monkeypatch.setattr(probe, "NAMES", (names.PrivateName("torch._C._no_such", "a test"),))
    assert software.check_private_names().status == "fail" and EAGER in software.check_private_names().says


def test_a_newer_torch_warns_once_and_compiles(tmp_path: Path) -> None:
    older = "from burnish.torch_private import versions\nversions.KNOWN = ((2, 9), (2, 10))\n"
    code = "import warnings, torch\n" + older + _COMPILES + "print(len(caught))"
    code = code.replace("    x = torch.randn", "    burnish.compile(torch.nn.Linear(2, 2))\n    x = torch.randn")
    compiles, *told = python(code, tmp_path).split("|")
    assert compiles == "True" and not any("runs in eager:" in line or "runs in eager because" in line for line in told)
    newer = f"torch {torch.__version__} is newer than this burnish knows (2.9 to 2.10)"
    assert sum(newer in line for line in told) == 1


def test_a_known_torch_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not versions.is_newer_than_known()
    major, minor = versions.KNOWN[1]
    monkeypatch.setattr("torch.__version__", f"{major}.{minor + 1}.1+cpu")
    assert versions.is_newer_than_known() and versions.running() == (major, minor + 1) and versions.is_at_least(2, 13)


def test_a_name_is_not_expected_before_the_version_that_had_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    late = names.PrivateName("torch._no_such", "a test", seen_in=("2.13",))
    monkeypatch.setattr("torch.__version__", "2.13.0")
    assert probe._is_expected(late)
    monkeypatch.setattr("torch.__version__", "2.12.0")
    assert not probe._is_expected(late)


def test_a_name_is_not_expected_after_the_version_that_had_it_last(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, stays = (names.PrivateName("torch._no_such", "a test", seen_in=each) for each in (("2.11",), names.SEEN))
    monkeypatch.setattr("torch.__version__", "2.12.0")
    assert not probe._is_expected(gone) and probe._is_expected(stays)
    monkeypatch.setattr("torch.__version__", "2.16.0")
    assert not probe._is_expected(gone) and probe._is_expected(stays)
