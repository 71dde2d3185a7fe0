"""A seeded slice of the search, and every case that failed once. `make fuzz` looks for more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fuzz.case import from_data
from tests.fuzz.check import check
from tests.fuzz.generate import Wishes, random_case
from tests.fuzz.interpreted import run_interpreted
from tests.fuzz.oracle import is_minor

SEEDS = Path(__file__).with_name("seeds.json")
KEPT: list[dict[str, Any]] = json.loads(SEEDS.read_text())
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_as_users_run_it")]

# What is known to be wrong today: `known` in seeds.json says which. Taken out here as each is mended.
BROKEN: frozenset[str] = frozenset()
KNOWN: dict[int, str] = {}  # numbers of the slice


@pytest.fixture
def _as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gate and warm start are what a case says, not what other tests want of them."""
    monkeypatch.delenv("BURNISH_GATE", raising=False)
    monkeypatch.delenv("BURNISH_WARM_START", raising=False)
    torch.set_num_threads(1)


@pytest.mark.parametrize("number", range(60))
def test_case_is_as_in_eager(number: int) -> None:
    if number in KNOWN:
        pytest.skip(f"known: {KNOWN[number]}")
    case = random_case(2024, number, Wishes(BROKEN))
    finds = [f for f in check(case).finds if not is_minor(f)]
    assert not finds, "\n".join([*map(str, finds), case.texts])


@pytest.mark.parametrize("number", range(12))
def test_kernels_of_a_gpu_mean_what_their_schedule_means(number: int) -> None:
    """In Triton's interpreter, which is NumPy: extremes are not what they are on a device."""
    case = random_case(2025, number, Wishes(BROKEN | {"extreme", "module", "same", "alias", "numbers"}))
    finds = run_interpreted(case).finds
    assert not finds, "\n".join([*map(str, finds), case.texts])


@pytest.mark.parametrize("kept", KEPT, ids=[k["name"] for k in KEPT])
def test_kept_case_is_as_in_eager(kept: dict[str, Any]) -> None:
    if kept.get("known"):
        pytest.skip(f"known: {kept['known']}")
    case = from_data(kept["case"])
    finds = [f for f in check(case).finds if not is_minor(f)]
    assert not finds, "\n".join([*map(str, finds), case.texts])
