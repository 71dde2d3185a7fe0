"""How long the Triton kernels of whole models take to build, on a machine without a GPU as on one with.

    PYTHONPATH=. python3 -m benchmarks.kernel_builds [bert resnet gpt2-train] [--capability 90]

Each figure is a process of its own with empty caches: threads of it (Triton's import and the hash of its library
included), worker processes from their start, worker processes that were started while something else was done, and a
second process that finds every kernel in the cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch.utils._python_dispatch import _disable_current_modes

from burnish.capture.autograd.partition import partition
from burnish.capture.graphs.decompositions import decomposition_table
from burnish.fuel import Fuel
from burnish.lower.importer import import_graph
from burnish.observe.log import CompileLog
from burnish.passes import run_passes
from burnish.runtime.cache.store import Cache
from burnish.runtime.cuda.program import generate_cuda, kernel_source
from burnish.runtime.triton.build import KernelBuilder
from burnish.runtime.triton.compile import KernelSource, compile_kernel
from burnish.runtime.triton.workers import WorkerPool, worker_count
from burnish.schedule.fuse import fuse
from burnish.schedule.gpu.backends import choose_backends
from burnish.schedule.gpu.products import group_siblings
from burnish.schedule.gpu.split_reductions import split_reductions
from burnish.schedule.lower import lower_graph

WAYS = ("threads", "workers", "workers, started", "cached")


def sources_of(model: Callable[..., Any], capability: int, *args: Any, **kwargs: Any) -> list[KernelSource]:
    """Every kernel of a call, and of its backward: captured on the CPU, lowered for a GPU."""
    found: dict[Any, KernelSource] = {}

    def keep(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        with _disable_current_modes():
            captured = import_graph(gm, "cuda")
            captured.graph = run_passes(captured.graph, Fuel(None), lambda name, graph: None)
            schedule = choose_backends(fuse(lower_graph(captured), only_products=True))
            schedule = group_siblings(split_reductions(fuse(schedule)))
            unit = generate_cuda(schedule, capability >= 90).triton
        for call in unit.calls.values():
            source = kernel_source(unit, call, call.launch, capability)
            found[source.function, call.launch] = source
        return make_boxed_func(gm.forward)

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return aot_module_simplified(
            gm, inputs, fw_compiler=keep, bw_compiler=keep, inference_compiler=keep, partition_fn=partition,
            decompositions=decomposition_table(), keep_inference_input_mutations=True,
        )  # fmt: skip

    result = torch.compile(model, backend=backend)(*args, **kwargs)
    if isinstance(result, torch.Tensor) and result.requires_grad:
        result.backward()
    return list(found.values())


def bert(capability: int) -> list[KernelSource]:
    import transformers

    model = transformers.BertModel(transformers.BertConfig()).eval().bfloat16()
    ids = torch.randint(0, 30000, (1, 128))
    with torch.no_grad():
        return sources_of(model, capability, input_ids=ids, attention_mask=torch.ones_like(ids))


def resnet(capability: int) -> list[KernelSource]:
    from burnish.tools.workloads import WORKLOADS

    model, _ = WORKLOADS["resnet50"].build()
    model = model.bfloat16().to(memory_format=torch.channels_last)
    image = torch.randn(1, 3, 224, 224, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    with torch.no_grad():
        return sources_of(model, capability, image)


def gpt2_train(capability: int) -> list[KernelSource]:
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    model.train()

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    return sources_of(loss, capability, torch.randint(0, 50000, (1, 128)))


MODELS = {"bert": bert, "resnet": resnet, "gpt2-train": gpt2_train}


def measure(way: str, sources: Sequence[KernelSource], folder: Path) -> float:
    """Seconds, in this process."""
    pool = WorkerPool(worker_count())
    if way == "threads":
        begin = time.perf_counter()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda source: compile_kernel(source, folder), sources))
        return time.perf_counter() - begin
    if way == "workers, started":
        pool.start()
        pool.build(sources[0])
    begin = time.perf_counter()
    pool.start()
    builder = KernelBuilder(Cache(folder / ("cache" if way != "workers" else "other"), 1 << 30), lambda: pool)
    builder.build(sources, CompileLog())
    seconds = time.perf_counter() - begin
    pool.close()
    return seconds


def _child(way: str, file: Path) -> None:
    sources = [KernelSource.from_dict(plain) for plain in json.loads(file.read_text())]
    print(measure(way, sources, file.parent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        return _child(arguments.child[0], Path(arguments.child[1]))
    print(f"{worker_count()} workers; seconds:\n{'':12}{'kernels':>8}" + "".join(f"{way:>18}" for way in WAYS))
    for name in arguments.models:
        sources = MODELS[name](arguments.capability)
        row = f"{name:12}{len(sources):>8}"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "sources.json"
            file.write_text(json.dumps([source.to_dict() for source in sources]))
            for way in WAYS:
                command = ["env", f"TRITON_CACHE_DIR={folder}/triton", sys.executable, "-m", "benchmarks.kernel_builds"]
                out = subprocess.run([*command, "--child", way, str(file)], capture_output=True, text=True, check=True)
                row += f"{float(out.stdout.split()[-1]):>18.2f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
