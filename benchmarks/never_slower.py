"""`python -m benchmarks.never_slower`: functions that compiling may well make slower, against eager, in turns.

Small ones, ones that TorchDynamo breaks into several graphs, NumPy, training steps, and sizes and arguments that change
(`never_slower_cases.py`); in steady state, after every race was held. The claim is a ratio of at most 1.05 for each.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import burnish
from benchmarks.core import RESULTS, machine, machine_slug, provenance
from benchmarks.never_slower_cases import CASES, Case, Step, Unavailable
from benchmarks.trust import gate_share
from burnish.tools.measure import Race, interleave, quantile
from burnish.trust.interval import Interval

LIMIT = 1.05
_WARM_STEPS, _LEAST_SECONDS, _MOST_SECONDS = 1000, 3.0, 10.0  # races are held meanwhile, and what they need is built


def warm_up(steps: Sequence[Step]) -> None:
    for step in steps:
        begin, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - begin) < _MOST_SECONDS:
            step()
            count += 1
            if count >= _WARM_STEPS and spent > _LEAST_SECONDS:
                break


def interval(race: Race) -> dict[str, float]:
    """Of burnish's time over eager's: the median over rounds, and the interval of that."""
    pairs = zip(race.rounds["burnish"], race.rounds["eager"], strict=True)
    found = Interval.of([quantile(ours, 0.5) / quantile(theirs, 0.5) for ours, theirs in pairs])
    assert found is not None  # there are at least eight rounds
    return {"value": found.median, "low": found.low, "high": found.high, "rounds": found.rounds}


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """With an empty cache: what an earlier process has judged is not judged again."""
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as cache, torch.set_grad_enabled(case.grad), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = burnish.compile(case.target, gate=True, dynamic=case.dynamic, options={"cache_dir": cache})
        candidates = {"eager": case.work(case.target), "burnish": case.work(compiled)}
        warm_up(list(candidates.values()))
        race = interleave(candidates, seconds=seconds)
    stats = burnish.stats(compiled)
    return {
        **provenance("never_slower"),
        "ratio": interval(race),  # of times: below 1, burnish is faster
        "eager": dataclasses.asdict(race.timing("eager")),
        "burnish": dataclasses.asdict(race.timing("burnish")),
        "whole_call": [dataclasses.asdict(each) for each in stats.whole_call],
        "variants": [dataclasses.asdict(variant) for variant in stats.variants],
        "graph_breaks": len(stats.graph_breaks),
        "gate_share_of_compile": gate_share(stats),
    }


def served(row: dict[str, Any]) -> str:
    """By whom, over all kinds of calls."""
    found = [each["served"] for each in row["whole_call"]] or [each["engine"] for each in row["variants"]]
    return ", ".join(f"{found.count(each)} {each}" for each in sorted(set(found)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.never_slower", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)} (default: all)")
    parser.add_argument("--seconds", type=float, default=4.0, help="timing budget per case")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default: results/never_slower-MACHINE.json)")
    arguments = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for name in arguments.cases or CASES:
        try:
            row = rows[name] = measure(CASES[name](), arguments.seconds)
        except Unavailable as missing:
            print(f"{name:28} left out: {missing} is not installed")
            continue
        ratio, eager = row["ratio"], row["eager"]["p50"] * 1e6
        told = f"{ratio['value']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        print(f"{name:28} {told}, eager takes {eager:.1f} us, served: {served(row)}", flush=True)
    worst = max(rows, key=lambda name: rows[name]["ratio"]["value"])
    print(f"worst of {len(rows)}: {worst}, {rows[worst]['ratio']['value']:.3f} of eager's time (goal {LIMIT})")
    out = arguments.out or RESULTS / f"never_slower-{machine_slug()}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine(), "limit": LIMIT, "rows": rows}, indent=1) + "\n")
    print(f"wrote {out}")
    return 1 if rows[worst]["ratio"]["value"] > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
