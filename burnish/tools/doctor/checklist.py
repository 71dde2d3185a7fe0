"""The production checklist: what a team should know about a compiled model before it serves, each line measured.

    lines = checklist("bert-base")          # or a Target; a list of ChecklistLine

The model is compiled once, with the cache that the user's processes use, and every line asks it something. A line that
cannot be measured says why; one that breaks says so, and the others go on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from burnish import api
from burnish.errors import in_one_line
from burnish.stats import Stats
from burnish.tools.bench.memory import give_back_freed_memory
from burnish.tools.doctor.line import Status
from burnish.tools.doctor.shapes import other_batches
from burnish.tools.doctor.storage import size
from burnish.tools.measure import duration, interleave
from burnish.tools.parity import NOT_REPEATABLE, OTHER_DRAWS, Trials, left_behind, relative_error, tensors_in
from burnish.tools.targets import Target, load_target, running
from burnish.tools.verify.judge import judge

CheckVerdict = Literal["ok", "warn", "fail", "not measured"]

NOT_SLOWER = 1.03  # times eager's time
_RACE_SECONDS = 2.0
_CHILD_SECONDS = 300.0
_THREADS = 4
_LEAK_BYTES_PER_CALL = 4096
_LEAK_BYTES = 1 << 20  # less than this is the allocator's own breathing


@dataclass(frozen=True)
class ChecklistLine:
    """One line of the checklist. `figure` is what was measured, in words and numbers."""

    name: str
    verdict: CheckVerdict
    figure: str
    advice: str = ""
    seconds: float = 0.0  # what measuring it took

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Found = tuple[CheckVerdict, str, str]  # verdict, figure, advice


class NotMeasured(Exception):
    """Why a line says nothing about this target."""


def checklist(
    target: str | Target, *, calls: int = 30, on_progress: Callable[[str], None] = lambda doing: None
) -> list[ChecklistLine]:
    """Compile `target` (as `burnish.compile` would by default) and measure every line. `calls` is how many calls the
    lines that count make; `on_progress` hears what is being measured."""
    loaded = load_target(target) if isinstance(target, str) else target
    with running(loaded.name, "running it in eager"):
        Trials(loaded).run()
    subject = _Subject(loaded, calls)
    lines = []
    for name, ask in QUESTIONS.items():
        on_progress(f"{loaded.name}: {name} …")
        lines.append(_asked(name, ask, subject))
    return lines


def _asked(name: str, ask: Callable[[_Subject], Found], subject: _Subject) -> ChecklistLine:
    begin = time.perf_counter()
    try:
        verdict, figure, advice = ask(subject)
    except NotMeasured as reason:
        verdict, figure, advice = "not measured", str(reason), ""
    except (Exception, SystemExit) as error:
        verdict, figure, advice = "fail", in_one_line(error), "see burnish explain TARGET"
    return ChecklistLine(name, verdict, figure, advice, time.perf_counter() - begin)


class _Subject:
    """The target, compiled; shared by all lines, in the order of QUESTIONS."""

    def __init__(self, target: Target, calls: int) -> None:
        self.target = target
        self.calls = calls
        self.compiled: Any = api.compile(target.model)
        self.step = target.step(self.compiled)

    def stats(self) -> Stats:
        return api.stats(self.compiled)

    def call(self, times: int) -> None:
        with self.target.grad_mode():
            for _ in range(times):
                self.step()

    @property
    def on_cuda(self) -> bool:
        return any(tensor.is_cuda for tensor in tensors_in(self.target.inputs))


# -- the lines, in order ------------------------------------------------------------------------------------------


def _compiles_once(subject: _Subject) -> Found:
    begin = time.perf_counter()
    subject.call(1)
    first = time.perf_counter() - begin
    before = subject.stats().compiles
    subject.call(subject.calls)
    more = subject.stats().compiles - before
    figure = f"{before} graph{'s' if before != 1 else ''} in {first:.1f} s; {more} more in {subject.calls} calls"
    if before == 0:
        return "fail", figure, "nothing was captured: burnish explain TARGET says why"
    if more:
        return "fail", figure, "a value that changes on every call is baked in: see burnish.stats(c).recompiles"
    return "ok", figure, ""


def _no_graph_breaks(subject: _Subject) -> Found:
    breaks = subject.stats().graph_breaks
    if not breaks:
        return "ok", "0", ""
    where = "; ".join(f"{Path(found.file).name}:{found.line}" for found in breaks[:3])
    return (
        "warn",
        f"{len(breaks)}: {where}",
        "each costs a trip through Python: burnish explain TARGET says how to rewrite",
    )


def _no_fallbacks(subject: _Subject) -> Found:
    stats = subject.stats()
    calls = sum(stats.aten_calls.values())
    left, made = _counted(len(stats.fallbacks), "graph"), _counted(stats.kernels, "kernel")
    figure = f"{left} left to eager; {made} of ours, {_counted(calls, 'call')} to ATen"
    if stats.fallbacks:
        return "fail", figure, f"{stats.fallbacks[0]}"
    return "ok", figure, ""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _parity(subject: _Subject) -> Found:
    """By the rule of `burnish verify`, so that the two agree."""
    trials = Trials(subject.target)
    try:
        truth = trials.in_float64()
    except Exception:  # e.g. a function that closes over float32 tensors, or an op without a float64 kernel
        raise NotMeasured("the target cannot run in float64, which is the referee") from None
    ours, eager, again = trials.run(subject.compiled), trials.run(), trials.run()
    errors = [relative_error(run.tensors, truth) for run in (ours, eager)]
    figure = f"error {errors[0]:.1e} against float64, eager's {errors[1]:.1e}"
    if not all(judge(*results).ok for results in zip(again.tensors, eager.tensors, strict=True)):
        raise NotMeasured(NOT_REPEATABLE)
    if all(judge(*results).ok for results in zip(ours.tensors, eager.tensors, truth, strict=True)):
        return "ok", figure, ""
    if eager.drew and ours.generators != eager.generators:
        raise NotMeasured(OTHER_DRAWS)
    return "fail", figure, "burnish verify TARGET finds the step that is wrong"


def _faster(subject: _Subject) -> Found:
    target = subject.target
    with target.grad_mode():
        race = interleave({"eager": target.step(), "burnish": subject.step}, seconds=_RACE_SECONDS)
    ratio = race.ratio("eager", "burnish")
    ours, eager = race.timing("burnish"), race.timing("eager")
    noise = f" (noisy: rounds spread {ratio.spread:.0%})" if ratio.noisy else ""
    sure = f"({ratio.low:.2f} to {ratio.high:.2f} in half of the rounds)"
    figure = f"{ratio.value:.2f} × eager's speed {sure}{noise}; p50 {duration(ours.p50)} against {duration(eager.p50)}"
    if ratio.value * NOT_SLOWER < 1.0:
        return "fail", figure, "compiling does not help here: burnish bench TARGET looks for a setting that does"
    stats = subject.stats()
    engines = {variant.engine for variant in stats.variants}
    if stats.whole_call and all(each.served == "eager" for each in stats.whole_call):
        engines = {"eager"}
    if engines == {"eager"}:
        return (
            "warn",
            f"{figure}; served by eager, which the gate found faster",
            "burnish bench TARGET looks for a gain",
        )
    if ratio.value < 1.02:
        return "warn", figure, "no gain worth the compile: burnish bench TARGET looks for a setting that has one"
    return "ok", f"{figure}; p99 {duration(ours.p99)}", ""


def _other_shapes(subject: _Subject) -> Found:
    target = subject.target
    batches = other_batches(target)
    if not batches:
        raise NotMeasured("the model takes inputs of one size only, or none that can be varied")
    before = subject.stats().compiles
    with target.grad_mode():
        for _, inputs in batches:
            Target(target.name, subject.compiled, inputs, target.kind).step()()
    more = subject.stats().compiles - before
    figure = f"sizes {', '.join(str(batch) for batch, _ in batches)}: {more} compile{'s' if more != 1 else ''}"
    if more <= 1:
        return "ok", figure, ""
    return "warn", figure, "pass dynamic=True, or pad to a few sizes and warm each up before serving"


def _warm_start(subject: _Subject) -> Found:
    if subject.compiled.burnish.options.disable_cache:
        return "warn", "the cache is switched off", "unset BURNISH_NO_CACHE: each process compiles from scratch"
    found = _in_new_process(subject.target.name)
    figure = f"{found['seconds']:.1f} s to the first result in a new process; cache: {found['hits']} hits, "
    figure += f"{found['misses']} misses"
    if found["misses"]:
        return "warn", figure, "; ".join(found["reasons"][:1]) or "burnish doctor checks the cache folder"
    return "ok", figure, ""


_CHILD = """
import json, sys, time, torch, burnish
from burnish.tools.targets import load_target
target = load_target(sys.argv[1])
compiled = burnish.compile(target.model)
begin = time.perf_counter()
with target.grad_mode():
    target.step(compiled)()
