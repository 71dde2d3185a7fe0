"""One launch for a whole program: captured CUDA graphs whose results belong to the caller.

The first call for some sizes runs without a graph, which warms up libraries and shows the arguments' addresses. The
second is captured and replayed. A capture executes nothing, so no call has its effects twice.

Arguments. Those with the same memory in both calls (parameters, caches, buffers the caller reuses) are read and written
in place; each replay checks their addresses. The others are copied into the graph's memory, and back if the program
writes them. An argument that moves later is copied from then on. A large argument at the same address counts as the
same: allocators often reuse the address for its replacement, and a copy would take long.

Results are copied out, so that a replay does not overwrite earlier results; copies of one type are one launch.
`reuse_outputs` returns the graph's own memory instead, which the next call overwrites. A training step's saved tensors
are always lent in this way, because they are large and the backward releases them. While any is in use, the next
forward of the object runs without its graph.

The graphs of one object share a memory pool, so its calls are serialised: by a lock on the host, by stream order on the
device. Programs that cannot be captured, or do not fit into memory, run without a graph, and stats say so.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from burnish.lower.aten_calls import with_bits_of
from burnish.observe.log import CompileLog, failure_reason
from burnish.runtime.cuda.graph_launch import DriverLaunch, driver_launch, extent
from burnish.runtime.cuda.program import CudaRun, is_capturing
from burnish.runtime.graph_capture import capturing
from burnish.runtime.graph_plan import GraphPlan
from burnish.runtime.host.addresses import same_addresses
from burnish.runtime.host.extension import Host
from burnish.torch_private.cuda import cuda_getCurrentRawStream
from burnish.torch_private.tensors import foreach_copy_, storage_Use_Count

current_raw_stream: Callable[[int], int] = cuda_getCurrentRawStream
_FEW_COPIES = 3
_LITTLE = 1 << 20  # bytes whose copy is negligible: a smaller argument at an unchanged address is still copied
_Window = tuple[int, int, Sequence[int], Sequence[int], int]  # a result, of which other, sizes, strides and offset
_PATIENCE = 4  # recaptures of one set of sizes before it runs without a graph


class GraphPool:
    """Shared by the graphs of one object on one device: memory, the lock, and the limit on their number."""

    def __init__(self, device: torch.device, limit: int) -> None:
        self.device = device
        self.limit = limit
        self._index = device.index or 0
        self.lock = threading.RLock()
        self.handle: Any = None
        self.capture_stream: Any = None
        self._give_stream_back: Callable[[], Any] = lambda: None
        self._last: Any = None  # the stream of the latest replay
        self.turn = (ctypes.c_int64 * 2)(-1, 0)  # what the driver calls that stream, and how many replays there were
        self._captured: list[Captured] = []
        self.lenders: list[Captured] = []

    def open(self) -> None:
        if self.handle is None:
            self.handle = torch.cuda.graph_pool_handle()
        if self.capture_stream is None:
            self.capture_stream = _take_stream(self.device)
            idle = _idle_streams.setdefault(self.device, [])
            self._give_stream_back = giving = weakref.finalize(self, idle.append, self.capture_stream)
            giving.atexit = False

    def bytes(self) -> int:
        """What its graphs' memory takes of the device. (How much torch has reserved in all tells nothing: beginning a
        capture gives back what is reserved and unused.)"""
        if self.handle is None:
            return 0
        try:
            segments = torch.cuda.memory_snapshot(self.handle)
        except RuntimeError:  # an allocator that cannot tell
            return 0
        return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == tuple(self.handle))

    def take_turn(self, captured: Captured) -> int:
        """Order later launches on the current stream after all earlier replays. Returns the driver's handle of that
        stream."""
        self._stamp(captured)
        raw = current_raw_stream(self._index)
        if raw != self.turn[0]:
            current = torch.cuda.current_stream(self.device)
            if self._last is not None:
                current.wait_stream(self._last)
            self._last, self.turn[0] = current, raw
        return raw

    def _stamp(self, captured: Captured) -> None:
        self.turn[1] += 1
        captured.stamp[0] = self.turn[1]

    def add(self, captured: Captured) -> None:
        self._captured.append(captured)
        self._stamp(captured)
        if captured.lent:
            self.lenders.append(captured)
        while len(self._captured) > self.limit:
            self.drop(min(self._captured, key=lambda each: each.stamp[0]))  # not used for longest

    def drop(self, captured: Captured) -> None:
        if captured not in self._captured:
            return
        self._captured.remove(captured)
        if captured in self.lenders:
            self.lenders.remove(captured)
        if self._last is not None:
            self._last.synchronize()  # it may be running
        captured.release()
        if not self._captured:
            self.handle = None  # torch gives a pool up with its last graph, and refuses to take it up again

    def is_lending(self) -> bool:
        """Whether a forward's saved tensors are in use. A replay of another graph might overwrite them, except the
        graph of their backward, which was captured while they were alive."""
        return bool(self.lenders) and any(captured.is_lending() for captured in self.lenders)

    def lent_addresses(self) -> set[int]:
        return {x.data_ptr() for captured in self.lenders for x in captured.lent}

    def close(self) -> None:
        with self.lock:
            while self._captured:
                self.drop(self._captured[0])
            self._give_stream_back()
            self.handle = self.capture_stream = self._last = None
            self.turn[0] = -1


# Streams to capture on, of pools that were closed or are gone. cuBLAS keeps a workspace for each stream, which graphs
# captured on it use: two pools must never share one, and a stream that is used again brings its workspace along. (A
# graph of a pool that is gone may still run: beginning a capture waits for the device.)
_idle_streams: dict[torch.device, list[Any]] = {}


def _take_stream(device: torch.device) -> Any:
    try:
        return _idle_streams[device].pop()
    except (KeyError, IndexError):
        return torch.cuda.Stream(device)


@contextlib.contextmanager
def borrowed_stream(device: torch.device) -> Iterator[Any]:
    """One of those streams, for work that is no graph of a program's. It is done when the stream is given back."""
    stream = _take_stream(device)
    try:
        yield stream
    finally:
        stream.synchronize()
        _idle_streams.setdefault(device, []).append(stream)


