"""`python -m benchmarks.compile_time`: how long compiling takes, cold and warm, burnish beside torch.compile.

Every compile has a process of its own. Cold starts from empty caches; warm is a second process with the caches that the
first one left. Imports and building the model are not counted, the first call (and backward, in training) is. Engines
take turns in one run: ratios are what to trust. `--layers 2,8,32,64` gives growth: a Llama of so many layers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from burnish.bench.children import empty_caches
from burnish.workloads import WORKLOADS

ROWS = ("bert-base", "llama-prefill", "resnet50", "gpt2-train")
ENGINES = ("burnish", "burnish-whole", "inductor")  # the second without regions
LLAMA = {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "vocab_size": 8000}
CHILD_SECONDS = 900


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time", description=__doc__)
    parser.add_argument("rows", nargs="*", default=[], help=f"rows to measure (default: {' '.join(ROWS)})")
    parser.add_argument(
        "--layers", default="", help="numbers of layers of a Llama to measure growth with, as 2,8,32,64"
    )
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="full", help="of the workloads: full, or tiny to try this out")
    parser.add_argument("--repeat", type=int, default=1, help="cold and warm compiles of each; the median is shown")
    parser.add_argument("--out", type=Path, help="where to write the JSON, if it is to be kept")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(compile_once(**json.loads(given.child))))
        return
    growth = [f"llama-{layers}-layers" for layers in given.layers.split(",") if layers]
    rows = given.rows or ([] if growth else list(ROWS))
    results = {row: measure(row, given) for row in [*rows, *growth]}
    written = json.dumps({"torch": torch.__version__, "device": given.device, "rows": results}, indent=1)
    if given.out:
        given.out.write_text(written + "\n")
    print(written)


def measure(row: str, given: argparse.Namespace) -> dict[str, Any]:
    engines = given.engines.split(",")
    taken: dict[str, dict[str, list[dict[str, Any]]]] = {engine: {"cold": [], "warm": []} for engine in engines}
    for _ in range(given.repeat):
        with empty_caches() as caches_for:
            for start in ("cold", "warm"):
                for engine in engines:
                    job = {"row": row, "engine": engine, "device": given.device, "size": given.size}
                    taken[engine][start].append(run_child(job, caches_for(engine)))
    return {engine: {start: median(runs) for start, runs in starts.items()} for engine, starts in taken.items()}


def run_child(job: dict[str, Any], caches: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.compile_time", "--child", json.dumps(job)]
    done = subprocess.run(
        command, env={**os.environ, **caches}, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False
    )
    if done.returncode:
        return {"failure": done.stderr.strip().splitlines()[-1:]}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"  {job['row']} {job['engine']}: {answer['seconds']:.2f} s", file=sys.stderr, flush=True)
    return answer


def median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    good = sorted((run for run in runs if "seconds" in run), key=lambda run: run["seconds"])
    if not good:
        return runs[0]
    return {**good[len(good) // 2], "seconds": statistics.median(run["seconds"] for run in good)}


# --- in the child -----------------------------------------------------------------------------------------------


def compile_once(row: str, engine: str, device: str, size: str) -> dict[str, Any]:
    import burnish

    model, args, kwargs, trains = built(row, size, device)
    begin, cpu = time.perf_counter(), time.process_time()
    if engine == "inductor":
        compiled: Callable[..., Any] = torch.compile(model)
    else:
        regions = "auto" if engine == "burnish" else None
        compiled = burnish.compile(model, options={"regions": regions, "gate": False, "verify": "off"})
    with contextlib.nullcontext() if trains else torch.no_grad():
        result = compiled(*args, **kwargs)
        if trains:
            result.backward()
        if device == "cuda":
            torch.cuda.synchronize()
    row_of = {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}
    if engine != "inductor":
        stats = burnish.stats(compiled)
        row_of |= {
            "stages": {name: round(taken, 3) for name, taken in stats.seconds.items()},  # type: ignore[dict-item]
            "regions": [str(region) for region in stats.regions],  # type: ignore[dict-item]
        }
    return row_of


def built(row: str, size: str, device: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any], bool]:
    torch.manual_seed(0)
    if row.endswith("-layers"):
        return *deep_llama(int(row.split("-")[1]), device), {"use_cache": False}, False
    workload = WORKLOADS[row]
    model, inputs = workload.build(size)
    placed = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), inputs)
    model = model.to(device)
    if isinstance(placed, dict):
        return model, (), placed, workload.kind == "train"
    return model, tuple(placed), {}, workload.kind == "train"


def deep_llama(layers: int, device: str) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    import transformers

    config = transformers.LlamaConfig(num_hidden_layers=layers, **LLAMA)
    model = transformers.LlamaModel(config).eval().to(device)
    return model, (torch.randint(0, config.vocab_size, (1, 32), device=device),)


if __name__ == "__main__":
    main()
