"""`python -m benchmarks.warm_start`: seconds to the first result in a process that finds what an earlier one compiled,
burnish against Inductor in turns, written to benchmarks/results/.

Both have every cache of theirs on disk. Ratios within one run are what to trust: absolute times move with the machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.core import RESULTS, machine, machine_slug, provenance
from burnish.bench.candidates import Candidate
from burnish.bench.run import start_seconds
from burnish.measure import quantile

TARGETS = ("bert-base", "gpt2-train")
ENGINES = ("burnish", "inductor")
GOAL = 1 / 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warm_start", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"workloads to measure (default: {' '.join(TARGETS)})")
    parser.add_argument("--warm", type=int, default=3, help="warm starts per engine; the median is reported")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default: results/warm-MACHINE.json)")
    arguments = parser.parse_args()
    out = arguments.out or RESULTS / f"warm-{machine_slug()}.json"
    rows = {target: measure(target, arguments.warm) for target in arguments.targets or TARGETS}
    previous = json.loads(out.read_text())["rows"] if out.exists() else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine(), "rows": {**previous, **rows}}, indent=1) + "\n")
    print(f"wrote {out}")


def measure(target: str, warm: int) -> dict[str, Any]:
    samples = start_seconds(target, [Candidate(engine) for engine in ENGINES], warm)
    median = {engine: quantile(found[1:], 0.5) for engine, found in samples.items()}
    ratio = median["burnish"] / median["inductor"]
    print(
        f"{target}: warm {median['burnish']:.2f} s, Inductor {median['inductor']:.2f} s: {ratio:.2f} (goal {GOAL:.2f})"
    )
    cold = {engine: found[0] for engine, found in samples.items()}
    warms = {engine: found[1:] for engine, found in samples.items()}
    return {**provenance(), "cold_seconds": cold, "warm_seconds": warms, "ratio": ratio}


if __name__ == "__main__":
    main()
