"""The numbers in docs/benchmarks.md and in the README's picture are those of the committed results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.growth import growth_svg
from benchmarks.picture import speedups_svg
from benchmarks.readme import BEGIN, END, PAGE, PICTURE, fresh, with_numbers
from benchmarks.trust_table import promises


@pytest.mark.parametrize("path", [PAGE, PICTURE], ids=lambda path: path.name)
def test_what_is_shown_is_what_is_committed(path: Path) -> None:
    assert path.read_text() == fresh()[path], "run: make readme"


def test_the_picture_has_a_bar_for_each_compiler() -> None:
    rows = {"mlp": {"eager": {"p50_ms": 2.0}, "inductor:reduce-overhead": {"p50_ms": 4.0}}}
    rows["mlp"]["burnish:reduce-overhead"] = {"p50_ms": 0.5}
    drawn = speedups_svg([{"gpu": "Some GPU", "rows": rows}])
    assert "Some GPU" in drawn and ">0.50 ×<" in drawn and ">4.00 ×<" in drawn


def test_a_row_without_all_three_is_left_out_of_the_picture() -> None:
    rows = {"mlp": {"eager": {"p50_ms": 2.0}, "burnish:reduce-overhead": {"p50_ms": 0.5}}}
    assert "MLP" not in speedups_svg([{"gpu": "Some GPU", "rows": rows}])


def test_the_picture_is_well_formed() -> None:
    assert ElementTree.fromstring(PICTURE.read_text()).tag.endswith("svg")


def test_the_picture_follows_the_readers_colours() -> None:
    assert "prefers-color-scheme: dark" in PICTURE.read_text()


def test_lost_markers_are_noticed() -> None:
    with pytest.raises(ValueError, match="markers"):
        with_numbers("# burnish\n", [])


def test_a_result_becomes_two_tables() -> None:
    timing = {"n": 10, "mean": 0.1, "std": 0.0, "p50": 0.1, "p95": 0.1, "p99": 0.1}
    engine = {"cold_seconds": 1.0, "timing": timing, "error": 1e-6, "failure": None, "notes": []}
    row: dict[str, Any] = {
        "measured": "2025-01-01",
        "commit": "abc",
        "torch": "2.13.0",
        "threads": 2,
        "engines": {"eager": engine, "inductor": {**engine, "timing": None}, "burnish": engine},
        "speedup": {"eager": {"value": 1.25, "low": 1.1, "high": 1.3, "rounds": 9, "noisy": True}},
        "cold_seconds": {"inductor": None, "burnish": {"p50": 2.0, "samples": [2.0]}},
        "memory": {"eager": {"call": 3 << 20, "held": 0}, "inductor": None, "burnish": {"call": 0, "held": 1 << 20}},
    }
    result = {"machine": {"cpu": "Some CPU", "cores": 2, "system": "Linux"}, "rows": {"mlp": row}}
    text = with_numbers(f"{BEGIN}{END}", [result])
    assert "| mlp | 100 ms | failed | 100 ms | 1.25 × (1.10–1.30) | – | 1.00 |" in text
    assert "| mlp | failed | 2.0 s | – | 3.0 MiB | – | 0.0 MiB + 1.0 held |" in text


def test_a_gpu_has_a_row_per_candidate() -> None:
    row = {"p50_ms": 0.5, "stream_ms": 0.25, "host_us": 20.4, "kernels": 7, "cold_s": 3.0, "peak_gb": 1.5}
    row |= {"error": 2e-3, "eager_error": 1e-3, "date": "2025-01-01", "commit": "abc"}
    result = {"gpu": "Some GPU", "torch": "2.11", "triton": "3.6", "rows": {"bert-b1": {"burnish:sealed": row}}}
    text = with_numbers(f"{BEGIN}{END}", [result])
    shown = "| bert-b1 | burnish:sealed | 0.500 ms | ≤ 0.35 ms | 0.250 ms | – | 20 µs | 7 | 3.0 s | 1.50 GB | 2.00 |"
    assert shown in text


def test_decoding_has_its_goals_beside_it() -> None:
    when = {"date": "2025-01-01", "commit": "abc"}
    step = {"p50_ms": 0.9, "stream_ms": 0.75, "gb_per_s": 3000.0, "of_bandwidth": 0.8, "cold_s": 3.0, **when}
    start = {
        "first_token_s": 0.5,
        "second_token_s": 3.0,
        "warm": {"first_token_s": 0.25, "second_token_s": 1.0},
        **when,
    }
    rows = {
        "burnish": step,
        "burnish:int4": {**step, "logit_error": 0.1},
        "burnish:start": start,
        "hf:static": {"failure": "no memory"},
    }
    result = {"what": "generation", "gpu": "Some GPU", "torch": "2.11", "rows": {"1b": rows}}
    text = with_numbers(f"{BEGIN}{END}", [result])
    assert "| 1b | burnish | 0.900 ms | 0.750 ms | ≤ 0.7 ms | 3000 | 80% | 3.0 s | – |" in text
    assert "| 1b | burnish:int4 | 0.900 ms | 0.750 ms | ≤ 0.500 ms | 3000 | 80% | 3.0 s | 10.0% |" in text
    assert "| 1b | warm | 0.25 s | ≤ 2 s | 1.00 s |" in text and "hf:static" not in text


def test_a_promise_stands_beside_its_goal(tmp_path: Path) -> None:
    told = {"measured": "2025-01-01", "commit": "abc", "torch": "2.13.0"}
    tails = {f"{when}_{tail}_over_eager": 1.25 for when in ("before", "during") for tail in ("p50", "p95")}
    rows: dict[str, dict[str, Any]] = {
        "never_slower": {f"case-{n}": {**told, "ratio": {"value": 0.5 + n / 10}} for n in range(6)},
        "trust": {"gate": {**told, "target": "bert-base", "value": 0.046, "goal": 0.1}},
        "background": {
            "mlp": {
                **told, **tails, "first_call_over_eager": 1.16, "first_call_over_warm_eager": 2.1,
                "calls_during_compile": 16026, "compile_seconds": 1.3, "during_max_ms": 7.6,
            }
        },
    }  # fmt: skip
    machine = {"cpu": "Some CPU", "cores": 2, "system": "Linux"}
    for kind, found in rows.items():
        (tmp_path / f"{kind}-some-cpu.json").write_text(json.dumps({"machine": machine, "rows": found}))
    text = with_numbers(f"{BEGIN}{END}", promises(tmp_path))
    assert "**Promises, Some CPU, 2 cores** (2025-01-01, commit abc, torch 2.13.0)" in text
    assert "| the worst of 6: case-5 1.00, case-4 0.90, case-3 0.80 | ≤ 1.05 |" in text
    assert "| the gate's share of a cold compile, bert-base | 4.6% | ≤ 10% |" in text
    assert "| mlp 1.16, 2.10 | ≤ 1.2 |" in text
    assert "| 1.25 / 1.25 (eager alone 1.25 / 1.25); 8 ms (of 16,026) | no call waits |" in text


def test_compile_times_stand_beside_their_goals() -> None:
    ratio = {"value": 1.0, "low": 0.99, "high": 1.01, "rounds": 9}
    ours = {"seconds": 2.0, "gate_seconds": 0.5, "host_bytes": 100 << 20}
    theirs = {"seconds": 20.0, "host_bytes": 400 << 20}
    engines = {"inductor": {"cold": theirs, "warm": {"failure": "no"}}, "burnish": {"cold": ours, "warm": ours}}
    row = {"measured": "2025-01-01", "commit": "abc", "torch": "2.13", "mode": None, "engines": engines}
    result = {"what": "compile", "machine": {"cpu": "Some CPU", "cores": 2}, "growth": {"8": row, "32": row}}
    text = with_numbers(f"{BEGIN}{END}", [{**result, "rows": {"bert-base": {**row, "steady": {"ratio": ratio}}}}])
    cold, warm = "20.0 s | 2.0 s | 0.5 s | 1/10.0 (1/8)", "failed | 2.0 s"
    assert f"| bert-base | {cold} | {warm} | 400 MiB | 100 MiB | 1.000 |" in text
    assert "without regions" not in text, "a column that says nothing"
    engines = {**engines, "burnish-whole": {"cold": {**ours, "seconds": 4.0}}}
    text = with_numbers(f"{BEGIN}{END}", [{**result, "rows": {"bert-base": {**row, "engines": engines}}}])
    assert f"| bert-base | {cold} | 4.0 s | 1/5.0 (1/2.5) | {warm} | 400 MiB | 100 MiB |" in text
    assert "| Inductor | 20.0 s | 20.0 s |\n| burnish | 2.0 s | 2.0 s |" in text
    drawn = growth_svg(result["growth"])  # type: ignore[arg-type]
    assert drawn.count("<polyline") == 2 and "torch.compile 20.0 s" in drawn
