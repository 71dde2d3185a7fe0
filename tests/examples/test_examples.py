"""Each example runs to its end and says what it promises to show."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from burnish.errors import FallbackWarning

EXAMPLES = Path(__file__).parents[2] / "examples"
# The file; the library that it is about; what it prints.
SHOWN = {
    "accelerate_loop": ("accelerate", r"\{'forward': 1, 'backward': 1\}"),
    "custom_op": (None, r"\{'forward': 1, 'backward': 1\}.*'examples::moving_sum.default': 2.* 0 breaks"),
    "diffusion_loop": (None, "in 20 steps: 1 compile"),
    "fabric_loop": ("lightning_fabric", r"\{'forward': 1, 'backward': 1\}"),
    "fastapi_service": ("fastapi", "2 compiled, all before the first request"),
    "hf_pipeline": ("transformers", "1 compiled, .* 0 graph breaks"),
    "hf_trainer": ("accelerate", r"after 6 steps\n\{'forward': 1, 'backward': 1\}, 0 graph breaks, 0 recompiles"),
    "rl_loop": (None, r"return -?\d"),
}


SLOW = {"hf_pipeline", "hf_trainer"}  # importing them takes seconds


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SHOWN])
def test_an_example_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    library, shown = SHOWN[name]
    if library is not None:
        pytest.importorskip(library, reason=f"{library} is not installed: pip install 'burnish[examples]'")
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # Dynamo looks a traced class's module up by its name
    spec.loader.exec_module(module)
    module.main()
    fallbacks = [str(found.message) for found in recwarn if issubclass(found.category, FallbackWarning)]
    assert re.search(shown, capsys.readouterr().out) and fallbacks == []


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHOWN)


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| `(\w+)\.py` \|", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 70
