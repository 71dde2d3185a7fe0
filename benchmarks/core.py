"""`python -m benchmarks.core`: burnish against Inductor and eager on the CPU, written to benchmarks/results/.

Steady times are taken in turns in one process; cold compiles each in a fresh process with empty caches; memory in a
process per engine. Ratios within one run are what to trust: absolute times move with the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.memory import measured_in_child
from burnish.measure import quantile
from burnish.trial import ENGINES, TITLES, Comparison, cold_seconds, compare, empty_caches
from burnish.workloads import WORKLOADS

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
    with empty_caches() as caches:
        said: list[str] = []

        def show(doing: str, fraction: float) -> None:
            if doing not in said:
                said.append(doing)
                print(f"  {doing} …", flush=True)

        comparison = compare(target, seconds=seconds, caches=caches, on_progress=show)
        print(f"  {target}: memory …", flush=True)
        environment = {**os.environ, **caches}
        memory = {engine: measured_in_child(target, engine, environment) for engine in ENGINES}
    cold = {engine: _colds(comparison, target, engine, colds) for engine in ("inductor", "burnish")}
    row = {
        **provenance(),
        "threads": comparison.threads,
        "engines": {name: dataclasses.asdict(result) for name, result in comparison.engines.items()},
        "speedup": {
            name: {**dataclasses.asdict(ratio), "noisy": ratio.noisy} for name, ratio in comparison.speedup.items()
        },
        "cold_seconds": cold,
        "memory": memory,
    }
    for line in summary(target, row):
        print(line, flush=True)
    return row


def _colds(comparison: Comparison, target: str, engine: str, count: int) -> dict[str, Any] | None:
    first = comparison.engines[engine].cold_seconds
    if first is None:
        return None
    samples = [first]
    for index in range(1, count):
        print(f"  {target}: {TITLES[engine]} compiles, cold, {index + 1} of {count} …", flush=True)
        samples.append(cold_seconds(target, engine))
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


def provenance() -> dict[str, Any]:
    """Of one row: a later run may replace some rows of a file and leave others."""
    return {
        "measured": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version_of("transformers"),
        "compiler": _first_line_of(["cc", "--version"]),
        "command": " ".join(["python -m benchmarks.core", *sys.argv[1:]]),
    }


def machine_slug() -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{platform.machine()}-{cpu_model()}-{os.cpu_count()}c".lower()).strip("-")


def cpu_model() -> str:
    """The processor's name, without marketing marks. lscpu knows Arm parts by name, /proc/cpuinfo only by number."""
    for line in (_output_of(["lscpu"]) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model name" and value.strip() not in ("", "-"):
            return re.sub(r"\((R|TM)\)|@.*|\bProcessor\b|\bCPU\b", "", value).strip()
    return platform.processor() or "unknown CPU"


def _commit() -> str:
    commit = (_output_of(["git", "rev-parse", "--short=12", "HEAD"]) or "unknown").strip()
    changed = _output_of(["git", "status", "--porcelain", "--", "burnish"])
    return commit + ("+changes" if changed else "")


def _version_of(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line_of(command: list[str]) -> str | None:
    text = _output_of(command)
    return text.splitlines()[0] if text else None


def _output_of(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


if __name__ == "__main__":
    main()
