"""Trials on the GPU. Each is captured as a CUDA graph of several runs, so that the device's time is measured and not
the host's. The graphs of a race are replayed alternately, and the median counts.

In a real program parameters are read from memory, because other data has passed through the cache since their last use.
So the runs of a graph alternate between copies that together exceed the cache. Data from the previous kernel is in the
cache, as in a real program. A trial that fails (no memory, too many registers, a library error) is dropped.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from burnish.errors import CompileError
from burnish.ir.expr import evaluate
from burnish.observe.log import CompileLog, failure_reason
from burnish.options import Options
from burnish.runtime.cuda.graphs import borrowed_stream
from burnish.runtime.cuda.launch import Launcher, launcher_for
from burnish.runtime.cuda.program import CudaRun, generate_cuda, load_cuda_program, overlaps
from burnish.runtime.graph_capture import capturing
from burnish.runtime.program import build_program
from burnish.schedule.kernels import Buffer
from burnish.tuning.excerpt import Trial
from burnish.tuning.search import Outcome

_BUILDERS = 16  # trials built at a time: more than one keeps a worker process busy with
_RUNS = 6  # of a graph, at least: what a launch takes beside the kernel is shared by them
_MOST_RUNS = 24
_ROUNDS = 7
_HOPELESS = 2.0  # times the fastest one's time after the first round: not looked at again
_MOST_BYTES = 1 << 30  # of copies of parameters


class DeviceMeasure:
    """Times trials on one device."""

    def __init__(self, device: torch.device, options: Options) -> None:
        self.device, self.options = device, options
        self.log = CompileLog()  # output of trials is suppressed
        properties = torch.cuda.get_device_properties(device)
        self.cache_bytes: int = getattr(properties, "L2_cache_size", 0) or 64 << 20

    def __call__(self, races: Sequence[Sequence[Trial]], out_of_time: Callable[[], bool]) -> list[list[Outcome]]:
        outcomes: list[list[Outcome]] = []
        launcher = launcher_for(self.device.index or 0, self.options, self.log).apart()
        pool = ThreadPoolExecutor(_BUILDERS)
        try:  # compilers have cores to share, and go on while the device measures
            built = [[pool.submit(self._built, trial, launcher) for trial in race] for race in races]
            with borrowed_stream(self.device) as stream:
                for race, futures in zip(races, built, strict=True):
                    runs = [] if out_of_time() else [future.result() for future in futures]
                    outcomes.append([] if out_of_time() else self._race(race, runs, stream))
        finally:
            pool.shutdown(cancel_futures=True)
            launcher.close()  # otherwise losers would stay loaded on the device
        torch.cuda.empty_cache()  # the trials' memory belongs to a stream that has no other user
        return outcomes

    def _built(self, trial: Trial, launcher: Launcher) -> CudaRun | str:
        try:
            unit = generate_cuda(trial.schedule, overlaps(self.device), trial.unwritten)
            if unit.triton.refused:
                raise CompileError("tune", next(iter(unit.triton.refused.values())))
            program = build_program(trial.schedule, unit, {}, len(trial.arguments), self.device)
            run = load_cuda_program(program, self.options, self.log, launcher=launcher)
            run.ready()
            return run
        except Exception as error:
            return failure_reason(error)

    # --- one race -----------------------------------------------------------------------------------------------

    def _race(self, trials: Sequence[Trial], runs: Sequence[CudaRun | str], stream: Any) -> list[Outcome]:
        outcomes: list[Outcome] = [run if isinstance(run, str) else "not run" for run in runs]
        graphs: dict[int, _Repeated] = {}
        scratch = _Scratch(self.device, self.cache_bytes)
        try:
            with torch.no_grad(), torch.cuda.device(self.device), torch.cuda.stream(stream):
                for n, (trial, run) in enumerate(zip(trials, runs, strict=True)):
                    if not isinstance(run, str):
                        try:
                            graphs[n] = _Repeated(run, scratch.arguments(trial), stream)
                        except Exception as error:
                            outcomes[n] = failure_reason(error)
                for n, seconds in _in_turns(graphs).items():
                    outcomes[n] = seconds
        except Exception as error:  # the device itself: nothing is known of those not timed
            outcomes = [o if isinstance(o, str) and o != "not run" else failure_reason(error) for o in outcomes]
        finally:
            for graph in graphs.values():
                graph.close()
        return outcomes


class _Scratch:
    """Memory for the arguments of a race's trials, which share it."""

    def __init__(self, device: torch.device, cache_bytes: int) -> None:
        self.device, self.cache_bytes = device, cache_bytes
        self._held: dict[tuple[Any, ...], torch.Tensor] = {}
        self._random = torch.Generator(device)  # the user's own numbers are left as they were

    def arguments(self, trial: Trial) -> list[list[torch.Tensor]]:
        """Of each run of a graph."""
        buffers = trial.arguments
        turning = sum(_bytes(b) for b in buffers if b.name in trial.unwritten)
        runs = min(max(_RUNS, -(-2 * self.cache_bytes // max(turning, 1))), _MOST_RUNS)
        copies = max(1, min(runs, _MOST_BYTES // max(turning, 1)))
        return [
            [self._tensor(b, k, run % copies if b.name in trial.unwritten else 0) for k, b in enumerate(buffers)]
            for run in range(runs)
        ]

    def _tensor(self, b: Buffer, position: int, copy: int) -> torch.Tensor:
        assert b.dtype is not None
        extent = max(evaluate(b.extent, {}), 1)
        key = (position, copy, b.dtype, extent)
        if key not in self._held:
            flat = torch.zeros(extent, dtype=b.dtype.torch, device=self.device)
            if flat.is_floating_point():  # zeros would take less power than numbers do; indices are in range as zeros
                flat.uniform_(-1.0, 1.0, generator=self._random)
            self._held[key] = flat
        shape, strides = ([evaluate(d, {}) for d in dims] for dims in (b.shape, b.strides))
        return self._held[key].as_strided(shape, strides)


class _Repeated:
    """A trial's runs as one graph."""

    def __init__(self, run: CudaRun, arguments: Sequence[list[torch.Tensor]], stream: Any) -> None:
        self.runs = len(arguments)
        function = run.private()
        for _ in range(2):  # libraries choose and allocate in their first calls
            function(list(arguments[0]))
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with capturing(self.graph, stream=stream):
            for each in arguments:
                function(list(each))
        self._function = function  # its workspace is the graph's

    def seconds(self) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / self.runs

    def close(self) -> None:
        self.graph.reset()


def _in_turns(graphs: dict[int, _Repeated]) -> dict[int, float]:
    seen: dict[int, list[float]] = {n: [graph.seconds()] for n, graph in graphs.items()}
    for n in seen:
        seen[n] = [graphs[n].seconds()]  # the first only warmed up
    if not seen:
        return {}
    limit = _HOPELESS * min(times[0] for times in seen.values())
    for _ in range(_ROUNDS - 1):
        for n, times in seen.items():
            if times[0] <= limit:
                times.append(graphs[n].seconds())
    return {n: statistics.median(times) for n, times in seen.items()}


def _bytes(b: Buffer) -> int:
    assert b.dtype is not None
    return evaluate(b.extent, {}) * b.dtype.itemsize
