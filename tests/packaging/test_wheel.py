"""The wheel that a user installs: what is in it, and that it works from another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = {".c", ".h", ".css", ".typed"}
COMPILE = """
import torch, burnish
compiled = burnish.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), gate=False)
with torch.no_grad():
    compiled(torch.ones(2, 8))
print(burnish.stats(compiled).kernels, burnish.__file__)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: what lies about in build/ is no part of it."""
    pytest.importorskip("build", reason="build is not installed")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT / "burnish", source / "burnish", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), cwd=source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that has the wheel, and of the one that runs the tests only its
    libraries: a path file does not make an editable install of burnish visible."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", str(home))
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel))
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def run(*command: str, cwd: Path | None = None) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_all_package_data_is_in_it(wheel: Path) -> None:
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "burnish").rglob("*") if path.suffix in DATA}
    assert wanted - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_nothing_but_the_package_is_in_it(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"burnish"}


def test_the_command_works(installed: Path, tmp_path: Path) -> None:
    assert "usage: burnish" in run(str(installed / "burnish"), "--help", cwd=tmp_path)


def test_it_compiles_from_another_folder(installed: Path, tmp_path: Path) -> None:
    kernels, file = run(str(installed / "python"), "-c", COMPILE, cwd=tmp_path).split()
    assert int(kernels) > 0 and Path(file).is_relative_to(installed.parent)


def test_torch_finds_the_backend(installed: Path, tmp_path: Path) -> None:
    code = "import torch; print('burnish' in torch._dynamo.list_backends())"
    assert run(str(installed / "python"), "-c", code, cwd=tmp_path).split() == ["True"]
