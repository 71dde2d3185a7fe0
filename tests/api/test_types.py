"""A compiled object keeps its type for a type checker, and the package says that it has types."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

USE = Path(__file__).with_name("typed_use.py")
ROOT = Path(__file__).parents[2]
# Of torch nothing is needed, and of burnish the signatures: following all of both takes a minute.
SETTINGS = """\
[mypy]
[mypy-torch.*]
follow_imports = skip
follow_imports_for_stubs = true
[mypy-burnish.bucketed.*,burnish.capture.*,burnish.handle,burnish.identity,burnish.observe.*,burnish.packs.*,burnish.stats]
follow_imports = skip
[mypy-burnish.tools.*,burnish.warmup]
follow_imports = skip
"""


def expected() -> list[str]:
    return re.findall(r"^reveal_type\(.*\)  # (.*)$", USE.read_text(), re.M)


@pytest.fixture(scope="module")
def revealed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("mypy")
    (folder / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--config-file", str(folder / "mypy.ini"), "--cache-dir", str(folder)]
    done = subprocess.run([*command, str(USE)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r'Revealed type is "(.*)"$', done.stdout, re.M)


@pytest.mark.parametrize(("index", "wanted"), list(enumerate(expected())))
def test_the_type_is_the_models_own(index: int, wanted: str, revealed: list[str]) -> None:
    shown = revealed[index].replace("builtins.", "").replace("tests.api.typed_use.", "").replace("typed_use.", "")
    assert shown == wanted


def test_the_package_says_that_it_has_types() -> None:
    assert resources.files("burnish").joinpath("py.typed").is_file()
