"""The numbers on a GPU: every workload with eager, torch.compile's modes and burnish's, each in a process of its own.

    PYTHONPATH=. python3 -m benchmarks.cuda [--only bert-b1,...] [--candidates burnish:default,...] [--json FILE]
    [--turns] [--top]

A process has empty caches, so its first call is a cold compile; with --turns, the candidates of a workload compile at
the same time (and how long that takes is no figure), and are timed one after the other. A FILE that exists keeps its
other rows. p50 is one call with a synchronisation after it, as a
request sees it; stream is the time of a call among many back to back; host is the time until the call returns; gpu is
the sum of the kernels' times in one call (of a CUDA graph too). The error is against float64, beside eager's own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.nursery import Child
from benchmarks.turns import in_turns, wait_for_turn
from burnish.tools.bench.children import empty_caches
from burnish.tools.bench.warmup import until_decided

CANDIDATES = (
    "eager", "inductor:default", "inductor:reduce-overhead", "inductor:max-autotune",
    "burnish:default", "burnish:reduce-overhead", "burnish:max-autotune", "burnish:sealed",
)  # fmt: skip
OWN = ("burnish:sealed",)  # candidates that the goals are for
GOALS = {"bert-b1": 0.35, "bert-b32": 1.5, "resnet50-b1": 0.40, "resnet50-b32": 1.3, "gpt2-train": 20, "mlp": 0.030}
CHILD_SECONDS = 360  # a search of max-autotune ends by itself well before


@dataclass
class Work:
    """A workload as the processes run it: `step(model)` makes the call that is timed."""

    model: torch.nn.Module
    step: Callable[[Callable[..., Any]], Callable[[], Any]]
    reference: Callable[[], torch.Tensor] | None = None  # in float64, on the same numbers


def bert(batch: int) -> Work:
    import transformers

    model = transformers.BertModel(transformers.BertConfig()).eval().cuda().bfloat16()
    ids = torch.randint(0, 30000, (batch, 128), device="cuda")
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return _inference(model, (), inputs)


def resnet(batch: int) -> Work:
    from burnish.tools.workloads import WORKLOADS

    model, _ = WORKLOADS["resnet50"].build()
    model = model.cuda().bfloat16().to(memory_format=torch.channels_last)
    image = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    return _inference(model, (image.to(memory_format=torch.channels_last),), {})


def mlp() -> Work:
    from burnish.tools.workloads import WORKLOADS

    model, _ = WORKLOADS["mlp"].build()
    return _inference(model.cuda(), (torch.randn(1, 8, device="cuda"),), {})


def _inference(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work:
    def step(called: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: _first(called(*args, **kwargs))

    def reference() -> torch.Tensor:
        dtype = next(model.parameters()).dtype
        try:
            wide = [a.double() if a.is_floating_point() else a for a in args]
            return _first(model.double()(*wide, **kwargs)).clone()
        finally:
            model.to(dtype)

    return Work(model, step, reference)


def _first(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]


class NextTokenLoss(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = self.model(input_ids=ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def gpt2_train() -> Work:
    import transformers

    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = NextTokenLoss(transformers.GPT2LMHeadModel(config)).cuda().train()
    ids = torch.randint(0, config.vocab_size, (8, 1024), device="cuda")
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(called: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> torch.Tensor:
            loss: torch.Tensor = called(ids)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            return loss.detach()

        return run

    return Work(model, step)


WORK: dict[str, Callable[[], Work]] = {
    "bert-b1": lambda: bert(1),
    "bert-b32": lambda: bert(32),
    "resnet50-b1": lambda: resnet(1),
    "resnet50-b32": lambda: resnet(32),
    "gpt2-train": gpt2_train,
    "mlp": mlp,
}


# -- one process --------------------------------------------------------------------------------------------------


def measure(workload: str, candidate: str, seconds: float, profile: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    work = WORK[workload]()
    training = work.reference is None
    with torch.set_grad_enabled(training):
        plain = work.step(work.model)
        own = None if training else plain().double().clone()
        wide = None if work.reference is None else work.reference()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        called = compiled(candidate, work.model)
        call = work.step(called)
        begin = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        first = time.perf_counter() - begin
        found: dict[str, Any] = {}
        if wide is not None and own is not None:
            scale = wide.abs().max().item()
            found["error"] = (result.double() - wide).abs().max().item() / scale
            found["eager_error"] = (own - wide).abs().max().item() / scale
        for _ in range(10):
            call()
        until_decided(called, call)
        if candidate.endswith("sealed"):
            called.burnish.seal()  # type: ignore[attr-defined]
        together = wait_for_turn()
        torch.cuda.reset_peak_memory_stats()
        found |= timings(call, seconds)
        if not together:
            found["cold_s"] = first - found["p50_ms"] / 1e3
        found["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        if profile:
            found |= kernels(call)
        if candidate.startswith("burnish"):
            found["notes"] = notes(called)
    return found


def compiled(candidate: str, model: torch.nn.Module) -> Callable[..., Any]:
    engine, _, mode = candidate.partition(":")
    if engine == "eager":
        return model
    if engine == "inductor":
        return torch.compile(model, mode=None if mode == "default" else mode)
    import burnish

    return burnish.compile(model, mode="reduce-overhead" if mode == "sealed" else mode)


def notes(called: Callable[..., Any]) -> list[str]:
    import burnish

    stats = burnish.stats(called)
    out = [f"fallback {f}" for f in stats.fallbacks]
    out += [f"{count} x {op}" for op, count in stats.aten_calls.items()]
    out += [f"{stage} {seconds:.2f} s" for stage, seconds in stats.seconds.items()]
    out += [f"{count} x {what}" for what, count in stats.notices.items() if what.startswith("tuning")]
    changed = [t for t in stats.tuning if t.form != t.rule]
    out += [f"{len(changed)} of {len(stats.tuning)} kernels not by the rule"] if stats.tuning else []
    out += [f"tuned {t}" for t in sorted(changed, key=lambda t: -(t.gain or 1.0))]
    return [*out, *(str(v) for v in stats.variants)]


def timings(
    call: Callable[[], Any], seconds: float, sync: Callable[[], object] = torch.cuda.synchronize
) -> dict[str, Any]:
    clock = time.perf_counter
    for _ in range(5):
        call()
    sync()
    begin = clock()
    call()
    sync()
    n = max(20, min(2000, int(seconds / (clock() - begin))))
    whole, host = [], []
    for _ in range(n):
        begin = clock()
        call()
        returned = clock()
        sync()
        whole.append(clock() - begin)
        host.append(returned - begin)
    sync()
    begin = clock()
    for _ in range(n):
        call()
    sync()
    stream = (clock() - begin) / n
    whole.sort()
    return {
        "p50_ms": statistics.median(whole) * 1e3, "p99_ms": whole[int(0.99 * (n - 1))] * 1e3,
        "mean_ms": statistics.fmean(whole) * 1e3, "std_ms": statistics.pstdev(whole) * 1e3, "n": n,
        "stream_ms": stream * 1e3, "host_us": statistics.median(host) * 1e6,
    }  # fmt: skip


def kernels(call: Callable[[], Any]) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    on_device = [e for e in prof.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    by_name: dict[str, list[float]] = {}
    for event in on_device:
        by_name.setdefault(event.name, []).append(event.device_time_total)
    top = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:20]
    return {
        "gpu_ms": sum(e.device_time_total for e in on_device) / 3e3,
        "kernels": round(len(on_device) / 3),
        "top": [[name[:100], round(len(t) / 3, 1), round(sum(t) / 3, 1)] for name, t in top],
    }


# -- all of them --------------------------------------------------------------------------------------------------


def run_children(
    workload: str, candidates: list[str], seconds: float, turns: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    more = [str(seconds), "--profile"]
    if turns:
        yield from in_turns("benchmarks.cuda", workload, candidates, more, CHILD_SECONDS)
        return
    for candidate in candidates:
        yield candidate, in_fresh_process("benchmarks.cuda", workload, candidate, more, CHILD_SECONDS)


def in_fresh_process(
    module: str, workload: str, candidate: str, more: list[str], limit: int, twice: bool = False
) -> dict[str, Any]:
    """What `python -m module --child WORKLOAD CANDIDATE OUT ...` writes to OUT, with empty caches; `twice`: and, as
    "warm", what a second process writes that finds the caches of the first."""
    with tempfile.TemporaryDirectory(prefix="burnish-bench-") as folder, empty_caches() as caches_for:
        out, caches = Path(folder, "result.json"), caches_for(candidate)
        arguments = ["--child", workload, candidate, str(out), *more]
        found = Child(module, arguments, out, caches).result(limit)
        if twice and "failure" not in found:
            found["warm"] = Child(module, arguments, out, caches).result(limit)
        return found


def line(workload: str, candidate: str, row: dict[str, Any]) -> str:
    if "failure" in row:
        return f"{workload:13} {candidate:25} FAILED {row['failure'].splitlines()[-1][:120] if row['failure'] else ''}"
    gpu = f"{row['gpu_ms']:7.3f} {row['kernels']:4d}" if "gpu_ms" in row else " " * 12
    error = f"{row['error']:.1e} ({row['eager_error']:.1e})" if "error" in row else ""
    return (
        f"{workload:13} {candidate:25} {row['p50_ms']:8.3f} {row['stream_ms']:8.3f} {row['host_us']:7.0f} {gpu} "
        f"{row.get('cold_s', float('nan')):6.1f} {row['peak_gb']:6.2f}  {error}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(WORK), help="workloads, separated by commas")
    parser.add_argument("--candidates", default=",".join(CANDIDATES))
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed calls per candidate")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--turns", action="store_true", help="compile side by side, time one after the other")
    parser.add_argument("--top", action="store_true", help="print the kernels that take most time")
    parser.add_argument("--child", nargs=4, metavar=("WORKLOAD", "CANDIDATE", "OUT", "SECONDS"), help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        workload, candidate, out, seconds = options.child
        Path(out).write_text(json.dumps(measure(workload, candidate, float(seconds), options.profile)))
        return
    rows: dict[str, dict[str, Any]] = {}
    if options.json and options.json.exists():
        rows = json.loads(options.json.read_text())["rows"]
    heads = ("p50 ms", "stream", "host µs", "gpu ms")
    print(
        f"{'workload':13} {'candidate':25} " + " ".join(f"{h:>8}" for h in heads) + "    n cold s     GB  error (eager)"
    )
    for workload in options.only.split(","):
        asked = options.candidates.split(",")
        for candidate, row in run_children(workload, asked, options.seconds, options.turns):
            rows.setdefault(workload, {})[candidate] = {**row, **when()}
            print(line(workload, candidate, row), flush=True)
            if options.top:
                print_details(row)
            if options.json:
                write(options.json, facts(), rows)


def print_details(row: dict[str, Any]) -> None:
    for note in row.get("notes", ()):
        print(f"    {note[:240]}")
    for name, count, micros in row.get("top", ()):
        print(f"    {micros:9.1f} µs {count:6.1f} x  {name}")


def write(path: Path, told: dict[str, Any], rows: dict[str, dict[str, Any]]) -> None:
    path.write_text(json.dumps({**told, "rows": rows}, indent=1) + "\n")


def when() -> dict[str, str]:
    """Each row has its own, as a file may hold rows of several runs."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"date": datetime.date.today().isoformat(), "commit": found.stdout.strip()}


def facts() -> dict[str, Any]:
    import triton

    return {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "python": platform.python_version(),
    }  # fmt: skip


if __name__ == "__main__":
    main()
