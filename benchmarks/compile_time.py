"""`python -m benchmarks.compile_time`: how long compiling takes, burnish beside torch.compile, written to
benchmarks/results/.

Every compile has a process of its own (`compile_once.py` says what is counted), and engines take turns: ratios within
one run are what to trust. cold starts from empty caches, warm finds what the cold one left; gate is what of burnish's
time goes into comparing with eager and racing against it; memory is the highest resident set of the process with
everything it started, beyond what it had before it compiled, and on a GPU the allocator's beside it. steady is one
process in which calls compiled with regions and without take turns. `--layers 2,8,32,64` measures growth and draws it.

    python -m benchmarks.compile_time [--only bert-base,...] [--engines burnish,inductor] [--parts cold,warm,steady]
    PYTHONPATH=. python3 -m benchmarks.compile_time --device cuda --only bert-b1 --json FILE
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.compile_once import PHASE, Job
from benchmarks.core import RESULTS, machine, machine_slug, provenance
from benchmarks.growth import growth_svg
from benchmarks.nursery import Child
from burnish.tools.bench.children import empty_caches
from burnish.tools.bench.memory import Sampler

ENGINES = ("burnish", "inductor")
PARTS = ("cold", "warm", "steady")
CHILD_SECONDS = 900
MEMORY_SAMPLES_S = 0.02


@dataclass(frozen=True)
class Row:
    """Goals are shares of torch.compile's seconds."""

    cold: float
    warm: float | None = None
    mode: str | None = None  # of both


ROWS: dict[str, dict[str, Row]] = {
    "cpu": {
        "bert-base": Row(1 / 8, 1 / 3),
        "llama-prefill": Row(1 / 8),
        "resnet50": Row(1 / 5),
        "gpt2-train": Row(1 / 6, 1 / 3),
    },
    "cuda": {
        "bert-b1": Row(1 / 5),
        "resnet50-b1": Row(1 / 5),
        "llama-1b-decode": Row(1 / 5),
        "llama-8b-decode": Row(1 / 8, mode="reduce-overhead"),
        "gpt2-train": Row(1 / 5),
    },
}


@dataclass(frozen=True)
class Asked:
    device: str
    engines: tuple[str, ...]
    parts: tuple[str, ...]
    size: str
    repeat: int
    steady_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows, separated by commas (default: all; with --layers, none)")
    parser.add_argument("--layers", default="", help="layers of a Llama to measure growth with, as 2,8,32,64")
    parser.add_argument("--engines", default=",".join(ENGINES), help="of burnish, burnish-whole, inductor")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=list(ROWS))
    parser.add_argument("--size", default="full", help="of the workloads: full, or tiny to try this out")
    parser.add_argument("--repeat", type=int, default=1, help="compiles of each; the median is kept")
    parser.add_argument("--seconds", type=float, default=10.0, help="of calls in steady state")
    parser.add_argument("--json", type=Path, help="where to write (default: results/compile-MACHINE.json; tiny: not)")
    given = parser.parse_args()
    named = {part for part in given.parts.split(",") if part}
    if unknown := named - set(PARTS):
        parser.error(f"--parts are {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    parts = tuple(part for part in PARTS if part in named)
    asked = Asked(given.device, tuple(given.engines.split(",")), parts, given.size, given.repeat, given.seconds)
    growth = [int(layers) for layers in given.layers.split(",") if layers]
    names = [name for name in given.only.split(",") if name] or ([] if growth else list(ROWS[given.device]))
    out = given.json or (RESULTS / f"compile-{slug(given.device)}.json" if given.size == "full" else None)
    kept = Kept(out, given.device)
    if given.device == "cuda":
        read_libraries()
    print(HEAD, flush=True)
    for name in names:
        measure(name, asked, partial(kept.add, "rows", name))
    for layers in growth:
        keep = partial(kept.add, "growth", str(layers))
        measure(f"llama-{layers}-layers", replace(asked, parts=("cold",)), keep)
    if out is not None:
        print(f"wrote {out}")


def slug(device: str) -> str:
    return torch.cuda.get_device_name().split()[-1].lower() if device == "cuda" else machine_slug()


def read_libraries() -> None:
    """Gigabytes, on a new machine from its disk: by whoever is first, were it not done before the first compile."""
    packages = (Path(torch.__file__).parents[1] / name for name in ("torch", "nvidia", "triton"))
    files = [path for package in packages for path in package.rglob("*") if ".so" in path.name or path.name == "ptxas"]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(_read, files))


