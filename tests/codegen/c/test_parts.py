"""One C file as several: every kernel in one of them, and the same numbers."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import burnish
from burnish.codegen.c import split_unit
from burnish.codegen.c.split_unit import in_parts
from burnish.runtime.build import shared_library

NAME = "a name that is longer than what of it goes into the names of files " * 2
OPTIONS = {"gate": False, "warm_start": False}


def layers() -> nn.Module:
    torch.manual_seed(0)
    parts = (nn.Linear(96, 200), nn.LayerNorm(200), nn.GELU(), nn.Linear(200, 70), nn.Softmax(-1))
    return nn.Sequential(*parts)


def test_programs_in_parts_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = layers(), torch.randn(40, 96)
    whole, parts = (torch.empty(0), torch.empty(0))
    texts: list[list[str]] = []
    compile_all = shared_library._compile

    def watched(job, *args):  # type: ignore[no-untyped-def]
        if job.name.startswith(NAME):
            texts.append([source.text for source in job.sources])
        return compile_all(job, *args)

    monkeypatch.setattr(shared_library, "_compile", watched)
    with torch.no_grad():
        whole = burnish.compile(model, name=NAME, options=OPTIONS)(x)
        monkeypatch.setattr(split_unit, "_WORTH", 1)
        parts = burnish.compile(model, name=NAME, options=OPTIONS)(x)
    assert [len(each) for each in texts] == [1, 2]
    assert torch.equal(whole, parts)
    kernels = [re.findall(r"^[^;\n]*\bvoid (k\d+)\([^;\n]*\)$", text, re.MULTILINE) for text in texts[1]]
    assert len(kernels[0]) + len(kernels[1]) == len({*kernels[0], *kernels[1]}) > 2 and all(kernels)
    assert "bn_run_0" in texts[1][0] and "bn_run_0" not in texts[1][1]


def test_short_texts_stay_whole() -> None:
    text = '#include "bn_kernel.h"\n\nstatic void k0(float *p0)\n{\n}\n\nvoid bn_run_0(int64_t *t)\n{\n}\n'
    assert in_parts(text, 2) == [text]