# A pool lives as long as a program with graphs in it. Logs live longer, because Dynamo never releases a backend.
_Pools = weakref.WeakValueDictionary[torch.device, GraphPool]
_pools: weakref.WeakKeyDictionary[CompileLog, _Pools] = weakref.WeakKeyDictionary()
_pools_lock = threading.Lock()


def pool_for(log: CompileLog, device: torch.device, limit: int) -> GraphPool:
    """A compiled object, which its log stands for, has one pool on each device."""
    with _pools_lock:
        pools = _pools.setdefault(log, weakref.WeakValueDictionary())
        return pools.setdefault(device, GraphPool(device, limit))


def close_pools(log: CompileLog) -> None:
    with _pools_lock:
        pools = list(_pools.pop(log, {}).values())
    for pool in pools:
        pool.close()


class Captured:
    """A graph with its own arguments and results."""

    def __init__(
        self,
        graph: Any,
        args: Sequence[Any],
        staging: Mapping[int, torch.Tensor],
        borrowed: set[int],
        plan: GraphPlan,
        host: Host | None = None,
    ) -> None:
        self.graph = graph
        self.staging = dict(staging)  # arguments that are copied in
        self.settled = False  # whether it has been replayed, and who replays it is decided
        self.launch: DriverLaunch | None = None  # what replays it instead of torch
        self.quick: Any = None  # what makes whole calls with it, where all is as usual
        self.stamp = (ctypes.c_int64 * 1)()  # which of the pool's replays was its latest
        self.plan = plan
        self.borrowed = borrowed  # arguments that are saved tensors of a captured forward
        self.by_address = [k for k in _tensors(args, plan) if k not in staging]
        self.addresses = _addresses(args)
        self.fits: Callable[[list[Any]], bool] = (
            host.Addresses(self.by_address, self.addresses) if host is not None else self._fits
        )
        self.copies_in = _by_type(staging)
        self.copies_back = _by_type({k: staging[k] for k in plan.written if k in staging})
        self.bytes = 0

    def set_results(self, results: Sequence[Any], inputs: Sequence[Any]) -> None:
        self.results = tuple(results)
        first, aliases = self.plan.lent_from, self.plan.aliases
        own = [n for n, x in enumerate(self.results) if isinstance(x, torch.Tensor) and n not in aliases]
        reused = set(own) if self.plan.reuse_outputs else self.plan.internal
        lent = [n for n in own if n in reused or (first is not None and n >= first)]
        self.again = _again(self.results, frozenset(lent))
        lent = [n for n in lent if n not in self.again]
        copied = {n: self.results[n] for n in own if n not in lent and n not in self.again}
        copied, self.windows = _without_windows(copied, len(self.results))
        self.copies_out = _by_type(copied)
        self.dense = all(x.clone().stride() == x.stride() for group, _ in self.copies_out for x in group[:1])
        self.lent_positions = lent
        self.lent = [self.results[n] for n in lent] if first is not None else []
        self._storages = [x.untyped_storage() for x in self.lent]
        self._counted = [storage._cdata for storage in self._storages]
        self._uses = [storage_Use_Count(c) for c in self._counted]
        self.views = [
            (n, k, x.shape, x.stride(), x.storage_offset() - inputs[k].storage_offset())
            for n, k in aliases.items()
            if isinstance(x := self.results[n], torch.Tensor) and n not in self.again
        ]

    def _fits(self, args: list[Any]) -> bool:
        return same_addresses(args, self.addresses, self.by_address)

    def is_lending(self) -> bool:
        count = storage_Use_Count
        return any(count(c) > before for c, before in zip(self._counted, self._uses, strict=True))

    def launch_by_driver(self, host: Host, device: torch.device) -> None:
        """Replay without torch from now on, if possible."""
        own = {n: x for group, positions in self.copies_out for n, x in zip(positions, group, strict=True)}
        back = {k: self.staging[k] for k in self.plan.written if k in self.staging}
        self.fresh_positions = list(own)
        self.all_fresh = self.fresh_positions == list(range(len(self.results)))
        with torch.cuda.device(device):
            self.launch = driver_launch(host, self.graph, self.staging, back, list(own.values()), device)

    def call_quickly(self, host: Host, pool: GraphPool, flag: torch.Tensor | None) -> Any:
        """Make calls in C from now on; None if they are not simple enough."""
        if self.launch is None or not self.all_fresh or self.borrowed:
            return None
        try:
            fresh = host.Fresh(list(self.results))
        except ImportError:  # tensors cannot be made there
            return None
        self.quick = host.Replay(
            self.launch.native,
            self.fits,
            fresh,
            pool.lock.acquire,
            pool.lock.release,
            current_raw_stream,
            pool.device.index or 0,
            torch.is_inference_mode_enabled,
            pool.lenders,
            0 if flag is None else flag.data_ptr(),
            ctypes.addressof(pool.turn),
            ctypes.addressof(self.stamp),
            self.launch.are_small,
            (pool.turn, self.stamp, flag),
        )
        return self.quick

    def replay(self, args: list[Any], stream: int) -> tuple[Any, ...]:
        launch = self.launch
        if launch is None:
            return self._replay_by_torch(args)
        fresh = launch.results(stream)
        if not launch.run(args, fresh, stream):  # strides that the graph's own arguments do not have
            return self._replay_by_torch(args)
        if self.all_fresh:
            results = tuple(fresh)
        else:
            out = dict(enumerate(self.results))
            out.update(zip(self.fresh_positions, fresh, strict=True))
            results = self._with_shared(out, args)
        args.clear()
        launch.prepare(stream)
        return results

    def _replay_by_torch(self, args: list[Any]) -> tuple[Any, ...]:
        for staging, positions in self.copies_in:
            _copy(staging, [args[k] for k in positions])
        self.graph.replay()
        for staging, positions in self.copies_back:
            _copy([args[k] for k in positions], staging)
        out = dict(enumerate(self.results))
        for results, positions in self.copies_out:
            if len(results) == 1 and self.dense:
                out[positions[0]] = results[0].clone()
                continue
            fresh = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in results]
            _copy(fresh, results)
            out.update(zip(positions, fresh, strict=True))
        shared = self._with_shared(out, args)
        args.clear()
        return shared

    def _with_shared(self, out: dict[int, Any], args: list[Any]) -> tuple[Any, ...]:
        """Adds the results that are not copies: in the graph's memory, in an argument's, or in another result's."""
        for n in self.lent_positions:
            out[n] = self.results[n].detach()  # a tensor of its own over the same memory
        for n, k, shape, strides, offset in self.views:
            out[n] = args[k].as_strided(shape, strides, args[k].storage_offset() + offset)
        for n, of, sizes, steps, start in self.windows:
            out[n] = out[of].as_strided(sizes, steps, start).detach()  # as the program makes a window
        for n, earlier in self.again.items():
            out[n] = out[earlier]
        return tuple(out[n] for n in range(len(self.results)))

    def release(self) -> None:
        if self.quick is not None:
            self.quick.end()
        self.graph.reset()
        self.graph = self.launch = self.quick = None
        self.staging = {}
        self.results, self.lent, self.lent_positions, self.views = (), [], [], []
        self.windows, self.again = [], {}
        self._storages, self._counted, self._uses = [], [], []
        self.copies_in, self.copies_back, self.copies_out = [], [], []


