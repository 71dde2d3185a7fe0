"""The measurement, in any process: one candidate alone, or all of them alternately.

`bench` runs these in children: one for each candidate with empty caches, then one for the race, with the caches that
those filled. For a model that only exists in the caller's process it runs them right there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from burnish.errors import in_one_line
from burnish.tools.bench.around import StepShare, measure_share
from burnish.tools.bench.candidates import EAGER, Candidate
from burnish.tools.bench.energy import Energy, cpu_meter, energy_per_call, gpu_meter
from burnish.tools.bench.measured import Break, CheckLine
from burnish.tools.bench.memory import (
    MemoryUse,
    call_rise,
    forget_peak,
    give_back_freed_memory,
    peak_bytes,
    resident_bytes,
)
from burnish.tools.bench.noise import Activity, Watch
from burnish.tools.bench.nvml import Gpu, find_gpu
from burnish.tools.bench.operators import CallProfile, profile_call
from burnish.tools.bench.statistics import Estimate, Latency, Speedup, estimate_of, latency_of, speedup_of, thinned
from burnish.tools.bench.warmup import WarmUp, until_decided, warm_up
from burnish.tools.measure import Race, interleave
from burnish.tools.parity import compare, tensors_in
from burnish.tools.targets import Target
from burnish.torch_private import dynamo

ALONE_SECONDS = 2.0  # of steady calls beside a cold compile: enough to subtract them from the first call
WARM_UP_SECONDS = 4.0  # at most, per candidate, before the race
MOST_SAMPLES = 600  # kept for plots

Say = Callable[[float, str, str], None]  # the part done, the phase, and what is being done in words
Model = Callable[..., Any]


@dataclass(frozen=True)
class Alone:
    """What one candidate did in a process of its own."""

    device: str = "cpu"
    gpu: str | None = None
    kind: str = "inference"
    batch_size: int | None = None
    threads: int = 1
    load_seconds: float = 0.0
    first_call_seconds: float | None = None
    cold_seconds: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    memory: MemoryUse = field(default_factory=MemoryUse)
    kernels: int | None = None
    breaks: tuple[Break, ...] = ()
    notes: tuple[str, ...] = ()
    failure: str | None = None


@dataclass(frozen=True)
class Lane:
    """What one candidate did in the race."""

    failure: str | None = None
    latency: Latency | None = None
    samples: tuple[float, ...] = ()
    host: Estimate | None = None
    speedup_over: dict[str, Speedup] = field(default_factory=dict)
    warm_seconds: float | None = None
    warm_up: WarmUp | None = None
    profile: CallProfile | None = None
    energy: Energy | None = None
    error: float | None = None
    uncompared: str = ""  # why there is no error


@dataclass(frozen=True)
class Raced:
    lanes: dict[str, Lane] = field(default_factory=dict)
    activity: Activity | None = None
    share: StepShare | None = None
    share_failure: str | None = None
    interrupted: bool = False


def device_of(target: Target) -> torch.device:
    """Where the target computes: its first parameter's device, or its first input's."""
    if isinstance(target.model, torch.nn.Module):
        for parameter in target.model.parameters():
            return parameter.device
    return next((tensor.device for tensor in tensors_in(target.inputs)), torch.device("cpu"))


def evident_batch_size(target: Target) -> int | None:
    """What the target says, or the first dimension where all of its inputs have the same one."""
    if target.batch_size is not None:
        return target.batch_size
    sizes = {tensor.shape[0] for tensor in tensors_in(target.inputs) if tensor.ndim > 0}
    return sizes.pop() if len(sizes) == 1 else None


def synchronizer(device: torch.device) -> Callable[[], None] | None:
    return torch.cuda.synchronize if device.type == "cuda" else None


@dataclass(frozen=True)
class Checked:
    lines: tuple[CheckLine, ...] = ()


def checked(target: Target, say: Say, calls: int) -> Checked:
    """The production checklist of the target compiled by burnish."""
    from burnish.tools.doctor.checklist import QUESTIONS, checklist

    done = 0

    def hear(doing: str) -> None:
        nonlocal done
        say(done / len(QUESTIONS), "checklist", f"checklist: {doing.partition(': ')[2].rstrip(' …')}")
        done += 1

    lines = checklist(target, calls=calls, on_progress=hear)
    return Checked(tuple(CheckLine(line.name, line.verdict, line.figure, line.advice) for line in lines))


# -- one candidate, cold ------------------------------------------------------------------------------------------


def measure_alone(target: Target, candidate: Candidate, say: Say, load_seconds: float, import_seconds: float) -> Alone:
    """Compile and call once, then a few times more. Everything that can be told about it is in the answer, also when
    the candidate fails."""
    device = device_of(target)
    wait = synchronizer(device)
    about = Alone(
        device=device.type,
        gpu=torch.cuda.get_device_name(device) if wait else None,
        kind=target.kind,
        batch_size=evident_batch_size(target),
        threads=torch.get_num_threads(),
        load_seconds=load_seconds,
    )
    before = resident_bytes()
    forget_peak()
    say(0.2, "compile", f"{candidate.title} compiles, cold" if candidate.compiles else "eager's first call")
    try:
        _device_peak(device)
        with target.grad_mode():
            compiled, first = _first_call(target, candidate, wait)
        compile_peak, device_compile_peak = peak_bytes(), _device_peak(device)
        say(0.8, "steady", f"{candidate.title}: first steady calls")
        step = target.step(compiled)
        with target.grad_mode():
            steady = warm_up(step, seconds=ALONE_SECONDS, synchronize=wait or _nothing, least=3)
            rise = call_rise(step)
    except (Exception, SystemExit) as error:
        return dataclasses.replace(about, failure=in_one_line(error), memory=MemoryUse(before=before))
    _drop_gradients(target)
    give_back_freed_memory()
    extra = import_seconds if candidate.engine == "burnish" else 0.0
    return dataclasses.replace(
        about,
        first_call_seconds=first,
        cold_seconds=max(0.0, first - min(steady.samples)) + extra if candidate.compiles else None,
        memory=MemoryUse(
            before=before,
            compile_peak=compile_peak,
            steady=resident_bytes(),
            call_rise=rise,
            device_compile_peak=device_compile_peak,
            device_steady_peak=_device_peak(device),
        ),
        **_told_by(compiled, candidate),
    )


def _first_call(target: Target, candidate: Candidate, wait: Callable[[], None] | None) -> tuple[Model, float]:
    begin = time.perf_counter()
    compiled = candidate.apply(target.model)
    target.step(compiled)()
    if wait:
        wait()
    return compiled, time.perf_counter() - begin


def _told_by(compiled: Model, candidate: Candidate) -> dict[str, Any]:
    """What burnish knows about its own compile; other engines keep no such account."""
    if candidate.engine != "burnish":
        return {}
    from burnish import api

    stats = api.stats(compiled)
    return {
        "stages": {stage: seconds for stage, seconds in stats.seconds.items() if seconds > 0},
        "kernels": stats.kernels,
        "breaks": tuple(
            Break(entry.file, entry.line, entry.reason, linecache.getline(entry.file, entry.line).strip())
            for entry in stats.graph_breaks
        ),
        "notes": tuple(f"eager served a graph: {fallback}" for fallback in stats.fallbacks),
    }


def _device_peak(device: torch.device) -> int | None:
    """The GPU allocator's peak since the last time this was asked; None on a CPU."""
    if device.type != "cuda":
        return None
    peak = int(torch.cuda.max_memory_allocated(device))
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def _drop_gradients(target: Target) -> None:
    if isinstance(target.model, torch.nn.Module):
        target.model.zero_grad(set_to_none=True)


