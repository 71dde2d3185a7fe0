"""torch.cuda's graphs and streams as far as burnish uses them, on a CPU: a capture computes nothing, a replay does."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from burnish.runtime.cuda import graphs as cuda_graphs
from burnish.runtime.host.extension import Host


class FakeGraph:
    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.replays = 0
        self.gone = False
        self._launched = ctypes.CFUNCTYPE(None)(self.replay)

    def replay(self) -> None:
        assert not self.gone
        self.replays += 1
        for step in self.steps:
            step()

    def reset(self) -> None:
        self.gone = True

    def raw_cuda_graph_exec(self) -> int:
        """What the fake driver calls to launch it."""
        address = ctypes.cast(self._launched, ctypes.c_void_p).value
        assert address is not None
        return address


class FakeStream:
    def __init__(self, name: str, device: FakeCuda) -> None:
        self.name, self.device = name, device
        self.cuda_stream = id(self)

    def wait_stream(self, other: FakeStream) -> None:
        self.device.waits.append((self.name, other.name))

    def synchronize(self) -> None:
        self.device.synchronized += 1


@dataclass
class FakeCuda:
    """What stands for torch.cuda; `fail` is raised by the next captures."""

    graphs: list[FakeGraph] = field(default_factory=list)
    waits: list[tuple[str, str]] = field(default_factory=list)
    synchronized: int = 0
    fail: Exception | None = None
    capturing: FakeGraph | None = None
    host: Host | None = None  # with it graphs are replayed by the driver

    def __post_init__(self) -> None:
        self.stream = FakeStream("default", self)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        put = lambda name, value: monkeypatch.setattr(torch.cuda, name, value, raising=False)  # noqa: E731
        put("CUDAGraph", FakeGraph)
        put("graph", self.graph)
        put("Stream", lambda device=None: FakeStream("side", self))
        put("current_stream", lambda device=None: self.stream)
        put("graph_pool_handle", lambda: (0, 1))
        put("memory_snapshot", self.memory_snapshot)
        put("device", lambda device: contextlib.nullcontext())
        put("stream", self.on_stream)
        monkeypatch.setattr(cuda_graphs, "current_raw_stream", lambda device: self.stream.cuda_stream)

    def memory_snapshot(self, pool: tuple[int, int]) -> list[dict[str, Any]]:
        """A hundred bytes for each graph; and what is not the pool's."""
        own = [{"segment_pool_id": pool, "total_size": 100} for _ in self.graphs]
        return [*own, {"segment_pool_id": (0, 0), "total_size": 1 << 20}]

    @contextlib.contextmanager
    def on_stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextlib.contextmanager
    def graph(self, graph: FakeGraph, **settings: Any) -> Iterator[None]:
        assert settings["capture_error_mode"] == "thread_local"
        if self.fail is not None:
            self.stream = settings["stream"]  # torch's leaves it so
            raise self.fail
        self.capturing = graph
        try:
            yield
        finally:
            self.capturing = None
            self.graphs.append(graph)


def _by_address(x: Any) -> Any:
    """What a graph knows of an argument: where it lies, and nothing that would keep it alive."""
    if not isinstance(x, torch.Tensor):
        return x
    extent = 1 + sum((d - 1) * s for d, s in zip(x.shape, x.stride(), strict=True))
    raw = (ctypes.c_char * (extent * x.element_size())).from_address(x.data_ptr())
    return torch.frombuffer(raw, dtype=x.dtype).as_strided(x.shape, x.stride())


class FakeRun:
    """Stands for a CudaRun: `fn` gives a tuple of results, and may change its arguments."""

    def __init__(self, fn: Callable[..., tuple[Any, ...]], cuda: FakeCuda) -> None:
        self.fn, self.cuda = fn, cuda
        self.plain = 0
        self.released = False
        self.run = self
        self.host: Callable[[], Host | None] = lambda: cuda.host

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        self.plain += 1
        inputs = tuple(args)
        args.clear()
        return self.fn(*inputs)

    def private(self) -> Callable[[list[Any]], tuple[Any, ...]]:
        def run(inputs: list[Any]) -> tuple[Any, ...]:
            assert self.cuda.capturing is not None
            given = list(inputs)
            tried = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
            made: dict[int, torch.Tensor] = {}
            results = tuple(self._placeholder(x, tried, given, made) for x in self.fn(*tried))

            places = [_by_address(x) for x in given]

            def step() -> None:
                for held, value in zip(results, self.fn(*places), strict=True):
                    if isinstance(held, torch.Tensor) and held.data_ptr() != value.data_ptr():
                        held.copy_(value)

            self.cuda.capturing.steps.append(step)
            return results

        return run

    def _placeholder(self, x: Any, tried: list[Any], given: list[Any], made: dict[int, torch.Tensor]) -> Any:
        """A result during a capture: memory that nothing has been written to, shared as theirs is, or an argument's."""
        if not isinstance(x, torch.Tensor):
            return x
        same = [k for k, y in enumerate(tried) if y is x]
        if same:
            return given[same[0]]
        if id(x) not in made:
            storage = x.untyped_storage()
            nothing = float("nan") if x.is_floating_point() else 77
            memory = made.setdefault(
                storage._cdata, torch.full((storage.nbytes() // x.element_size(),), nothing, dtype=x.dtype)
            )
            made[id(x)] = memory.as_strided(x.shape, x.stride(), x.storage_offset())
        return made[id(x)]

    def check(self) -> None:
        pass

    def release(self) -> None:
        self.released = True