def _again(results: Sequence[Any], saved: frozenset[int]) -> dict[int, int]:
    """Results that are the same tensor as an earlier one. Saved tensors are separate from returned ones."""
    first: dict[tuple[int, bool], int] = {}
    found = {n: first.setdefault((id(x), n in saved), n) for n, x in enumerate(results) if isinstance(x, torch.Tensor)}
    return {n: earlier for n, earlier in found.items() if earlier != n}


def _without_windows(copied: Mapping[int, torch.Tensor], free: int) -> tuple[dict[int, torch.Tensor], list[_Window]]:
    """Of results that share memory, only one is copied: the one that covers all of it, or their common base, numbered
    from `free` on. The others are windows of the copy."""
    sharing: dict[tuple[int, torch.dtype], list[int]] = {}
    for n, x in copied.items():
        sharing.setdefault((x.untyped_storage()._cdata, x.dtype), []).append(n)
    copies: dict[int, torch.Tensor] = {}
    windows: list[_Window] = []
    for members in sharing.values():
        if len(members) == 1:
            copies[members[0]] = copied[members[0]]
            continue
        starts = {n: int(copied[n].storage_offset()) for n in members}
        end = max(starts[n] + extent(copied[n]) for n in members)
        of = next((n for n in members if _is_all(copied[n], end)), None)
        if of is None:
            of, free = free, free + 1
            copies[of] = copied[members[0]].as_strided((end,), (1,), 0)
        else:
            copies[of] = copied[of]
        windows += [(n, of, copied[n].shape, copied[n].stride(), starts[n]) for n in members if n != of]
    return {n: copies[n] for n in sorted(copies)}, windows


