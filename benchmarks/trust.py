"""`python -m benchmarks.trust`: what proof and measurement cost, written to benchmarks/results/trust-MACHINE.json.

gate: the share of a cold compile that goes into comparing with eager and racing against it. budget: a first call that
may wait for a part of the compile only, less a call of eager's, in budgets. doctor: seconds of a whole process. bench:
seconds of the command with its defaults (eager, Inductor, burnish). `--target mlp@tiny` tries it out.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import burnish
from benchmarks.core import RESULTS, machine, machine_slug, provenance
from burnish.errors import FallbackWarning
from burnish.stats import Stats
from burnish.tools.bench.run import bench
from burnish.tools.measure import quantile
from burnish.tools.targets import Target, load_target

GOALS = {"gate": 0.10, "budget": 1.10, "doctor": 3.0, "bench": 180.0}
RUNS = 3  # processes of which the median counts
EAGER_CALLS = 8
SHARE_OF_COMPILE = 0.4  # that the budget gives it: it must not be enough


def gate(target: str) -> dict[str, Any]:
    samples = [found["share"] for found in _fresh(target, "gate")]
    return {"target": target, "value": quantile(samples, 0.5), "samples": samples}


def budget(target: str) -> dict[str, Any]:
    """The whole call under a budget, less a steady call of eager's."""
    found = sorted(_fresh(target, "budget"), key=lambda one: one["over"])
    return {
        "target": target, "value": found[RUNS // 2]["over"], "samples": [one["over"] for one in found],
        **{name: found[RUNS // 2][name] for name in ("budget_seconds", "eager_takes_over", "told")},
    }  # fmt: skip


def _fresh(target: str, part: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.trust", "--target", target, "--once", part]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(RUNS)]
    return [json.loads(text.splitlines()[-1]) for text in runs]


def gate_once(target: str) -> dict[str, Any]:
    return {"share": gate_share(first_call(load_target(target)).stats)}


def budget_once(target: str) -> dict[str, Any]:
    limit = max(0.1, SHARE_OF_COMPILE * first_call(load_target(target)).seconds)
    loaded = load_target(target)
    with loaded.grad_mode():
        eager = quantile([_seconds(loaded.step(loaded.model)) for _ in range(EAGER_CALLS)], 0.5)
    with tempfile.NamedTemporaryFile() as events:
        first = first_call(load_target(target), budget=limit, events=events.name)
        told = [json.loads(line) for line in events.read().splitlines()]
    waits = [event["time"] - first.began for event in told if event["kind"] == "budget_exceeded"]
    return {
        "over": (first.seconds - eager) / limit,
        "eager_takes_over": waits[0] / limit if waits else 0.0,  # 0: it was compiled in time
        "budget_seconds": limit,
        "told": [entry.reason for entry in first.stats.fallbacks],
    }


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def doctor(target: str) -> dict[str, Any]:
    """Of the machine: the target does not matter."""
    samples = []
    for _ in range(RUNS):
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


@dataclass(frozen=True)
class First:
    """One first call, with an empty cache: what an earlier process has judged is not judged again."""

    began: float  # by the clock that events have
    seconds: float
    stats: Stats


def first_call(target: Target, **settings: Any) -> First:
    with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        compiled = burnish.compile(target.model, options={"cache_dir": cache, **settings})
        with target.grad_mode():
            began = time.time()
            target.step(compiled)()
            seconds = time.time() - began
            if target.kind == "train" and not settings:
                target.step(compiled)()  # the gate races it once its backward is there
        compiled.burnish.stop_compiling()
        return First(began, seconds, burnish.stats(compiled))


def gate_share(stats: Stats) -> float:
    judging = sum(variant.gate.seconds for variant in stats.variants if variant.gate)
    return judging / (stats.compile_seconds - stats.seconds.get("gate", 0.0))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--target", default="bert-base")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default: results/trust-MACHINE.json)")
    parser.add_argument("--once", choices=("gate", "budget"), help=argparse.SUPPRESS)  # in this process
    arguments = parser.parse_args()
    if arguments.once:
        once = gate_once if arguments.once == "gate" else budget_once
        print(json.dumps(once(arguments.target)))
        return 0
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
