"""`python -m benchmarks.trust`: what proof and measurement cost, written to benchmarks/results/trust-MACHINE.json.

gate: the share of a cold compile that goes into comparing with eager and racing against it. budget: when a call
returns that may wait for a part of the compile only. doctor: a whole process. bench: the command with its defaults
(eager, Inductor, burnish). `--target mlp@tiny` tries it out in seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import burnish
from benchmarks.core import RESULTS, machine, machine_slug, provenance
from burnish.bench.run import bench
from burnish.errors import FallbackWarning
from burnish.measure import quantile
from burnish.stats import Stats
from burnish.targets import Target, load_target

GOALS = {"gate": 0.10, "budget": 1.10, "doctor": 3.0, "bench": 180.0}
DOCTOR_RUNS = 3
SHARE_OF_COMPILE = 0.4  # that the budget gives it: it must not be enough


def gate(target: str) -> dict[str, Any]:
    seconds, stats = first_call(load_target(target))
    return {"target": target, "value": gate_share(stats), "first_call_seconds": seconds}


def budget(target: str) -> dict[str, Any]:
    whole, _ = first_call(load_target(target))
    limit = max(0.1, SHARE_OF_COMPILE * whole)
    loaded = load_target(target)
    with loaded.grad_mode():
        loaded.step()()
        begin = time.perf_counter()
        loaded.step()()
        eager = time.perf_counter() - begin
    waited, stats = first_call(loaded, budget=limit)
    reasons = [entry.reason for entry in stats.fallbacks]
    return {"target": target, "value": (waited - eager) / limit, "budget_seconds": limit, "told": reasons}


def doctor(target: str) -> dict[str, Any]:
    """Of the machine: the target does not matter."""
    samples = []
    for _ in range(DOCTOR_RUNS):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "burnish", "doctor", "--json"], capture_output=True, check=False)
        samples.append(time.perf_counter() - begin)
    return {"value": quantile(samples, 0.5), "samples": samples}


def bench_seconds(target: str) -> dict[str, Any]:
    result = bench(target)
    return {"target": target, "value": result.seconds, "verdict": result.verdict.headline}


PARTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "gate": gate, "budget": budget, "doctor": doctor, "bench": bench_seconds,
}  # fmt: skip


def first_call(target: Target, **settings: Any) -> tuple[float, Stats]:
    """With an empty cache: what an earlier process has judged is not judged again."""
    with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        compiled = burnish.compile(target.model, options={"cache_dir": cache, **settings})
        with target.grad_mode():
            begin = time.perf_counter()
            target.step(compiled)()
            seconds = time.perf_counter() - begin
            if target.kind == "train" and not settings:
                target.step(compiled)()  # the gate races it once its backward is there
        compiled.burnish.stop_compiling()
        return seconds, burnish.stats(compiled)


def gate_share(stats: Stats) -> float:
    judging = sum(variant.gate.seconds for variant in stats.variants if variant.gate)
    return judging / (stats.compile_seconds - stats.seconds.get("gate", 0.0))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--target", default="bert-base")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default: results/trust-MACHINE.json)")
    arguments = parser.parse_args()
    out = arguments.out or RESULTS / f"trust-{machine_slug()}.json"
    rows = json.loads(out.read_text())["rows"] if out.exists() else {}
    found = {}
    for part in arguments.parts or PARTS:
        found[part] = {**provenance("trust"), "goal": GOALS[part], **PARTS[part](arguments.target)}
        print(f"{part:8} {found[part]['value']:8.3f}  (goal: at most {GOALS[part]:g})", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine(), "rows": {**rows, **found}}, indent=1) + "\n")
    print(f"wrote {out}")
    return int(any(row["value"] > row["goal"] for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