def _is_all(x: torch.Tensor, end: int) -> bool:
    return x.storage_offset() == 0 and x.numel() == extent(x) == end


def _resolved(results: Sequence[Any], aliases: Mapping[int, int]) -> list[Any]:
    """Results whose memory holds their values: they are copied out byte by byte. An argument's memory stays what it
    is."""
    once: dict[int, Any] = {}
    for n, x in enumerate(results):
        if isinstance(x, torch.Tensor) and n not in aliases and id(x) not in once:
            once[id(x)] = x.resolve_conj().resolve_neg()
    return [x if n in aliases else once.get(id(x), x) for n, x in enumerate(results)]


def _copy(into: list[torch.Tensor], out_of: list[torch.Tensor]) -> None:
    if repeated := _repeated(into[0]):  # which are those of all in a group
        into, out_of = [_once(x, repeated) for x in into], [_once(x, repeated) for x in out_of]
    if len(into) <= _FEW_COPIES:  # a multi-tensor copy of two or three takes longer: few programs, each with much to do
        for target, source in zip(into, out_of, strict=True):
            target.copy_(source, non_blocking=True)
    else:
        foreach_copy_(into, out_of, non_blocking=True)


def _by_type(tensors: Mapping[int, torch.Tensor]) -> list[tuple[list[torch.Tensor], list[int]]]:
    """Tensors that one multi-tensor copy can take, with their positions."""
    groups: dict[tuple[torch.dtype, tuple[int, ...]], tuple[list[torch.Tensor], list[int]]] = {}
    for k, x in tensors.items():
        group = groups.setdefault((x.dtype, _repeated(x)), ([], []))
        group[0].append(x)
        group[1].append(k)
    return list(groups.values())