took = time.perf_counter() - begin
stats = burnish.stats(compiled)
found = {"seconds": took, "hits": stats.cache_hits, "misses": stats.cache_misses, "reasons": stats.cache_reasons}
print("burnish-child:" + json.dumps(found))
"""


def _in_new_process(target: str) -> dict[str, Any]:
    command = [sys.executable, "-c", _CHILD, target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("burnish-child:"):
            found: dict[str, Any] = json.loads(line.partition(":")[2])
            return found
    said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
    raise NotMeasured(f"the target cannot be built in a new process, which said: {said[0]}")


def _memory(subject: _Subject) -> Found:
    subject.call(subject.calls)  # so that pools have the size they keep
    before = _memory_in_use(subject)
    subject.call(subject.calls)
    middle = _memory_in_use(subject)
    subject.call(subject.calls)
    after = _memory_in_use(subject)
    if before is None or middle is None or after is None:
        raise NotMeasured("this system does not tell how much memory a process uses")
    held = subject.stats().memory
    grown = min(middle - before, after - middle)  # a leak shows in both
    figure = f"{size(max(grown, 0))} more after {subject.calls} calls; workspaces {size(held.arena_bytes)}"
    if grown > max(_LEAK_BYTES, _LEAK_BYTES_PER_CALL * subject.calls):
        return "fail", figure, "memory grows with every call: does eager's, too? If not, report the model"
    return "ok", figure, ""


def _memory_in_use(subject: _Subject) -> int | None:
    """Without freed memory that malloc keeps: a leak would take that first, and not show."""
    if subject.on_cuda:
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    give_back_freed_memory()
    with suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _repeatable(subject: _Subject) -> Found:
    trials = Trials(subject.target)

    def twice(model: Callable[..., Any]) -> bool:
        results = [trials.run(model).tensors for _ in range(2)]
        return all(_same_bits(a, b) for a, b in zip(*results, strict=True))

    ours, eager = twice(subject.compiled), twice(subject.target.model)
    words = {True: "the same bits", False: "other bits"}
    figure = f"two calls from one seed give {words[ours]} (eager: {words[eager]})"
    if ours:
        return "ok", figure, ""
    if not eager:
        return "warn", figure, "the model itself is not repeatable: state it changes, or atomics on the GPU"
    return "fail", figure, "eager is repeatable and the compiled model is not: burnish verify TARGET"


def _threads(subject: _Subject) -> Found:
    if subject.target.kind == "train":
        raise NotMeasured("threads of one training step share its gradients")
    expected, again = (left_behind(subject.target, subject.compiled) for _ in range(2))
    if not all(_same_bits(a, b) for a, b in zip(expected, again, strict=True)):
        raise NotMeasured("two calls give different results even in one thread")
    before = subject.stats().compiles
    with ThreadPoolExecutor(_THREADS) as pool:
        work = [pool.submit(left_behind, subject.target, subject.compiled) for _ in range(max(subject.calls, _THREADS))]
        results = [each.result() for each in work]
    wrong = sum(not all(_same_bits(a, b) for a, b in zip(expected, got, strict=True)) for got in results)
    more = subject.stats().compiles - before
    figure = f"{len(results)} calls from {_THREADS} threads: {wrong} differ, {more} compiles"
    if wrong:
        return "fail", figure, "the model keeps state between calls, or report it: call it from one thread"
    return (
        ("warn", figure, "compile before the threads start: call it once on each shape") if more else ("ok", figure, "")
    )


def _rolls_back(subject: _Subject) -> Found:
    handle = subject.compiled.burnish
    if not hasattr(handle, "rollback"):
        raise NotMeasured("this version has no rollback()")
    trials = Trials(subject.target)
    eager = trials.run().tensors
    begin = time.perf_counter()
    handle.rollback()
    took = time.perf_counter() - begin
    served = trials.run(subject.compiled).tensors
    handle.retry()
    same = all(_same_bits(a, b) for a, b in zip(eager, served, strict=True))
    bits = "eager's bits" if same else "other bits than eager's"
    figure = f"rollback() takes {duration(took)}; calls after it give {bits}"
    if same:
        return "ok", figure, ""
    return "warn", figure, "a model that changes its own state, or draws random numbers, does so in eager, too"


def _sealed(subject: _Subject) -> Found:
    handle = subject.compiled.burnish
    if not hasattr(handle, "seal"):
        raise NotMeasured("this version has no seal()")
    subject.call(1)
    before = subject.stats()
    handle.seal()
    try:
        subject.call(subject.calls)
        after = subject.stats()
    finally:
        handle.unseal()
    more = after.compiles - before.compiles
    unseen = {what: count - before.notices.get(what, 0) for what, count in after.notices.items()}
    eager = sum(count for what, count in unseen.items() if "eager" in what)
    figure = f"{more} compiles and {eager} calls in eager, of {subject.calls} after seal()"
    if more:
        return "fail", figure, "report it"
    return ("warn", figure, "see burnish.stats(c).notices") if eager else ("ok", figure, "")


QUESTIONS: dict[str, Callable[[_Subject], Found]] = {
    "compiles once": _compiles_once,
    "no graph breaks": _no_graph_breaks,
    "no fallbacks": _no_fallbacks,
    "as exact as eager": _parity,
    "faster than eager": _faster,
    "repeatable": _repeatable,
    "thread safe": _threads,
    "memory stable": _memory,
    "warm start": _warm_start,
    "other sizes": _other_shapes,
    "rolls back": _rolls_back,
    "sealed": _sealed,
}


def worst_of(lines: Sequence[ChecklistLine]) -> Status:
    """The checklist as one word."""
    verdicts = {line.verdict for line in lines}
    return "fail" if "fail" in verdicts else "warn" if "warn" in verdicts else "ok"


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    same = torch.equal(one, other)
    return same or bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""
