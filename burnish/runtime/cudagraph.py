"""One launch for a whole program: a captured CUDA graph per program, with results that stay the caller's.

Static inputs (parameters, buffers) are used at their address and checked by it; other inputs are copied into the
graph's own; results are copied out, so that the next replay leaves what was handed out alone. Programs share one
memory pool.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch

from burnish.runtime.program import Run

_WARM_UP = 2  # runs before the capture: libraries choose their algorithms and make their workspaces then


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    outputs: tuple[Any, ...]
    addresses: tuple[int, ...]


class GraphedProgram:
    """A boxed callable like the program it stands for."""

    _pool: Any = None  # shared by every graph of the process
    _boxed_call = True

    def __init__(self, run: Run, static: frozenset[int], mutated: frozenset[int]) -> None:
        self.run = run
        self.static = static
        self.mutated = mutated - static
        self._captured: _Captured | None = None
        self._lock = threading.Lock()

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        with self._lock:
            captured = self._captured
            if captured is None or not self._fits(captured, args):
                captured = self._captured = self._capture(args)
            return self._replay(captured, args)

    def _fits(self, captured: _Captured, args: list[Any]) -> bool:
        return captured.addresses == tuple(args[i].data_ptr() for i in sorted(self.static))

    def _replay(self, captured: _Captured, args: list[Any]) -> tuple[Any, ...]:
        for i, held in enumerate(captured.inputs):
            if held is not None:
                held.copy_(args[i], non_blocking=True)
        captured.graph.replay()
        for i in self.mutated:
            args[i].copy_(captured.inputs[i], non_blocking=True)
        args.clear()
        return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in captured.outputs)

    def _capture(self, args: list[Any]) -> _Captured:
        if GraphedProgram._pool is None:
            GraphedProgram._pool = torch.cuda.graph_pool_handle()
        inputs = [None if i in self.static or not isinstance(x, torch.Tensor) else _twin(x) for i, x in enumerate(args)]
        here = lambda: [x if held is None else held for x, held in zip(args, inputs, strict=True)]  # noqa: E731
        saved = {i: args[i].clone() for i in self.static if isinstance(args[i], torch.Tensor) and i in self.mutated}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self.run(here())
        torch.cuda.current_stream().wait_stream(stream)
        for i, value in saved.items():
            args[i].copy_(value)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=GraphedProgram._pool, stream=stream):
            outputs = self.run(here())
        addresses = tuple(args[i].data_ptr() for i in sorted(self.static))
        return _Captured(graph, inputs, tuple(outputs), addresses)


def _twin(x: torch.Tensor) -> torch.Tensor:
    """Memory of the graph's own with x's sizes, strides and value."""
    twin = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return twin.copy_(x)