def _repeated(x: torch.Tensor) -> tuple[int, ...]:
    """Dimensions along which elements share memory, as those of an expanded tensor do: copy_ refuses to write it."""
    return tuple(n for n, (d, s) in enumerate(zip(x.shape, x.stride(), strict=True)) if d > 1 and s == 0)


def _once(x: torch.Tensor, repeated: tuple[int, ...]) -> torch.Tensor:
    for n in repeated:
        x = x.narrow(n, 0, 1)
    return x


class _Places:
    """The arguments' addresses in a call."""

    def __init__(self, args: Sequence[Any]) -> None:
        # A storage that is referred to, if only weakly, is never mistaken for one that comes after it.
        self._memory = [
            (x.data_ptr(), StorageWeakRef(x.untyped_storage())) if isinstance(x, torch.Tensor) else None for x in args
        ]

    def has_stayed(self, k: int, x: torch.Tensor) -> bool:
        """Whether argument k (now x) has a stable address, not just the same one by chance: the allocator often reuses
        the address for an argument that is allocated in each call."""
        before = self._memory[k]
        if before is None or before[0] != x.data_ptr():
            return False
        return x.nbytes > _LITTLE or before[1] == StorageWeakRef(x.untyped_storage())


@dataclass
class _Case:
    """The calls of one set of sizes."""

    places: _Places  # of the arguments in the last call that ran plainly
    copied: set[int] = field(default_factory=set)  # arguments known to move
    captured: Captured | None = None
    troubles: int = 0  # times its graph was dropped
    plain: bool = False  # not captured any more


