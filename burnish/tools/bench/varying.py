"""`burnish bench TARGET --shapes ...`: shape strategies compared on the same traffic.

Each candidate runs in a fresh process with empty caches. It is prepared (warmed up for the traffic, where it can be),
serves all requests once, and then once more: the first pass shows compile spikes, the second the steady state.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from burnish.errors import BadOptionValue, TrialFailed
from burnish.shapes.strategy import axes_named
from burnish.shapes.traffic import drawn, read_trace
from burnish.tools.bench.machine import Machine, this_machine

DEFAULT = ("eager", "torch-dynamic", "pad", "buckets", "dynamic", "auto")
MEANINGS: Mapping[str, str] = {
    "eager": "not compiled",
    "torch-dynamic": "torch.compile(dynamic=True)",
    "torch-default": "torch.compile()",
    "pad": "each request padded to the largest one",
    "buckets": "buckets learnt from the traffic, in each dimension",
    "dynamic": "burnish with symbolic sizes",
    "static": "a program for each size, bounded",
    "auto": "burnish decides; it learns while it serves",
}
_LIMIT_SECONDS = 3600.0
_CHILD = "from burnish.tools.bench.varying import child_main; child_main()"
_MARK = "burnish-varying:"


@dataclass(frozen=True)
class StrategyResult:
    """One candidate. Times are of one request, in seconds."""

    name: str
    prepare_s: float = 0.0  # warm-up, where there is any
    first_p99_s: float = 0.0  # of the first pass over the traffic
    first_worst_s: float = 0.0
    first_pass_s: float = 0.0
    requests_per_s: float = 0.0  # of the second pass, as are the quantiles
    p50_s: float = 0.0
    p95_s: float = 0.0
    p99_s: float = 0.0
    compiles: int = 0
    compiles_later: int = 0  # in the second pass
    waste: float = 0.0  # the share of padding in the elements
    peak_bytes: int = 0  # of the process
    notes: tuple[str, ...] = ()
    first: tuple[float, ...] = ()  # of each request, in the first pass
    later: tuple[float, ...] = ()  # and in the second
    failure: str = ""  # it has no figures then


@dataclass(frozen=True)
class ShapesResult:
    target: str
    traffic: str
    requests: int
    rows: tuple[StrategyResult, ...] = field(default_factory=tuple)
    sizes: tuple[Mapping[str, int], ...] = ()  # of each request
    machine: Machine | None = None

    @property
    def measured(self) -> tuple[StrategyResult, ...]:
        return tuple(row for row in self.rows if not row.failure)

    def against_eager(self, row: StrategyResult) -> float | None:
        """Its requests per second, against eager's."""
        eager = next((each for each in self.measured if each.name == "eager"), None)
        if eager is None or eager is row or row.failure or not eager.requests_per_s:
            return None
        return row.requests_per_s / eager.requests_per_s

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    def row(self, name: str) -> StrategyResult:
        return next(row for row in self.rows if row.name == name)


def traffic_of(text: str, requests: int, seed: int = 0) -> list[dict[str, int]]:
    """A trace file, or a distribution."""
    if text.endswith(".json") or Path(text).is_file():
        return read_trace(text)
    return drawn(text, requests, seed)


def bench_shapes(
    target: str,
    shapes: str,
    *,
    candidates: Sequence[str] = DEFAULT,
    requests: int = 200,
    seed: int = 0,
    threads: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    on_progress: Callable[[str], None] = lambda doing: None,
) -> ShapesResult:
    """Measure every candidate on the same traffic."""
    for name in candidates:
        if name not in MEANINGS:
            raise BadOptionValue("--candidates", name, f"with --shapes, one of {', '.join(MEANINGS)}")
    traffic = traffic_of(shapes, requests, seed)
    axes_named(list(traffic[0]))  # names that do not exist are said now
    rows = []
    for name in candidates:
        on_progress(f"{name}: {MEANINGS[name]}")
        job = {"target": target, "name": name, "traffic": traffic, "threads": threads, "device": device, "dtype": dtype}
        rows.append(_in_child(job))
    if all(row.failure for row in rows):
        raise TrialFailed(target, 1, "\n".join(f"{row.name}: {row.failure}" for row in rows))
    machine = this_machine(threads or torch.get_num_threads(), _gpu(device))
    return ShapesResult(target, shapes, len(traffic), tuple(rows), tuple(traffic), machine)


def _gpu(device: str | None) -> str | None:
    return torch.cuda.get_device_name() if device is not None and device.startswith("cuda") else None