def _nothing() -> None:
    return None


# -- all candidates, in turns -------------------------------------------------------------------------------------


class Racing:
    """One race, stage by stage; `answer()` is what is known so far, also after Ctrl-C."""

    def __init__(
        self,
        target: Target,
        candidates: Sequence[Candidate],
        caches: Mapping[str, Mapping[str, str]],
        seconds: float,
        say: Say,
    ) -> None:
        self._target = target
        self._candidates = candidates
        self._caches = caches
        self._seconds = seconds
        self._say = say
        self._device = device_of(target)
        self._wait = synchronizer(self._device)
        self._models: dict[str, Model] = {}
        self._lanes = {candidate.name: Lane() for candidate in candidates}
        self._found = Raced()

    def answer(self) -> Raced:
        return dataclasses.replace(self._found, lanes=dict(self._lanes))

    def run(self, save: Callable[[Raced], None] = lambda raced: None) -> Raced:
        """Every stage; `save` is handed what there is after each."""
        with self._target.grad_mode():
            for stage in (self._compile, self._warm_up, self._race):
                stage()
                save(self.answer())
            if self._found.interrupted:
                return self.answer()
        for stage in (self._check, self._look_around, self._profile, self._weigh):
            stage()
            save(self.answer())
        return self.answer()

    def _compile(self) -> None:
        shared = _import_dynamo() if any(candidate.compiles for candidate in self._candidates) else 0.0
        for index, candidate in enumerate(self._candidates):
            what = f"{candidate.title} compiles, from its cache" if candidate.compiles else "eager's first call"
            self._say(0.02 + 0.3 * index / len(self._candidates), "warm", what)
            os.environ.update(self._caches.get(candidate.name, {}))
            try:
                model, first = _first_call(self._target, candidate, self._wait)
                steady = min(_timed(self._target.step(model), self._wait) for _ in range(2))
            except (Exception, SystemExit) as error:  # one engine's failure is a row of the table, not the end of it
                self._lanes[candidate.name] = Lane(failure=in_one_line(error))
                continue
            self._models[candidate.name] = model
            warm = max(0.0, first - steady) + shared if candidate.compiles else None
            self._lanes[candidate.name] = Lane(warm_seconds=warm)

    def _warm_up(self) -> None:
        for index, (name, step) in enumerate(self._steps().items()):
            self._say(0.35 + 0.1 * index / len(self._models), "warm-up", f"{self._title(name)} warms up")
            until_decided(self._models[name], step)
            found = warm_up(step, seconds=min(WARM_UP_SECONDS, self._seconds), synchronize=self._wait or _nothing)
            self._note(
                name, warm_up=dataclasses.replace(found, samples=thinned([found.samples[:MOST_SAMPLES]], MOST_SAMPLES))
            )

    def _race(self) -> None:
        self._say(0.45, "race", "all take turns")
        gpu = self._gpu()
        watch = Watch(torch.get_num_threads(), gpu if isinstance(gpu, Gpu) else None)

        def after_round(part: float) -> None:
            watch.start()  # only now: what the race does before its first round is not of interest
            if watch.look():  # not after every round: whoever listens runs on the same cores
                self._say(0.45 + 0.35 * part, "race", "all take turns")

        race = interleave(
            self._steps(),
            seconds=self._seconds,
            on_round=after_round,
            synchronize=self._wait,
            keep_on_interrupt=True,
        )
        self._found = dataclasses.replace(self._found, activity=watch.activity(), interrupted=race.interrupted)
        for name in race.rounds:
            self._note(name, **_lane_numbers(race, name))

    def _check(self) -> None:
        self._say(0.82, "check", "comparing with float64")
        # torch.compile's own compilers draw by a generator of theirs; burnish and eager draw the same numbers.
        foreign = {candidate.name for candidate in self._candidates if candidate.engine not in (EAGER, "burnish")}
        for name, found in compare(self._target, self._models, own_draws=foreign).items():
            self._note(name, error=found.error, uncompared=found.reason)

    def _look_around(self) -> None:
        if self._target.pipeline is None:
            return
        self._say(0.86, "around", "timing a whole step")
        try:
            share = measure_share(
                self._target, seconds=min(5.0, max(1.0, self._seconds)), synchronize=self._wait or _nothing
            )
            self._found = dataclasses.replace(self._found, share=share)
        except Exception as error:  # the user's loop, on a copy of nothing: its failure must not cost the table
            self._found = dataclasses.replace(self._found, share_failure=in_one_line(error))

    def _profile(self) -> None:
        self._say(0.92, "profile", "where the time goes")
        with self._target.grad_mode():
            for name, step in self._steps().items():
                with contextlib.suppress(Exception):  # a profile is an extra; some backends cannot be profiled
                    self._note(name, profile=profile_call(step, on_cuda=self._wait is not None))

    def _weigh(self) -> None:
        gpu = self._gpu()
        meter = cpu_meter() if gpu is None else gpu_meter(gpu)
        if not isinstance(meter, str):
            self._say(0.95, "energy", "reading the energy meter")
        with self._target.grad_mode():
            for name, step in self._steps().items():
                self._note(name, energy=energy_per_call(step, meter, synchronize=self._wait or _nothing))

    def _steps(self) -> dict[str, Callable[[], Any]]:
        return {name: self._target.step(model) for name, model in self._models.items()}

    def _note(self, name: str, **found: Any) -> None:
        self._lanes[name] = dataclasses.replace(self._lanes[name], **found)

    def _title(self, name: str) -> str:
        return next(candidate.title for candidate in self._candidates if candidate.name == name)

    def _gpu(self) -> Gpu | str | None:
        """The GPU, or why it cannot be asked; None where there is none."""
        return find_gpu(str(torch.cuda.get_device_properties(self._device).uuid)) if self._wait else None


def _lane_numbers(race: Race, name: str) -> dict[str, Any]:
    rounds = race.rounds[name]
    latency = latency_of(rounds)
    host = estimate_of(race.host[name]) if race.host else latency.p50
    over = {other: speedup_of(blocks, rounds) for other, blocks in race.rounds.items() if other != name}
    return {"latency": latency, "host": host, "speedup_over": over, "samples": thinned(rounds, MOST_SAMPLES)}


def _import_dynamo() -> float:
    """Seconds. A process that compiles pays for it once, so every candidate is charged with it, not the first one."""
    begin = time.perf_counter()
    assert callable(dynamo.optimize)  # looked up, and so imported
    return time.perf_counter() - begin


def _timed(step: Callable[[], Any], wait: Callable[[], None] | None) -> float:
    begin = time.perf_counter()
    step()
    if wait:
        wait()
    return time.perf_counter() - begin