class GraphedProgram:
    """A boxed callable like the program it replaces."""

    _boxed_call = True

    def __init__(self, run: CudaRun, plan: GraphPlan, pool: GraphPool, log: CompileLog) -> None:
        self.program = run
        self.run = run.run  # whose memory `stats` counts
        self.plan = plan
        self.pool = pool
        self.log = log
        self._key = _key_function(plan.sources)
        self._has_sizes = bool(plan.sources)
        self._obstructed = bool(plan.obstacle)
        self._check = run.check
        self._quick: Callable[[list[Any]], tuple[Any, ...] | None] | None = None
        self._cases: dict[tuple[int, ...], _Case] = {}
        self._host: Host | None = None
        if plan.obstacle:
            log.noticed(f"no CUDA graph: {plan.obstacle}")

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        if self._obstructed or is_capturing():  # the caller's own capture takes us in
            return self.program(args)
        if self._quick is not None and (results := self._quick(args)) is not None:
            return results
        self._check()
        pool = self.pool
        with pool.lock:
            case = self._cases.get(self._key(args) if self._has_sizes else ())
            if case is None or (captured := case.captured) is None or captured.graph is None:
                case = self._case(args)
                captured = case.captured if case else None
            if captured is not None and captured.graph is not None and self._may_replay(captured, args):
                stream = pool.take_turn(captured)
                if captured.settled:
                    return captured.replay(args, stream)
                return self._first_replay(captured, args, stream)
        return self.program(args)

    def _first_replay(self, captured: Captured, args: list[Any], stream: int) -> tuple[Any, ...]:
        """By torch, which handles the random state of a graph; a graph without random draws does not need it."""
        random = _RandomState(self.pool.device)
        results = captured.replay(args, stream)
        captured.settled = True
        self.program.release()  # what the plain calls worked in: the graph has its own
        if self._host is not None and not self.plan.draws and not random.has_moved():
            try:
                captured.launch_by_driver(self._host, self.pool.device)
                if not self._has_sizes:
                    flag = getattr(self._check, "flag", None)
                    self._quick = captured.call_quickly(self._host, self.pool, flag)
            except (AttributeError, ImportError, RuntimeError, ValueError) as error:  # an older torch, an older driver
                self.log.noticed(f"CUDA graph replayed by torch: {failure_reason(error)}")
        return results

    def _case(self, args: list[Any]) -> _Case | None:
        """The case of these arguments, captured if it was time to; None where this call is its first."""
        key = self._key(args)
        case = self._cases.get(key)
        if case is None:
            self._cases[key] = _Case(_Places(args), plain=not self._are_on_device(args))
            while len(self._cases) > 4 * self.pool.limit:  # sizes that come once each
                self._forget(next(iter(self._cases)))
            if self._cases[key].plain:
                self.log.noticed("no CUDA graph: an argument is not on the device")
            return None
        if case.captured is not None and case.captured.graph is None:  # the pool had no room for it
            case.captured = None
            self._trouble(case, "others were used more recently")
        if case.captured is None and not case.plain:
            self._capture(case, args)
        return case

    def _are_on_device(self, args: Sequence[Any]) -> bool:
        return all(args[k].device == self.pool.device for k in _tensors(args, self.plan))

    def _forget(self, key: tuple[int, ...]) -> None:
        case = self._cases.pop(key)
        if case.captured is not None:
            self.pool.drop(case.captured)

    def _may_replay(self, captured: Captured, args: list[Any]) -> bool:
        if not captured.fits(args):
            self._moved(captured, args)
            return False
        if not captured.borrowed and self.pool.is_lending():
            self.log.noticed("CUDA graph not used: an earlier forward's saved tensors are in use")
            return False
        return True

    def _moved(self, captured: Captured, args: list[Any]) -> None:
        """Arguments have moved: the next call is captured with their new addresses."""
        here, lent = _addresses(args), self.pool.lent_addresses()
        moved = {k for k in captured.by_address if here[k] != captured.addresses[k]}
        if moved & captured.borrowed and not any(here[k] in lent for k in moved):
            self.log.noticed("CUDA graph not used: the forward ran without its own")
            return
        case = next(c for c in self._cases.values() if c.captured is captured)
        case.copied |= (moved | captured.staging.keys()) - self.plan.static  # what moved before will move again
        case.places = _Places(args)
        case.captured = None
        self._trouble(case, "arguments moved")
        self.pool.drop(captured)

    def _trouble(self, case: _Case, reason: str) -> None:
        case.troubles += 1
        case.plain = case.troubles > _PATIENCE
        self.log.noticed(f"CUDA graph dropped{' for good' if case.plain else ''}: {reason}")

    def _capture(self, case: _Case, args: list[Any]) -> None:
        random = _RandomState(self.pool.device)
        try:
            case.captured = self._captured(case, args)
            self.pool.add(case.captured)
            self.log.noticed("CUDA graph captured")
        except Exception as error:  # out of memory, or an operation that cannot be captured: the call must not fail
            random.put_back()
            case.plain = True
            self.log.noticed(f"no CUDA graph: {failure_reason(error)}")

    def _captured(self, case: _Case, args: list[Any]) -> Captured:
        self.pool.open()
        here, lent = _addresses(args), self.pool.lent_addresses()
        tensors = set(_tensors(args, self.plan))
        borrowed = {k for k in tensors if here[k] in lent}
        stays = {k for k in tensors if case.places.has_stayed(k, args[k])} - case.copied
        moves = tensors - stays - borrowed - self.plan.static
        staging = {k: _staging_buffer(args[k]) for k in sorted(moves)}
        inputs = [staging.get(k, x) for k, x in enumerate(args)]
        if self._host is None:
            self._host = self.program.host()
        captured = Captured(torch.cuda.CUDAGraph(), args, staging, borrowed, self.plan, self._host)
        before = self.pool.bytes()
        run = self.program.private()  # over workspaces in the graph's memory, which nothing else may have
        device = self.pool.device
        # A capture that fails would leave its own stream as the current one.
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            with capturing(captured.graph, pool=self.pool.handle, stream=self.pool.capture_stream):
                results = _resolved(run(list(inputs)), self.plan.aliases)
        captured.set_results(results, inputs)
        captured.bytes = max(self.pool.bytes() - before, 0) + sum(buffer.nbytes for buffer in staging.values())
        return captured

    def ready(self) -> None:
        """Wait for what a call would have to wait for."""
        self.program.ready()

    def pool_bytes(self) -> int:
        """About what its graphs hold in the pool."""
        return sum(c.captured.bytes for c in list(self._cases.values()) if c.captured is not None)

    def release(self) -> None:
        with self.pool.lock:
            for key in list(self._cases):
                self._forget(key)
        self.program.release()


