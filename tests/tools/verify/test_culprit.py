"""Injected faults: each is found, traced to the step that made it, and shown by a repro file that runs."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.tools.verify import verify
from tests.tools.verify.faults import FAULTS

ROOT = Path(__file__).parents[3]


class Small(nn.Module):
    """A bit of everything that a fault can hit, on a scale of its own for each."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.linear(x))
        centred = torch.softmax(hidden, -1) - hidden.mean(-1, keepdim=True)
        return torch.tanh(centred) + nn.functional.gelu(hidden) * 2


EXPECTED: dict[str, dict[str, Any]] = {
    # fault: stages it may be found in, what the step says, which tensors are wrong
    "wrong_pass": {"stages": {"passes"}, "step": "swap: ", "kinds": {"output", "gradient"}},
    "wrong_fusion": {"stages": {"fuse"}, "step": "fuse: ", "kinds": {"output"}},
    "wrong_codegen": {"stages": {"codegen"}, "step": "kernel", "kinds": {"output"}},
    "one_percent": {"stages": {"codegen"}, "step": "kernel", "kinds": {"output"}, "calls": 1},
    "wrong_lowering": {"stages": {"import"}, "step": "aten.gelu.default", "kinds": {"output"}, "calls": 1},
    "wrong_gradient": {"stages": {"import"}, "step": "aten.tanh_backward.default", "kinds": {"gradient"}, "calls": 1},
    "wrong_state": {"stages": {"passes"}, "step": "", "kinds": {"state"}},
    "wrong_program": {"stages": {"program"}, "step": "", "kinds": {"output"}},
}


def run_file(file: Path, fault: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.tools.verify.faults", fault, str(file)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_named_and_shown(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Small(), torch.randn(5, 6)
    FAULTS[fault](monkeypatch.setattr)
    result = verify(model, (x,), sets=["given"], gradients=True, repro=tmp_path / "repro.py")
    want = EXPECTED[fault]
    assert not result.ok and want["kinds"] <= {check.kind for check in result.failures}, result
    assert result.culprit is not None and result.culprit.stage in want["stages"], result
    assert want["step"] in result.culprit.step
    if result.culprit.stage in ("passes", "fuse", "codegen") and fault != "wrong_state":
        assert "loop [" in result.culprit.kernel and "float *" in result.culprit.source
        assert result.culprit.source[:80] in str(result)
    assert result.repro == tmp_path / "repro.py", result.notes
    text = result.repro.read_text()
    assert text.count("torch.ops.aten.") <= want.get("calls", 8), "it should have been cut down"
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(result.repro), run_name="__main__")
    assert end.value.code == 1


def test_a_repro_file_runs_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as faulty:
        FAULTS["wrong_lowering"](faulty.setattr)
        result = verify(Small(), (torch.randn(5, 6),), sets=["given"], gradients=False, repro=tmp_path / "repro.py")
    assert result.repro is not None
    for fault, status, said in (("wrong_lowering", 1, "WRONG"), ("none", 0, "right now")):
        shown = run_file(result.repro, fault)
        assert shown.returncode == status and said in shown.stdout, shown


def test_a_right_model_has_no_culprit(tmp_path: Path) -> None:
    result = verify(Small(), (torch.randn(5, 6),), repro=tmp_path / "repro.py")
    assert result.ok and result.culprit is None and result.repro is None and result.compiled
    assert not (tmp_path / "repro.py").exists()
    assert {"output", "state", "gradient"} == {check.kind for check in result.checks}
    assert {"given", "random", "special", "batch"} == {check.inputs for check in result.checks}
    assert "right: " in str(result)


def test_the_fuel_named_is_the_first_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS["wrong_fusion"](monkeypatch.setattr)
    model, x = Small(), torch.randn(5, 6)
    result = verify(model, (x,), sets=["given"], gradients=False, repro=tmp_path / "repro.py")
    assert result.culprit is not None and result.culprit.fuel
    for fuel, right in ((result.culprit.fuel - 1, True), (result.culprit.fuel, False)):
        options = burnish.Options(fuel=fuel)
        assert verify(model, (x,), sets=["given"], gradients=False, options=options, bisect=False).ok is right
