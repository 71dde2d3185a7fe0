"""What is a region, who says so, where it is told; and that the program is the same either way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish.tools.cli import main
from tests.capture.regions.test_cache_object import SIZE, Cache, Cached, Decoder
from tests.capture.regions.test_replay import Block, Stack

_model = Stack(Block).eval()


class Holder:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square()


def of_module(x: torch.Tensor) -> torch.Tensor:
    return _model(x).square()


def of_closure() -> Any:
    model = _model

    def function(x: torch.Tensor) -> torch.Tensor:
        return model(x).square()

    return function


@pytest.mark.parametrize("function", [of_module, of_closure(), Holder(_model).__call__])
@pytest.mark.parametrize("regions", ["auto", ["Linear"], None])
def test_functions_have_regions_too(function: Any, regions: Any) -> None:
    compiled = burnish.compile(function, regions=regions, verify="off")
    x = torch.randn(5, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x))
    stats = burnish.stats(compiled)
    found = {"auto": [("Block", 3)], None: []}.get(regions if isinstance(regions, str) else None, [])
    assert [(r.name, r.copied) for r in stats.regions] == (found if not isinstance(regions, list) else [("Linear", 6)])
    assert stats.compiles == 1 and not stats.fallbacks


@pytest.mark.parametrize("mode", [None, "max-autotune"])
@pytest.mark.parametrize("training", [False, True])
def test_the_program_is_the_same_with_and_without(tmp_path: Path, mode: str | None, training: bool) -> None:
    """The kernels to the last letter, in every mode, and the calls of them: only inputs may be listed in another order.
    So there is nothing to choose between in steady state."""
    written = []
    for regions in ("auto", "none"):
        torch.manual_seed(0)
        torch.compiler.reset()
        model: nn.Module = Stack(Block) if training else Decoder(Cached, Cache()).eval()
        inputs = (torch.randn(6, SIZE),) if training else (torch.randn(1, SIZE), torch.tensor([2]))
        folder = tmp_path / regions
        options = burnish.Options.from_arguments(
            mode=mode, trust={"regions": regions, "verify": "off", "dump_dir": folder, "cache_dir": folder / "cache"}
        )
        compiled = burnish.compile(model, options=options)
        with torch.set_grad_enabled(training):
            result = compiled(*inputs)
        if training:
            result.square().sum().backward()
        stats = burnish.stats(compiled)
        assert stats.compiles == 1 and bool(stats.regions) == (regions == "auto")
        kernels = {path.name: path.read_text() for path in folder.glob("*.kernels.c")}
        calls = {path.name: path.read_text().count("native_") for path in folder.glob("*.program.py")}
        assert len(kernels) == len(calls) == 1 + training
        written.append((kernels, calls, stats.kernels))
    assert written[0] == written[1]


def test_explain_lists_them_and_takes_the_same_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "model.py"
    target.write_text(
        "import torch\nfrom tests.capture.regions.test_replay import Block, Stack\n"
        "def build():\n    return Stack(Block, 3).eval(), (torch.randn(2, 16),)\n"
    )
    seen = {}
    for regions in ("auto", "none", "blocks.0,blocks.1"):
        assert main(["explain", f"{target}:build", "--json", "--dynamic", "false", "--regions", regions]) == 0
        told = json.loads(capsys.readouterr().out)["stats"]["regions"]
        seen[regions] = [(r["name"], r["traced"], r["copied"], r["shared"]) for r in told]
    assert seen == {"auto": [("Block", 1, 2, 3)], "none": [], "blocks.0,blocks.1": [("Block", 1, 1, 2)]}


def test_no_file_is_read_for_a_log_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import funcname_cache

    read: list[str] = []
    monkeypatch.setattr(funcname_cache, "_add_file", read.append)
    compiled = burnish.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU()), verify="off")
    with torch.no_grad():
        compiled(torch.randn(2, 4))
    assert burnish.stats(compiled).compiles == 1 and not read