class _RandomState:
    """The state of the device's generator before a capture. After a failed capture the generator still assumes a
    capture, and would refuse every later draw."""

    def __init__(self, device: torch.device) -> None:
        generators = torch.cuda.default_generators
        index = device.index or 0
        self.generator = generators[index] if index < len(generators) else None
        self.copy = None if self.generator is None else self.generator.clone_state()

    def has_moved(self) -> bool:
        """Whether numbers were drawn since."""
        if self.generator is None or self.copy is None:
            return False
        return bool(self.generator.get_offset() != self.copy.get_offset())

    def put_back(self) -> None:
        if self.generator is not None and self.copy is not None:
            self.generator.graphsafe_set_state(self.copy)


def _key_function(sources: Mapping[str, tuple[int, str, int]]) -> Callable[[list[Any]], tuple[int, ...]]:
    """Reads the sizes of the arguments; generated as source, because it runs in every call."""
    read = {"value": "int(args[{k}])", "size": "args[{k}].shape[{d}]", "stride": "args[{k}].stride({d})"}
    read["offset"] = "args[{k}].storage_offset()"
    parts = [read[kind].format(k=k, d=d) for _, (k, kind, d) in sorted(sources.items())]
    function: Callable[[list[Any]], tuple[int, ...]] = eval(f"lambda args: ({''.join(p + ', ' for p in parts)})")
    return function


def _tensors(args: Sequence[Any], plan: GraphPlan) -> list[int]:
    """Positions of the tensors that matter."""
    return [k for k, x in enumerate(args) if isinstance(x, torch.Tensor) and (plan.used is None or k in plan.used)]


def _addresses(args: Sequence[Any]) -> list[int]:
    return [x.data_ptr() if isinstance(x, torch.Tensor) else 0 for x in args]


def _staging_buffer(x: torch.Tensor) -> torch.Tensor:
    """Memory of the graph's own with x's sizes, strides and bits."""
    return with_bits_of(x, torch.empty(extent(x), dtype=x.dtype, device=x.device).as_strided(x.shape, x.stride()))
