"""One compile in a process of its own, for `benchmarks.compile_time`: `python -m benchmarks.compile_once JOB OUT`.

The modules that an engine is made of are imported and the model is built before the clock starts. What is counted is
the call of the compiler and the first call of what it made, with its backward in training; with CUDA graphs the first
three, as it takes so many until a graph is replayed. burnish has its default options: it compares and races, too.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.cuda import WORK, Work
from burnish.tools.bench.memory import give_back_freed_memory, resident_bytes
from burnish.tools.measure import interleave

PHASE = "compile-once:"  # what the parent listens for
LLAMA = {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "vocab_size": 8000}
GRAPHED_CALLS = 3
_MODULES = {
    "burnish": ("torch._dynamo", "torch._functorch.aot_autograd", "burnish.pipeline", "burnish.capture.entry.entrance"),
    "inductor": ("torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.compile_fx"),
}
_ON_CUDA = {
    "burnish": ("burnish.runtime.cuda.program", "burnish.runtime.cuda.graphs"),
    "inductor": ("torch._inductor.codegen.triton",),
}

Engine = Literal["burnish", "burnish-whole", "inductor"]  # the second without regions


@dataclass(frozen=True)
class Job:
    row: str
    engine: Engine
    device: str
    size: str = "full"
    mode: str | None = None  # of both compilers
    steady_seconds: float = 0.0  # of calls with regions beside calls without them, instead of one compile


def main(text: str, out: str) -> None:
    job = Job(**json.loads(text))
    _import_for(job)
    torch.manual_seed(0)
    work = built(job)
    trains = work.reference is None
    with torch.set_grad_enabled(trains):
        found = steady(job, work) if job.steady_seconds else compiled_once(job, work)
    Path(out).write_text(json.dumps(found))


def _import_for(job: Job) -> None:
    engine = job.engine.partition("-")[0]
    for name in (*_MODULES[engine], *(_ON_CUDA[engine] if job.device == "cuda" else ())):
        importlib.import_module(name)


# -- what is measured ---------------------------------------------------------------------------------------------


def compiled_once(job: Job, work: Work) -> dict[str, Any]:
    if job.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    give_back_freed_memory()
    before, held = resident_bytes(), _device_bytes(job)
    print(PHASE, "compile", flush=True)
    begin, cpu = time.perf_counter(), time.process_time()
    compiled = apply(job, work.model)
    step = work.step(compiled)
    for _ in range(GRAPHED_CALLS if job.mode else 1):
        step()
    _wait(job)
    found: dict[str, Any] = {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}
    print(PHASE, "done", flush=True)
    found["before_bytes"] = before
    if job.device == "cuda":
        found["device_bytes"] = torch.cuda.max_memory_allocated() - held
    if job.engine != "inductor":
        found |= _told(compiled)
    step()  # at the second call, or training step, the gate may race; what it finds is kept for the next process
    _wait(job)
    if job.engine != "inductor":
        found["judged_seconds"] = _told(compiled)["judged_seconds"]
    return found


def apply(job: Job, model: torch.nn.Module) -> Callable[..., Any]:
    if job.engine == "inductor":
        return torch.compile(model, mode=job.mode)
    import burnish

    return burnish.compile(model, mode=job.mode, regions="auto" if job.engine == "burnish" else None)


def _told(compiled: Callable[..., Any]) -> dict[str, Any]:
    import burnish

    stats = burnish.stats(compiled)
    stages = {name: round(taken, 3) for name, taken in stats.seconds.items()}
    return {
        "gate_seconds": stats.seconds.get("gate", 0.0),
        "judged_seconds": stats.seconds.get("gate", 0.0),  # with what comes after the first call
        "stages": stages,
        "regions": [str(region) for region in stats.regions],
        "variants": [str(variant) for variant in stats.variants],
        "notices": [notice for notice in stats.notices if "stor" in notice or "warm" in notice],
        "misses": list(stats.cache_reasons)[:4],
        "fallbacks": [str(fallback) for fallback in stats.fallbacks],
    }


def steady(job: Job, work: Work) -> dict[str, Any]:
    """The same calls with regions and without, in turns, in one process; the gate is out of it."""
    import burnish

    options = {"gate": False, "verify": "off"}
    if job.mode in ("reduce-overhead", "max-autotune"):
        options["cuda_graphs"] = True
    steps = {
        name: work.step(burnish.compile(work.model, options={**options, "regions": regions}))
        for name, regions in (("regions", "auto"), ("whole", None))
    }
    for step in steps.values():
        for _ in range(GRAPHED_CALLS):
            step()
    race = interleave(steps, seconds=job.steady_seconds, synchronize=lambda: _wait(job))
    return {"ratio": asdict(race.ratio("regions", "whole")), "seconds": race.timing("regions").p50}


def _wait(job: Job) -> None:
    if job.device == "cuda":
        torch.cuda.synchronize()


def _device_bytes(job: Job) -> int:
    return torch.cuda.memory_allocated() if job.device == "cuda" else 0


# -- models -------------------------------------------------------------------------------------------------------


def built(job: Job) -> Work:
    if job.row.endswith("-layers"):
        return deep_llama(int(job.row.split("-")[1]), job.device)
    if job.row.endswith("-decode"):
        return decode(job)
    return WORK[job.row]() if job.device == "cuda" else on_cpu(job)


def on_cpu(job: Job) -> Work:
    from burnish.tools.workloads import WORKLOADS

    workload = WORKLOADS[job.row]
    model, inputs = workload.build(job.size)
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})

    def step(called: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            result = called(*args, **kwargs)
            if workload.kind == "train":
                result.backward()
                model.zero_grad(set_to_none=True)
            return result

        return run

    return Work(model, step, None if workload.kind == "train" else _no_reference)


def deep_llama(layers: int, device: str) -> Work:
    import transformers

    config = transformers.LlamaConfig(num_hidden_layers=layers, **LLAMA)
    model = transformers.LlamaModel(config).eval().to(device)
    ids = torch.randint(0, config.vocab_size, (1, 32), device=device)
    return Work(model, lambda called: lambda: called(ids, use_cache=False), _no_reference)


def decode(job: Job) -> Work:
    """A step of decoding as people write it: the model compiled, a static cache, the position as a tensor."""
    from transformers import StaticCache

    from benchmarks import generation

    setting = generation.Setting(job.device, layers=2 if job.size == "tiny" else None)
    shape = generation.WORK[job.row.removeprefix("llama-").removesuffix("-decode")]
    model = generation.build(shape, setting)
    ids = torch.randint(0, model.config.vocab_size, (shape.batch, 8), device=job.device)
    cache = StaticCache(config=model.config, max_cache_len=shape.room)
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)  # which makes the cache
    token = ids[:, :1].clone()
    return Work(model, lambda called: generation.cached_step(called, cache, token, shape.held), _no_reference)


def _no_reference() -> torch.Tensor:
    raise NotImplementedError("nothing is compared here")


if __name__ == "__main__":
    main(*sys.argv[1:])