def _in_child(job: Mapping[str, Any]) -> StrategyResult:
    """A candidate that fails is a row that says so: the others were measured all the same."""
    from burnish.tools.bench.children import empty_caches

    with empty_caches() as caches_for:
        environment = {**os.environ, **caches_for(job["name"])}
        try:
            done = subprocess.run(
                [sys.executable, "-c", _CHILD],
                input=json.dumps(job),
                capture_output=True,
                text=True,
                env=environment,
                timeout=_LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return StrategyResult(job["name"], failure=f"not done within {_LIMIT_SECONDS:.0f} s")
    answer = next((line for line in reversed(done.stdout.splitlines()) if line.startswith(_MARK)), None)
    if answer is None:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), f"status {done.returncode}")
        return StrategyResult(job["name"], failure=last[:300])
    plain: dict[str, Any] = json.loads(answer.removeprefix(_MARK))
    for name, value in plain.items():
        plain[name] = tuple(value) if isinstance(value, list) else value
    return StrategyResult(**plain)


# -- in the child -------------------------------------------------------------------------------------------------


def child_main() -> None:
    job = json.load(sys.stdin)
    result = _measured(job)
    print(_MARK + json.dumps(dataclasses.asdict(result)), flush=True)


def _measured(job: Mapping[str, Any]) -> StrategyResult:
    from burnish.bucketed.form import Reader
    from burnish.tools.targets import load_target, placed, split_inputs
    from burnish.warmup import resized

    if job["threads"]:
        torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    target = load_target(job["target"])
    if job["device"] or job["dtype"]:
        target = placed(target, job["device"], getattr(torch, job["dtype"]) if job["dtype"] else None)
    args, kwargs = split_inputs(target.inputs)
    traffic: list[dict[str, int]] = job["traffic"]
    axes = axes_named(list(traffic[0]))
    reader = Reader(target.model)
    calls = [resized(args, kwargs, axes, request, reader) for request in traffic]
    with target.grad_mode():
        return _timed(job["name"], target.model, target.inputs, traffic, calls)


def _timed(
    name: str,
    model: Callable[..., Any],
    example: Any,
    traffic: Sequence[Mapping[str, int]],
    calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
) -> StrategyResult:
    begin = time.perf_counter()
    run, compiles, waste, notes = _candidate(name, model, example, traffic)
    prepared = time.perf_counter() - begin
    first = _pass(run, calls)
    compiled = compiles()
    later = _pass(run, calls)
    ordered = sorted(later)
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return StrategyResult(
        name,
        prepare_s=prepared,
        first_p99_s=_quantile(sorted(first), 0.99),
        first_worst_s=max(first),
        first_pass_s=sum(first),
        requests_per_s=len(later) / max(sum(later), 1e-9),
        p50_s=_quantile(ordered, 0.5),
        p95_s=_quantile(ordered, 0.95),
        p99_s=_quantile(ordered, 0.99),
        compiles=compiled,
        compiles_later=compiles() - compiled,
        waste=waste(),
        peak_bytes=usage * (1 if sys.platform == "darwin" else 1024),
        notes=notes(),
        first=tuple(first),
        later=tuple(later),
    )


def _candidate(
    name: str, model: Callable[..., Any], example: Any, traffic: Sequence[Mapping[str, int]]
) -> tuple[Callable[..., Any], Callable[[], int], Callable[[], float], Callable[[], tuple[str, ...]]]:
    """What to call, and functions that tell its compiles, its padding and what there is to say."""
    import burnish
    from burnish.torch_private.dynamo import get_compilation_metrics

    def nothing() -> tuple[str, ...]:
        return ()

    if name == "eager":
        return model, lambda: 0, lambda: 0.0, nothing
    if name.startswith("torch-"):
        dynamic = True if name == "torch-dynamic" else None
        compiled: Any = torch.compile(model, dynamic=dynamic)
        return compiled, lambda: len(get_compilation_metrics()), lambda: 0.0, nothing
    made: Any = burnish.compile(model, shapes=_shapes(name, traffic))
    if name in ("pad", "buckets"):
        burnish.warmup(made, list(traffic), example=example, progress=False)

    def waste() -> float:
        shapes = burnish.stats(made).shapes
        return shapes.waste if shapes is not None else 0.0

    def said() -> tuple[str, ...]:
        shapes = burnish.stats(made).shapes
        if shapes is None:
            return ()
        refused = [f"not padded ({count} calls): {why}" for why, count in shapes.refusals.items()]
        return (*(f"planned {plan}" for plan in shapes.plans), *refused)

    return made, lambda: burnish.stats(made).compiles, waste, said


def _shapes(name: str, traffic: Sequence[Mapping[str, int]]) -> Any:
    if name in ("dynamic", "static", "auto"):
        return name
    found: dict[str, Any] = {}
    for axis in axes_named(list(traffic[0])):
        value = max(request[axis.name] for request in traffic) if name == "pad" else "auto"
        if axis.argument is None:
            found[axis.name] = value
        else:
            found.setdefault(axis.argument, {})[axis.dim] = value
    return found


def _pass(run: Callable[..., Any], calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[float]:
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    times = []
    for args, kwargs in calls:
        begin = time.perf_counter()
        run(*args, **kwargs)
        wait()
        times.append(time.perf_counter() - begin)
    return times


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]
