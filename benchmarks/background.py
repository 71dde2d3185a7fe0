"""`python -m benchmarks.background`: what a compile in the background costs the calls that go on meanwhile.

The first call against an eager call, and the latency of calls before the compile, while it runs, and after it. The
figures to trust are the ratios: all of them are of one process, one after the other.
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
from burnish.measure import quantile
from burnish.workloads import WORKLOADS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.background", description=__doc__)
    parser.add_argument("target", nargs="?", default="bert-base", choices=sorted(WORKLOADS))
    parser.add_argument("--size", default="full", choices=("full", "tiny"))
    parser.add_argument("--calls", type=int, default=20, help="eager calls to compare with")
    parser.add_argument("--most", type=float, default=180.0, help="give up on the compile after so many seconds")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between calls (0: one after the other)")
    parser.add_argument("--out", type=Path, help="write the figures as JSON, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache, torch.no_grad():
        figures = measured(arguments.target, arguments.size, arguments.calls, arguments.most, arguments.pause, cache)
    for name, value in figures.items():
        print(f"{name:32} {value:.3f}" if isinstance(value, float) else f"{name:32} {value}")
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1) + "\n")


def measured(target: str, size: str, calls: int, most: float, pause: float, cache: str) -> dict[str, Any]:
    model, inputs = WORKLOADS[target].build(size)
    compiled = burnish.compile(model, options={"background": True, "cache_dir": cache})

    def seconds(call: Callable[..., Any]) -> float:
        start = time.perf_counter()
        call(**inputs) if isinstance(inputs, dict) else call(*inputs)
        return time.perf_counter() - start

    def first_call() -> float:
        fresh = burnish.compile(model, options={"background": True, "cache_dir": cache})
        taken = seconds(fresh)
        fresh.burnish.stop_compiling()
        return taken

    for _ in range(3):
        seconds(model)
    first_call()
    pairs = [(seconds(model), first_call()) for _ in range(calls)]  # in turns: the machine may be busy
    eager, firsts = [list(times) for times in zip(*pairs, strict=True)]
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
    middle = quantile(eager, 0.5)
    return {
        "target": target,
        "eager_ms": middle * 1e3,
        "first_call_over_eager": quantile(firsts, 0.5) / middle,
        "calls_during_compile": len(during),
        "compile_seconds": compile_seconds,
        "during_p50_over_eager": quantile(during, 0.5) / middle,
        "during_p95_over_eager": quantile(during, 0.95) / middle,
        "during_max_over_eager": max(during) / middle,
        "first_compiled_call_over_eager": swap / middle,
        "after_p50_over_eager": quantile(after, 0.5) / middle,
        "jobs": [str(job) for job in burnish.stats(compiled).jobs],
    }


if __name__ == "__main__":
    main()
