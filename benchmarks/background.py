"""`python -m benchmarks.background`: what a compile in the background costs the calls that go on meanwhile.

The first call against an eager call, and the latency of calls before the compile, while it runs, and after it. The
figures to trust are the ratios: all of them are of one process, one after the other. What eager calls themselves show
on this machine (`before_*`) is there to compare the tails with. Written to benchmarks/results/background-MACHINE.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import burnish
from benchmarks.core import RESULTS, machine, machine_slug, provenance
from burnish.tools.measure import quantile
from burnish.tools.workloads import WORKLOADS

TARGETS = ("mlp", "bert-base")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.background", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"workloads to measure (default: {' '.join(TARGETS)})")
    parser.add_argument("--size", default="full", choices=("full", "tiny"))
    parser.add_argument("--calls", type=int, default=20, help="eager calls to compare with")
    parser.add_argument("--most", type=float, default=180.0, help="give up on the compile after so many seconds")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between calls (0: one after the other)")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default: results/background-MACHINE.json)")
    arguments = parser.parse_args()
    out = arguments.out or RESULTS / f"background-{machine_slug()}.json"
    rows = json.loads(out.read_text())["rows"] if out.exists() else {}
    for target in arguments.targets or TARGETS:
        with tempfile.TemporaryDirectory() as cache, torch.no_grad():
            found = measured(target, arguments.size, arguments.calls, arguments.most, arguments.pause, cache)
        rows[target] = {**provenance("background"), **found}
        for name, value in found.items():
            print(
                f"{target:10} {name:32} {value:.3f}" if isinstance(value, float) else f"{target:10} {name:32} {value}"
            )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print(f"wrote {out}")


def measured(target: str, size: str, calls: int, most: float, pause: float, cache: str) -> dict[str, Any]:
    model, inputs = WORKLOADS[target].build(size)
    options = {"background": True, "cache_dir": cache}
    compiled = burnish.compile(model, options=options)

    def seconds(call: Callable[..., Any]) -> float:
        start = time.perf_counter()
        call(**inputs) if isinstance(inputs, dict) else call(*inputs)
        return time.perf_counter() - start

    def first_call(eager: bool, warm: int = 0) -> float:
        """With nothing else at work in this process; and, unless warm, nothing in the processor's caches."""
        fresh = burnish.compile(model, options=options)
        time.sleep(_SETTLE_SECONDS)
        for _ in range(warm):
            seconds(model)
        taken = seconds(model if eager else fresh)
        fresh.burnish.stop_compiling()
        return taken

    def over_eager(warm: int) -> float:
        pairs = [(first_call(True, warm), first_call(False, warm)) for _ in range(calls)]  # in turns
        eager, ours = [quantile(list(times), 0.5) for times in zip(*pairs, strict=True)]
        return ours / eager

    first_call(False)
    first, first_warm = over_eager(0), over_eager(3)
    time.sleep(_SETTLE_SECONDS)
    seconds(model)
    one = min(seconds(model) for _ in range(3))
    before = [seconds(model) for _ in range(max(calls, min(1000, int(1 / one))))]
    seconds(compiled)
    during: list[float] = []
    end = time.perf_counter() + most
    start = time.perf_counter()
    while not compiled.burnish.wait(pause) and time.perf_counter() < end:
        during.append(seconds(compiled))
    compile_seconds = time.perf_counter() - start
    swap = seconds(compiled)
    compiled.burnish.wait()
    after = [seconds(compiled) for _ in range(calls)]
    middle = quantile(before, 0.5)
    return {
        "eager_ms": middle * 1e3,
        "first_call_over_eager": first,
        "first_call_over_warm_eager": first_warm,
        "calls_during_compile": len(during),
        "compile_seconds": compile_seconds,
        **{f"before_{name}_over_eager": quantile(before, q) / middle for name, q in _QUANTILES.items()},
        **{f"during_{name}_over_eager": quantile(during, q) / middle for name, q in _QUANTILES.items()},
        "during_max_ms": max(during) * 1e3,
        "during_share_above_2": sum(taken > 2 * middle for taken in during) / len(during),
        "first_compiled_call_over_eager": swap / middle,
        "after_p50_over_eager": quantile(after, 0.5) / middle,
        "jobs": [str(job) for job in burnish.stats(compiled).jobs],
    }


_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
_SETTLE_SECONDS = 0.03  # for the compiling thread to notice that it was told to stop


if __name__ == "__main__":
    main()
