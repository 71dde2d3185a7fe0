"""`python -m benchmarks.core`: burnish against Inductor and eager on the CPU, written to benchmarks/results/.

Steady times are taken in turns in one process; cold compiles each in a fresh process with empty caches; memory in a
process per engine. Ratios within one run are what to trust: absolute times move with the machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.memory import measured_in_child
from burnish.tools.bench.candidates import Candidate
from burnish.tools.bench.children import empty_caches
from burnish.tools.bench.machine import cpu_model, output_of
from burnish.tools.bench.result import BenchResult
from burnish.tools.bench.run import bench, cold_seconds
from burnish.tools.measure import quantile
from burnish.tools.workloads import WORKLOADS

ENGINES = ("eager", "inductor", "burnish")
TITLES = {engine: Candidate(engine).title for engine in ENGINES}
RESULTS = Path(__file__).parent / "results"
CORE = ("bert-base", "mlp")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"workloads to measure (default: {' '.join(CORE)})")
    parser.add_argument("--all", action="store_true", help="measure every built-in workload")
    parser.add_argument("--seconds", type=float, default=20.0, help="timing budget per workload")
    parser.add_argument("--colds", type=int, default=3, help="cold compiles per engine; the median is reported")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default: results/core-MACHINE.json)")
    arguments = parser.parse_args()
    targets = arguments.targets or (list(WORKLOADS) if arguments.all else list(CORE))
    out = arguments.out or RESULTS / f"core-{machine_slug()}.json"
    rows = {target: measure(target, arguments.seconds, arguments.colds) for target in targets}
    previous = json.loads(out.read_text())["rows"] if out.exists() else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine(), "rows": {**previous, **rows}}, indent=1) + "\n")
    print(f"wrote {out}")


def measure(target: str, seconds: float, colds: int) -> dict[str, Any]:
    said: list[str] = []

    def show(doing: str) -> None:
        if doing not in said:
            said.append(doing)
            print(f"  {target}: {doing} …", flush=True)

    result = bench(
        target,
        candidates=",".join(ENGINES),
        seconds=seconds,
        eager_alone=False,
        on_progress=lambda progress: show(progress.doing),
    )
    if result.incomplete:
        raise KeyboardInterrupt
    show("memory")
    with empty_caches() as caches_for:
        memory = {engine: measured_in_child(target, engine, {**os.environ, **caches_for(engine)}) for engine in ENGINES}
    cold = {engine: _colds(result, target, engine, colds) for engine in ("inductor", "burnish")}
    row = {
        **provenance(),
        "threads": result.machine.threads,
        "engines": {row.name: _engine(result, row.name) for row in result.candidates},
        "speedup": _speedups(result),
        "cold_seconds": cold,
        "memory": memory,
    }
    for line in summary(target, row):
        print(line, flush=True)
    return row


def _engine(result: BenchResult, name: str) -> dict[str, Any]:
    row = result[name]
    latency = row.latency
    return {
        "cold_seconds": row.compile.cold_seconds if row.compile else None,
        "timing": latency
        and {
            "n": latency.n,
            "mean": latency.mean.value,
            "std": latency.std,
            "p50": latency.p50.value,
            "p95": latency.p95.value,
            "p99": latency.p99.value,
        },
        "error": row.error,
        "failure": row.failure,
        "notes": [*row.notes, *(f"graph break: {entry.file}:{entry.line}: {entry.reason}" for entry in row.breaks)],
    }


def _speedups(result: BenchResult) -> dict[str, Any]:
    """How many times faster burnish is than each of the others, paired round by round."""
    return {
        name: {
            "value": ratio.value,
            "low": ratio.middle[0],
            "high": ratio.middle[1],
            "rounds": ratio.rounds,
            "noisy": ratio.noisy,
        }
        for name, ratio in result["burnish"].speedup_over.items()
    }


def _colds(result: BenchResult, target: str, engine: str, count: int) -> dict[str, Any] | None:
    cost = result[engine].compile
    if cost is None or cost.cold_seconds is None:
        return None
    samples = [cost.cold_seconds]
    for index in range(1, count):
        print(f"  {target}: {TITLES[engine]} compiles, cold, {index + 1} of {count} …", flush=True)
        samples.append(cold_seconds(target, Candidate(engine)))
    return {"p50": quantile(samples, 0.5), "samples": samples}


def summary(target: str, row: dict[str, Any]) -> list[str]:
    lines = [f"{target}:"]
    for name, result in row["engines"].items():
        if result["timing"] is None:
            lines.append(f"  {TITLES[name]:9} failed: {result['failure']}")
            continue
        cold = row["cold_seconds"].get(name)
        memory = row["memory"][name]
        lines.append(
            f"  {TITLES[name]:9} p50 {result['timing']['p50'] * 1e3:9.3f} ms"
            + f"  cold {cold['p50'] if cold else 0:6.2f} s"
            + (f"  call {memory['call'] / 2**20:7.1f} MiB, held {memory['held'] / 2**20:7.1f} MiB" if memory else "")
            + (f"  error {result['error']:.1e}" if result["error"] is not None else "")
            + "".join(f"  [{note}]" for note in result["notes"])
        )
    for name, ratio in row["speedup"].items():
        noisy = " (noisy)" if ratio["noisy"] else ""
        lines.append(
            f"  burnish is {ratio['value']:.3f} × as fast as {TITLES[name]}"
            f" (rounds' middle half {ratio['low']:.3f}–{ratio['high']:.3f}){noisy}"
        )
    return lines


# -- where and when -----------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    return {"cpu": cpu_model(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}


def provenance(benchmark: str = "core") -> dict[str, Any]:
    """Of one row: a later run may replace some rows of a file and leave others."""
    return {
        "measured": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version_of("transformers"),
        "compiler": _first_line_of(["cc", "--version"]),
        "command": " ".join([f"python -m benchmarks.{benchmark}", *sys.argv[1:]]),
    }


def machine_slug() -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{platform.machine()}-{cpu_model()}-{os.cpu_count()}c".lower()).strip("-")


def _commit() -> str:
    commit = (output_of(["git", "rev-parse", "--short=12", "HEAD"]) or "unknown").strip()
    changed = output_of(["git", "status", "--porcelain", "--", "burnish"])
    return commit + ("+changes" if changed else "")


def _version_of(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line_of(command: list[str]) -> str | None:
    text = output_of(command)
    return text.splitlines()[0] if text else None


if __name__ == "__main__":
    main()
