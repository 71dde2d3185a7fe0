"""`burnish.warmup`: compiles everything that traffic will need, and settles the gate's trials and races, before it
arrives."""

from __future__ import annotations

import contextlib
import difflib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from burnish.api import handle_of
from burnish.bucketed.calls import BucketedCalls
from burnish.bucketed.form import Reader
from burnish.bucketed.results import repeated
from burnish.errors import BadWarmup
from burnish.handle import Handle
from burnish.shapes.strategy import DIMENSIONS, Axis, axes_named
from burnish.shapes.traffic import checked_trace, counted, read_trace

_LEAST_CALLS, _MOST_CALLS = 2, 256
Example = Any  # a tensor, a tuple of arguments, or a dict of keyword arguments


@dataclass(frozen=True)
class WarmedCall:
    """One kind of call: what it was, how many graphs it compiled, how long it took until it was settled."""

    inputs: str
    compiles: int
    calls: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.inputs}: {self.compiles} compiles, {self.calls} calls, {self.seconds:.2f} s"


@dataclass(frozen=True)
class WarmupReport:
    calls: tuple[WarmedCall, ...]
    compiles: int
    seconds: float
    still_racing: bool = False  # whether some race was not decided in the time given

    def __str__(self) -> str:
        lines = [f"warmed up in {self.seconds:.1f} s: {self.compiles} compiles for {len(self.calls)} kinds of calls"]
        lines += [f"  {call}" for call in self.calls]
        if self.still_racing:
            lines.append("  some races are undecided: they go on with the traffic")
        return "\n".join(lines)


def warmup(
    compiled: Any,
    traffic: Sequence[Any] | str | Path | None = None,
    *,
    example: Example = None,
    progress: bool = True,
    seconds: float = 2.0,
) -> WarmupReport:
    """Compile `compiled` for `traffic`, before it arrives.

    `traffic` is a list of example calls (each a tensor, a tuple of arguments, or a dict of keyword arguments); or a
    list of sizes, such as [{"batch": 2, "sequence": 57}], or a trace file with such a list (its JSON). Sizes need an
    `example`, whose tensors are cut or repeated to them. With `shapes=`, buckets that are learnt are planned from these
    sizes, and each is compiled; `traffic` may be left out where all buckets are given.

    Each call is repeated until its races are decided, for at most `seconds`. Call it in the grad mode of the traffic.
    """
    handle = handle_of(compiled)
    begin, compiles = time.perf_counter(), handle.log.compiles
    done: list[WarmedCall] = []
    with _shown(progress) as tell:
        for args, kwargs in _calls(handle, traffic, example):  # later calls depend on what earlier ones compiled
            tell(_in_words(args, kwargs))
            done.append(_settled(handle, compiled, args, kwargs, seconds))
    spent = time.perf_counter() - begin
    return WarmupReport(tuple(done), handle.log.compiles - compiles, spent, handle.is_racing)


def _settled(
    handle: Handle, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], seconds: float
) -> WarmedCall:
    begin, compiles, calls = time.perf_counter(), handle.log.compiles, 0
    until = None
    while calls < _MOST_CALLS:
        before = handle.log.compiles
        compiled(*args, **kwargs)
        handle.wait()
        calls += 1
        now = time.perf_counter()
        if handle.log.compiles != before or until is None:
            until = now + seconds
        elif calls >= _LEAST_CALLS and (not handle.is_racing or now > until):
            break
    return WarmedCall(_in_words(args, kwargs), handle.log.compiles - compiles, calls, time.perf_counter() - begin)


def _calls(handle: Handle, traffic: Any, example: Example) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    if isinstance(traffic, (str, Path)):
        traffic = read_trace(traffic)
    if traffic is not None and not isinstance(traffic, (list, tuple)):
        raise BadWarmup(f"{type(traffic).__name__} is not a list of calls or sizes")
    entrance = handle.entrance
    if traffic and not _are_sizes(traffic):
        yield from (_taken_apart(each) for each in traffic)
        return
    if example is None:
        raise BadWarmup("sizes need an example call: warmup(compiled, sizes, example=(input_ids,))")
    requests = checked_trace(list(traffic)) if traffic else []
    reader, (args, kwargs) = Reader(handle.eager), _taken_apart(example)
    names = list(requests[0]) if requests else []
    axes = _axes_of(names, reader, args, kwargs)
    bucketed = entrance.axes_of(args, kwargs) if isinstance(entrance, BucketedCalls) else ()
    beside = [name for name in names if name not in bucketed]  # sizes that are not padded
    for sizes in counted(requests, beside) or [()]:
        asked = dict(zip(beside, sizes, strict=True))
        call = resized(args, kwargs, axes, asked, reader)
        if not isinstance(entrance, BucketedCalls) or not bucketed:
            yield call
            continue
        alike = [r for r in requests if asked.items() <= r.items()]
        yield from entrance.calls_to_warm(*call, [{name: r[name] for name in r if name in bucketed} for r in alike])


def _axes_of(
    names: Sequence[str], reader: Reader, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Axis, ...]:
    """The dimensions of the example that sizes are given for."""
    given = [*((reader.name(k), x) for k, x in enumerate(args)), *kwargs.items()]
    ranks = [(name, x.dim()) for name, x in given if isinstance(x, torch.Tensor)]
    if not ranks:
        raise BadWarmup("the example has no tensor to resize: pass one like a call, such as example=(input_ids,)")
    known = [name for name, dim in DIMENSIONS.items() if any(Axis(name, dim).is_of(*each) for each in ranks)]
    known += [f"{name}.{dim}" for name, rank in ranks for dim in range(rank)]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            raise BadWarmup(f"the example has no dimension {name!r}; it has {', '.join(known)}.{guess}")
    return axes_named(names)


def _are_sizes(traffic: Sequence[Any]) -> bool:
    return all(isinstance(each, Mapping) and all(type(size) is int for size in each.values()) for each in traffic)


def _taken_apart(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def resized(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], axes: Sequence[Axis], sizes: Mapping[str, int], reader: Reader
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call with tensors of other sizes: cut, or repeated from the beginning."""

    def made(name: str, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        for axis in axes:
            if axis.name in sizes and axis.is_of(name, x.dim()) and x.shape[axis.dim] != sizes[axis.name]:
                x = repeated(x, axis.dim, sizes[axis.name])
        return x

    return tuple(made(reader.name(k), x) for k, x in enumerate(args)), {n: made(n, x) for n, x in kwargs.items()}


def _in_words(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    named = [("", x) for x in args] + [(f"{name} ", x) for name, x in kwargs.items()]
    parts = [f"{name}{list(x.shape)}" for name, x in named if isinstance(x, torch.Tensor)]
    return ", ".join(parts) or "a call without tensors"


@contextlib.contextmanager
def _shown(wanted: bool) -> Iterator[Callable[[str], None]]:
    """A progress bar on a terminal; nothing elsewhere. How many calls there will be is not known before some of them
    have been made."""
    if not wanted or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("warming up"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda text: bar.update(task, description=text)
