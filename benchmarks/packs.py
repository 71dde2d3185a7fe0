"""`python -m benchmarks.packs`: how soon a packed model gives its first result, beside the compilers' warm starts.

Every start is a process of its own. What is counted begins when torch is imported and the model is built, and ends with
the first result: importing burnish (and TorchDynamo, unless the model's own package has imported it), loading or
tracing, and the call. `pack` loads a pack, without a C compiler on the PATH and with an empty cache; `burnish` and
`inductor` are warm starts, which find in their caches what a cold start left; `eager` is the first call of the model.
Starts take turns, and the median of each is kept, with the seconds of CPU time beside the seconds on the clock.

    python -m benchmarks.packs [--only bert-base,...] [--repeat 5] [--size full]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.core import RESULTS, machine, machine_slug, provenance
from burnish.tools.bench.children import empty_caches

ROWS = ("bert-base", "resnet50")
Start = Literal["write", "pack", "burnish", "inductor", "eager"]
STARTS: tuple[Start, ...] = ("pack", "burnish", "inductor", "eager")
SECONDS = 1.0  # the goal for the first result of BERT-base from a pack
MEGABYTES = 20.0  # and for its file
_CHILD_SECONDS = 900


@dataclass(frozen=True)
class Job:
    row: str
    size: str
    start: Start
    pack: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), help="rows, separated by commas")
    parser.add_argument("--size", default="full", help="of the workloads: full, or tiny to try this out")
    parser.add_argument("--repeat", type=int, default=5, help="starts of each kind")
    parser.add_argument("--json", type=Path, help="where to write (default: results/packs-MACHINE.json; tiny: not)")
    given = parser.parse_args()
    out = given.json or (RESULTS / f"packs-{machine_slug()}.json" if given.size == "full" else None)
    found: dict[str, Any] = {"what": "packs", "machine": machine(), "rows": {}}
    for row in filter(None, given.only.split(",")):
        found["rows"][row] = measure(row, given.size, given.repeat)
        print(summary(row, found["rows"][row]), flush=True)
        if out is not None:
            out.write_text(json.dumps(found, indent=1) + "\n")
    if out is not None:
        print(f"wrote {out}")


def measure(row: str, size: str, repeat: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="burnish-packs-") as folder, empty_caches() as caches_for:
        pack = Path(folder, "model.burnish")
        written = run(Job(row, size, "write", str(pack)), caches_for("burnish"))
        run(Job(row, size, "inductor", ""), caches_for("inductor"))  # cold
        runs: dict[str, list[dict[str, float]]] = {start: [] for start in STARTS}
        for n in range(repeat):
            for start in STARTS:
                caches = caches_for(f"none-{n}" if start == "pack" else start)
                runs[start].append(run(Job(row, size, start, str(pack)), caches))
        return {
            **provenance("packs"),
            "load_average": round(os.getloadavg()[0], 1),
            "bytes": pack.stat().st_size,
            "write_seconds": written["seconds"],
            "starts": {start: median(each) for start, each in runs.items()},
        }


def median(runs: list[dict[str, float]]) -> dict[str, Any]:
    return {name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]} | {
        "all_seconds": [round(run["seconds"], 4) for run in runs]
    }


def summary(row: str, found: Mapping[str, Any]) -> str:
    lines = [f"{row}: {found['bytes'] / 1e6:.2f} MB"]
    for start, each in found["starts"].items():
        lines.append(f"  {start:9} {each['seconds']:6.2f} s, {each['cpu_seconds']:6.2f} s of CPU time")
    return "\n".join(lines)


# -- one start ----------------------------------------------------------------------------------------------------


def run(job: Job, caches: Mapping[str, str]) -> dict[str, float]:
    environment = {**os.environ, **caches}
    if job.start == "pack":
        environment |= {"PATH": "", "CC": "", "BURNISH_CC": ""}
    command = [sys.executable, "-m", "benchmarks.packs_start", json.dumps(asdict(job))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"{job.row}, {job.start}: {done.stderr.strip()[-1500:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
