"""What importing burnish brings in, and what compiling for a CPU does not."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def test_importing_burnish_takes_little_beside_importing_torch() -> None:
    try:
        importlib.metadata.distribution("burnish")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("where it is not installed, Dynamo is imported, to be told of the backend")
    code = """
import sys, torch
before = set(sys.modules)
from burnish.api import compile
import burnish
print(len(before), *sorted(set(sys.modules) - before))
"""
    done = python("-X", "importtime", "-c", code)
    torchs, *new = done.stdout.split()
    heavy = [name for name in new if name.startswith(("torch", "triton", "numpy", "rich", "sympy"))]
    assert heavy == [] and len(new) < int(torchs) // 10
    spent = {name: int(total) for total, name in re.findall(r"\| +(\d+) \| (torch|burnish.api)$", done.stderr, re.M)}
    assert spent["burnish.api"] < 0.25 * spent["torch"], spent


@pytest.mark.parametrize(
    ("name", "module"), [("stats", "stats"), *((name, f"tools.{name}") for name in ("bench", "explain", "verify"))]
)
def test_a_submodule_does_not_hide_the_function_of_its_name(name: str, module: str) -> None:
    done = python("-c", f"import burnish.{module}, burnish; print(type(burnish.{name}).__name__)")
    assert done.stdout.split() == ["function"]


def test_submodules_are_attributes() -> None:
    assert python("-c", "import burnish; print(burnish.observe.serve.__name__)").stdout.split() == ["serve"]


def test_what_does_not_exist_is_an_attribute_error() -> None:
    assert python("-c", "import burnish; print(hasattr(burnish, 'complie'))").stdout.split() == ["False"]


def test_dir_shows_what_is_public() -> None:
    done = python("-c", "import burnish; print(*set(burnish.__all__) - set(dir(burnish)))")
    assert done.stdout.split() == []


def test_a_cpu_imports_nothing_of_inductor_or_triton_but_what_torchs_front_end_does() -> None:
    code = """
import sys, torch
def step(compiled):
    compiled(torch.ones(2, 8)).sum().backward()
    with torch.no_grad():
        compiled(torch.ones(2, 8))
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
step(torch.compile(model, backend="aot_eager"))
before = set(sys.modules)
import burnish
compiled = burnish.compile(model)
step(compiled)
assert burnish.stats(compiled).kernels > 0
new = set(sys.modules) - before
assert "burnish.pipeline" in new
ours = ("burnish.runtime.cuda", "burnish.runtime.triton")
print(*(name for name in new if name.startswith(("torch._inductor", "triton", *ours))))
"""
    assert python("-c", code).stdout.split() == []


def test_an_object_that_outlives_its_module_says_nothing() -> None:
    code = """
import burnish
from burnish import handle
kept = burnish.compile(abs).burnish
for name in vars(handle):
    setattr(handle, name, None)  # as Python does at its end
kept.__del__()
"""
    assert python("-c", code).stderr == ""