def _read(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


class Kept:
    """Results so far, written after every compile: what a later failure or Ctrl-C leaves is whole."""

    def __init__(self, path: Path | None, device: str) -> None:
        self._path = path
        self.found: dict[str, Any] = {"rows": {}, "growth": {}}
        if path is not None and path.exists():
            self.found |= json.loads(path.read_text())
        where = {"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}
        self.found |= {"what": "compile", "machine": {**machine(), **where}}

    def add(self, section: str, name: str, row: dict[str, Any]) -> None:
        self.found[section][name] = {**self.found[section].get(name, {}), **provenance("compile_time"), **row}
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.found, indent=1) + "\n")
        if section == "growth" and len(self.found["growth"]) > 1:
            self._path.with_suffix(".svg").write_text(growth_svg(self.found["growth"]))


def measure(name: str, asked: Asked, keep: Callable[[dict[str, Any]], None]) -> None:
    """`keep` is given the row again whenever something was added to it."""
    known = ROWS[asked.device].get(name, Row(1 / 8))
    found: dict[str, Any] = {"mode": known.mode, "engines": {engine: {} for engine in asked.engines}}
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(asked.repeat):
        with empty_caches() as caches_for:
            for start in ("cold", "warm") if "warm" in asked.parts else ("cold",) if "cold" in asked.parts else ():
                for engine in asked.engines:
                    job = Job(name, engine, asked.device, asked.size, known.mode)  # type: ignore[arg-type]
                    run = run_child(job, caches_for(engine))
                    runs.setdefault((engine, start), []).append(run)
                    found["engines"][engine][start] = median(runs[engine, start])
                    print(line(name, engine, start, run), flush=True)
                    keep(found)
            if "steady" in asked.parts and "steady" not in found and not name.endswith("-layers"):
                job = Job(name, "burnish", asked.device, asked.size, known.mode, asked.steady_seconds)
                found["steady"] = run_child(job, caches_for("burnish"))
                print(steady_line(name, found["steady"]), flush=True)
                keep(found)
    for start, goal in (("cold", known.cold), ("warm", known.warm)):
        if ratio := ratio_of(found, start):
            told = f" (goal {goal:.3f})" if goal else ""
            print(f"{name:17} {start:5} burnish takes {ratio:.3f} of Inductor's{told}", flush=True)


def ratio_of(row: dict[str, Any], start: str, engine: str = "burnish") -> float | None:
    seconds = [row["engines"].get(each, {}).get(start, {}).get("seconds") for each in (engine, "inductor")]
    return seconds[0] / seconds[1] if all(seconds) else None


def median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run in the middle, with the seconds of all."""
    good = sorted((run for run in runs if "seconds" in run), key=lambda run: run["seconds"])
    return {**good[len(good) // 2], "all_seconds": [run["seconds"] for run in good]} if good else runs[0]


# -- one child ----------------------------------------------------------------------------------------------------


def run_child(job: Job, caches: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="burnish-compile-") as folder:
        out = Path(folder, "out.json")
        child = Child("benchmarks.compile_once", [json.dumps(asdict(job)), str(out)], out, caches)
        sampler = Sampler(child.pid, every=MEMORY_SAMPLES_S)
        try:
            found = child.result(
                CHILD_SECONDS, lambda text: sampler.phase(text.split()[1]) if text.startswith(PHASE) else None
            )
        finally:
            child.kill()  # what it started, if anything is left
            timeline = sampler.stop()
    peak, before = timeline.peak("compile"), found.pop("before_bytes", None)
    if peak is not None and before is not None:
        found["host_bytes"] = max(0, peak - before)
    return found


HEAD = f"{'row':17} {'engine':14} {'':5} {'s':>7} {'gate s':>7} {'host MiB':>9} {'device MiB':>11}"


def line(name: str, engine: str, start: str, run: dict[str, Any]) -> str:
    head = f"{name:17} {engine:14} {start:5}"
    if "failure" in run:
        return f"{head} FAILED {run['failure'].splitlines()[-1][:150] if run['failure'] else 'it was stopped'}"
    gate = f"{run['gate_seconds']:7.2f}" if "gate_seconds" in run else " " * 7
    memory = [f"{run[key] / 2**20:.0f}" if key in run else "" for key in ("host_bytes", "device_bytes")]
    keys = ("fallbacks", "notices", "misses") if start == "warm" else ("fallbacks", "notices")
    told = "; ".join(text for key in keys for text in run.get(key, ()))
    return f"{head} {run['seconds']:7.2f} {gate} {memory[0]:>9} {memory[1]:>11}  {told[:300]}".rstrip()


def steady_line(name: str, run: dict[str, Any]) -> str:
    if "failure" in run:
        return line(name, "steady", "", run)
    ratio = run["ratio"]
    return (
        f"{name:17} steady: with regions {ratio['value']:.3f} of whole-model's time "
        f"(rounds' middle half {ratio['low']:.3f} to {ratio['high']:.3f}; goal 1.02)"
    )


if __name__ == "__main__":
    main()
