"""Loops that GCC has to make vectors of: one that it does not is slower by an order of magnitude."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from burnish.codegen.c.unit import generate
from burnish.options import Options
from burnish.runtime.build.shared_library import GENERATED_FLAGS, NATIVE_DIR
from tests.programs import capture, schedules


def what_gcc_says(text: str, folder: Path) -> str:
    compiler = Options().cc
    assert compiler is not None
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    if "Free Software Foundation" not in version:
        pytest.skip("another compiler, which says it in another way")
    source = folder / "kernels.c"
    source.write_text(text)
    command = [compiler, *GENERATED_FLAGS, "-I", str(NATIVE_DIR), "-c", str(source), "-o", "/dev/null"]
    done = subprocess.run([*command, "-fopt-info-vec-optimized"], capture_output=True, text=True, check=True)
    return "\n".join(line for line in done.stderr.splitlines() if "kernels.c" in line)


@pytest.mark.parametrize(
    "function",
    [
        F.relu,
        F.relu6,
        F.hardswish,
        F.hardsigmoid,
        lambda x: x.clamp(-1.0, 1.0),
        lambda x: (x * 4).round().clamp(-128, 127).to(torch.int8),
        lambda x: torch.minimum(torch.maximum(x, x * 2), x + 1),
    ],
    ids=["relu", "relu6", "hardswish", "hardsigmoid", "clamp", "quantised", "between"],
)
def test_it_is_a_loop_over_vectors(function: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    (got,) = capture(function, torch.zeros(64, 1000))
    text = generate(schedules(got.captured)[1]).text
    assert "loop vectorized" in what_gcc_says(text, tmp_path)


INTEGER_LOOPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "sum of columns": lambda x: x.sum(0),
    "negative": lambda x: -x,
    "largest": lambda x: x.amax(-1),
    "compared": lambda x: x + 1 > x,
    "shifted": lambda x: (x << 3) + 5,
}


@pytest.mark.parametrize("name", INTEGER_LOOPS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_integers_that_wrap_around_are_vectors_too(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    (got,) = capture(INTEGER_LOOPS[name], torch.zeros(64, 1000, dtype=dtype))
    assert "loop vectorized" in what_gcc_says(generate(schedules(got.captured)[1]).text, tmp_path)


@pytest.mark.parametrize("want", [torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_casts_to_integers_are_vectors(want: torch.dtype, tmp_path: Path) -> None:
    (got,) = capture(lambda x: (x * 3).to(want), torch.zeros(64, 1000))
    assert "loop vectorized" in what_gcc_says(generate(schedules(got.captured)[1]).text, tmp_path)


def test_a_known_divisor_or_exponent_stands_where_it_is_used() -> None:
    (got,) = capture(lambda x, n: (x.abs().pow(2.5), n // 3), torch.zeros(64, 1000), torch.zeros(64, dtype=torch.int64))
    text = generate(schedules(got.captured)[1]).text
    assert "bn_powf(v1, 0x1.4000000000000p+1f)" in text and ", INT64_C(3))" in text
