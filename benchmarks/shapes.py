"""Shape strategies on the traffic of docs/shapes.md: `python -m benchmarks.shapes [TARGET] [--requests N]`.

1,000 requests with lengths log-normal from 8 to 512 and batches from 1 to 8, and then 10,000 calls after `seal`, in
which nothing may compile and the slowest calls of a bucket are compared with its median."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from rich.console import Console

import burnish
from burnish.shapes.strategy import axes_named
from burnish.shapes.traffic import drawn
from burnish.tools.bench.varying import DEFAULT, bench_shapes
from burnish.tools.bench.varying_table import render
from burnish.tools.targets import load_target, split_inputs
from burnish.warmup import resized

TRAFFIC = "lognormal:8-512,batch=1-8"


def sealed(target: str, traffic: str, requests: int, calls: int) -> dict[str, float]:
    """The worst bucket's p99.9 over its p50, and what was compiled, after `seal`."""
    loaded = load_target(target)
    sizes = drawn(traffic, requests)
    args, kwargs = split_inputs(loaded.inputs)
    axes = axes_named(list(sizes[0]))
    times: dict[str, list[float]] = {}
    with torch.no_grad():
        names = {axis.name: "auto" for axis in axes}
        compiled = burnish.compile(loaded.model, shapes=names)
        burnish.warmup(compiled, sizes, example=loaded.inputs)
        burnish.seal(compiled)
        compiles = burnish.stats(compiled).compiles
        for k in range(calls):
            request = sizes[k % len(sizes)]
            given = resized(args, kwargs, axes, request)
            begin = time.perf_counter()
            compiled(*given[0], **given[1])
            spent = time.perf_counter() - begin
            times.setdefault(compiled.burnish.entrance.variant_of(*given[0], **given[1]), []).append(spent)
    tails = []
    for each in times.values():
        each.sort()
        if len(each) >= 100:
            tails.append(each[min(int(0.999 * len(each)), len(each) - 1)] / each[len(each) // 2])
    return {
        "compiles": burnish.stats(compiled).compiles - compiles,
        "buckets": len(times),
        "worst p99.9 over p50": max(tails, default=0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="bert-base")
    parser.add_argument("--traffic", default=TRAFFIC)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--sealed-calls", type=int, default=10_000)
    parser.add_argument("--candidates", default=",".join(DEFAULT))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console = Console(highlight=False, markup=False)
    result = bench_shapes(
        arguments.target,
        arguments.traffic,
        candidates=arguments.candidates.split(","),
        requests=arguments.requests,
        threads=arguments.threads,
        on_progress=console.print,
    )
    console.print(render(result))
    tail = {}
    if arguments.sealed_calls:
        tail = sealed(arguments.target, arguments.traffic, arguments.requests, arguments.sealed_calls)
        console.print(tail)
    if arguments.json:
        arguments.json.write_text(json.dumps({**json.loads(result.to_json()), "sealed": tail}, indent=1) + "\n")


if __name__ == "__main__":
    main()
