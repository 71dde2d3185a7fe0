"""Frames that another thread compiles: in the background, or while their call waits at most for its budget.

A call that enters a frame without compiled code for its inputs gives a snapshot of it to the compiling thread and runs
in eager. That thread lets Dynamo make code and guards from the snapshot, without running them. The next call whose
inputs pass those guards passes the code to the interpreter. So the switch to compiled code happens between calls, and
is checked against the live objects. Resume functions after a graph break, and new sizes, are handled in the same way.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from burnish.capture.background.pending import PendingCalls
from burnish.capture.background.process_warmup import warm_up
from burnish.capture.background.queue import Job, Pace, after_fork_in_child, submit, worker_for
from burnish.capture.background.snapshot import FrameSnapshot, can_wait, inputs_in_words, signature
from burnish.capture.entry.diagnosis import GRAPH_BREAKS, is_callers_mistake, serve_eager
from burnish.capture.entry.failure_cause import RETURNED, Doubt, Doubts, Settlement
from burnish.errors import CompileError
from burnish.observe.events import EventKind
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.deadline import Cancelled, Deadline, OverBudget
from burnish.runtime.host.thread_state import CannotSnapshot, ThreadState
from burnish.runtime.process import NICE
from burnish.torch_private.aot import config as functorch_config
from burnish.torch_private.dynamo import ConvertFrameReturn, FrameAction, FrameExecStrategy, compile_lock
from burnish.torch_private.dynamo import check as is_skipped
from burnish.torch_private.shield import beside_calls
from burnish.trust.background_trial import collecting, try_in_background
from burnish.trust.jobs import JobStats

Compile = Callable[[Any, Any, Any], ConvertFrameReturn]
Key = tuple[types.CodeType, ThreadState, tuple[Any, ...]]

ONCE_IN_EAGER = ConvertFrameReturn(FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP), apply_to_code=False)

LEFT_ALONE = ConvertFrameReturn()  # never compiled; its callees may be

_MOST_PENDING = 8  # frames of one object in the queue; further ones are submitted again at a later call
_MOST_TRIES = 3  # attempts for the same inputs, when the compiled code does not fit the following calls
_MOST_OVERRUNS = 2  # compiles of one function that exceeded the budget
_MOST_REMEMBERED = 256
_BACKWARD_TOO = {name: True for name in ("force_non_lazy_backward_lowering",) if hasattr(functorch_config, name)}
_SERIAL = re.compile(r"__\d+$")  # makes the name of an entrance's own frame unique


class DeferredFrames:
    """One entrance's deferred frames. Called where Dynamo would compile."""

    def __init__(
        self,
        compile_now: Compile,
        entries: Callable[[types.CodeType], list[Any]],
        doubts: Doubts,
        options: Options,
        log: CompileLog,
    ) -> None:
        self._compile_now = compile_now
        self._entries = entries
        self._doubts = doubts
        self._log = log
        self._background = options.background
        self._budget = options.budget
        self.pace = Pace()
        self._jobs: OrderedDict[Key, Job] = OrderedDict()
        self._tries: OrderedDict[Key, int] = OrderedDict()
        self._made: list[tuple[Key, ConvertFrameReturn]] = []  # code and guards that no call has used yet
        self._decided: dict[types.CodeType, ConvertFrameReturn] = {}  # frames that Dynamo skips
        self._errors: dict[types.CodeType, BaseException] = {}  # graph breaks under fullgraph=True
        self._overruns: dict[types.CodeType, int] = {}
        self._settlements: weakref.WeakKeyDictionary[Job, Settlement] = weakref.WeakKeyDictionary()
        self._closed = False
        self._telling = threading.RLock()
        self.pending_calls = PendingCalls()
        worker_for(urgent=not self._background)
        if self._background:
            warm_up()

    # -- in the calling thread ---------------------------------------------------------------------------------

    def __call__(self, frame: Any, cache_entry: Any, frame_state: Any) -> ConvertFrameReturn:
        if is_skipped(frame.f_code):
            return LEFT_ALONE
        if (made := self._fitting(frame)) is not None:
            return made
        try:
            job = self._job_for(frame, cache_entry, frame_state)
        except CannotSnapshot as reason:
            serve_eager(self._log, "background", CompileError("background", f"{reason}", _WAY_OUT))
            return ONCE_IN_EAGER
        if job is None:
            return ONCE_IN_EAGER
        self._doubts.note(Doubt(frame.f_code, self._settlements[job].called))
        if self._background:
            if frame.f_code is self.pending_calls.code:
                self.pending_calls.asked[threading.get_ident()] = job
            return ONCE_IN_EAGER
        if not job.done.wait(job.deadline.remaining()):
            self._over_budget(frame.f_code, job)
        return self._fitting(frame) or ONCE_IN_EAGER

    def _fitting(self, frame: Any) -> ConvertFrameReturn | None:
        code = frame.f_code
        if code in self._errors:
            raise self._errors[code]
        if code in self._decided:
            return self._decided[code]
        candidates = [(key, made) for key, made in self._made if key[0] is code]
        if not candidates:
            return None
        values, in_use = frame.f_locals, [entry.code for entry in self._entries(code)]
        for item in candidates:
            guarded: Any = item[1].guarded_code
            if guarded.guard_manager.check(values):
                if guarded.code in in_use:  # another thread's call submitted it after this one's check
                    return ONCE_IN_EAGER
                if (job := self._jobs.get(item[0])) is not None:
                    job.used = True
                return item[1]
        return None

    def _job_for(self, frame: Any, cache_entry: Any, frame_state: Any) -> Job | None:
        """The job of this frame; submits one if possible."""
        values = frame.f_locals
        key: Key = (frame.f_code, ThreadState.here(), signature(values))
        job = self._jobs.get(key)
        if job is not None and not job.done.is_set():
            return job
        if self._closed or not self._may_try(key) or self._pending() >= _MOST_PENDING:
            return None
        first_try = self._background and key not in self._tries
        later = first_try and all(map(can_wait, values.values()))
        snapshot = FrameSnapshot.uncopied(frame) if later else FrameSnapshot.of(frame)
        frames = (lambda: FrameSnapshot.of(snapshot)) if later else (lambda: snapshot)
        work = lambda job: self._work(key, frames, cache_entry, frame_state, job)  # noqa: E731
        return self._submitted(key, work, values)

    def _submitted(self, key: Key, work: Callable[[Job], None], values: dict[str, Any]) -> Job:
        deadline = Deadline(
            self._budget,
            on_check=self.pace.check if self._background else None,
            niceness=NICE if self._background else 0,
            starts_later=self._background,  # the budget does not include waiting in the queue
        )
        job = Job(_plain_name(key[0]), inputs_in_words(values), work, deadline, self.pace)
        self._settlements[job] = Settlement()
        first = self._jobs.setdefault(key, job)
        if first is job:  # and no other thread was faster
            if self._background:
                self._log.emit("background_queued", reason=f"{job.function}({job.inputs})")
            if not submit(job, urgent=not self._background):
                job.finish("failed", _NO_THREAD)
                serve_eager(self._log, "background", CompileError("background", _NO_THREAD, _MORE_THREADS))
            self._forget_old_jobs()
        return first

    def _forget_old_jobs(self) -> None:
        done = [key for key, job in list(self._jobs.items()) if job.done.is_set()]
        for key in done[: max(len(self._jobs) - _MOST_REMEMBERED, 0)]:
            self._jobs.pop(key, None)

    def _may_try(self, key: Key) -> bool:
        if self._overruns.get(key[0], 0) >= _MOST_OVERRUNS:
            return False
        previous = self._jobs.pop(key, None)
        if previous is None:
            return self._tries.get(key, 0) < _MOST_TRIES
        in_vain = previous.state == "failed" or (previous.state == "ready" and not previous.used)
        tries = self._tries[key] = self._tries.get(key, 0) + in_vain
        while len(self._tries) > _MOST_REMEMBERED:
            self._tries.popitem(last=False)
        if tries < _MOST_TRIES:
            return True
        if previous.state == "ready":
            serve_eager(self._log, "background", CompileError("background", _NEVER_FITS, _WAY_OUT))
        return False

    def is_busy(self) -> bool:
        """Whether eager serves calls because their frames are being compiled."""
        return bool(self.pending_calls.waiting and self._background) or self._pending() > 0

    def _pending(self) -> int:
        return sum(not job.done.is_set() for job in list(self._jobs.values()))

    # -- in the compiling thread -------------------------------------------------------------------------------

    def admit_first(self) -> None:
        """Make a job from the stored first call. Every request for jobs does this, too."""
        if (first := self.pending_calls.first_call()) is None:
            return
        frame = first.frame()
        job = None
        if frame is not None and not self._closed:
            key: Key = (frame.f_code, first.state, signature(frame.f_locals))
            work = lambda job: self._work(key, lambda: FrameSnapshot.of(frame), None, {}, job)  # noqa: E731
            job = self._submitted(key, work, frame.f_locals)
            self._settlements[job].called(RETURNED)  # or it had not come here
        self.pending_calls.admitted(first, job)

    def _work(
        self, key: Key, frame_of: Callable[[], FrameSnapshot], cache_entry: Any, frame_state: Any, job: Job
    ) -> None:
        try:
            self._compile(key, frame_of(), cache_entry, frame_state, job)
        finally:
            self.pending_calls.is_over(job)

    def _compile(self, key: Key, frame: FrameSnapshot, cache_entry: Any, frame_state: Any, job: Job) -> None:
        begin = time.perf_counter()
        fallbacks = len(self._log.fallbacks)
        made = self._made_now(key, frame, cache_entry, frame_state, job)
        if made is None:
            return
        result, doubts = made
        if result.guarded_code is not None:
            self._keep(key, result)
        elif result.apply_to_code:
            self._decided[frame.f_code] = result
        settlement = self._settlements[job]
        settlement.compiled(doubts)
        failures = self._log.fallbacks[fallbacks:]
        if failures:
            job.finish("failed", str(failures[-1]))
        elif settlement.raised_in(frame.f_code):
            job.finish("failed", _CALLERS_MISTAKE)
            return
        if self._background:
            kind: EventKind = "background_failed" if failures else "background_ready"
            why = str(failures[-1]) if failures else f"{job.function}({job.inputs})"
            self._log.emit(kind, seconds=time.perf_counter() - begin, reason=why)

    def _made_now(
        self, key: Key, frame: FrameSnapshot, cache_entry: Any, frame_state: Any, job: Job
    ) -> tuple[ConvertFrameReturn, list[Doubt]] | None:
        """Dynamo's answer, and what is doubtful about it; None if it is not needed any more."""
        code = frame.f_code
        try:
            with self._compiling(key[1], job), collecting() as variants:
                if self._closed or self._serves_already(frame):
                    return None
                result = self._compile_now(frame, self._newest_entry(code, cache_entry), frame_state)
                job.deadline.check("gate")
                if self._background:  # otherwise the waiting call is the trial
                    for variant, inputs in variants:
                        try_in_background(variant, inputs)
                job.deadline.check("done")
                return result, self._doubts.taken()
        except GRAPH_BREAKS as error:
            if not is_callers_mistake(error):
                self._errors[code] = error
                for doubt in self._doubts.taken():
                    doubt.hear(RETURNED)
            raise
        except Cancelled:
            if job.deadline.expired:
                self._over_budget(code, job)
            raise
        finally:
            self._doubts.taken()  # of what was not finished

    @contextlib.contextmanager
    def _compiling(self, state: ThreadState, job: Job) -> Iterator[None]:
        """Compile in the state of the requesting thread, under Dynamo's lock, with pauses for calls in flight."""
        # A backward that is compiled at its first call would be compiled by that call.
        backward_too = functorch_config.patch(_BACKWARD_TOO)
        with state.entered(), compile_lock, backward_too, beside_calls(job.deadline.check):
            job.deadline.check("dynamo")
            yield

    def _serves_already(self, frame: FrameSnapshot) -> bool:
        made = [result.guarded_code for key, result in self._made if key[0] is frame.f_code]
        return any(each.guard_manager.check(frame.f_locals) for each in (*self._entries(frame.f_code), *made) if each)

    def _newest_entry(self, code: types.CodeType, known: Any) -> Any:
        entries = self._entries(code)
        return entries[0] if entries else known

    def _keep(self, key: Key, result: ConvertFrameReturn) -> None:
        """Drop the code that calls have taken over since the last time."""
        in_use = [entry.code for code in {key[0] for key, _ in self._made} for entry in self._entries(code)]
        left = [(k, made) for k, made in self._made if made.guarded_code and made.guarded_code.code not in in_use]
        self._made = [*left, (key, result)]

    def unused(self, code: types.CodeType) -> list[Any]:
        """Compiled and not in Dynamo's cache yet: code and guards, as the entries of the cache have them."""
        in_use = [entry.code for entry in self._entries(code)]
        made = [result.guarded_code for key, result in self._made if key[0] is code]
        return [each for each in made if each is not None and each.code not in in_use]

    def _over_budget(self, code: types.CodeType, job: Job) -> None:
        """Reported once, by the first thread that notices, and before the waiting call returns."""
        overrun = OverBudget(self._budget or 0.0, job.deadline.stage)
        with self._telling:
            if job.done.is_set():
                return
            try:
                self._overruns[code] = self._overruns.get(code, 0) + 1
                self._log.emit("budget_exceeded", seconds=self._budget, reason=overrun.reason, tier="eager")
                serve_eager(self._log, "budget", overrun)
            finally:
                job.finish("cancelled", overrun.reason)

    # -- from outside ------------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        self.admit_first()
        return list(self._jobs.values())

    def stats(self) -> list[JobStats]:
        return [job.stats() for job in self.jobs()]

    def close(self) -> None:
        """Calls in flight submit no more jobs."""
        self._closed = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel all pending jobs. Later calls submit new ones."""
        for job in self.jobs():
            job.deadline.cancel("no longer wanted")
            job.finish("cancelled", "no longer wanted")
        self.pending_calls.clear()


_CALLERS_MISTAKE = "eager raises on these inputs, too"
_WAY_OUT = "compile it with background=False"
_NO_THREAD = "there is no thread to compile in: the system lets this process start no more, or the process ends"
_MORE_THREADS = "raise its limit of processes and threads (ulimit -u, a container's pids limit)"
_NEVER_FITS = (
    f"what was compiled did not fit the calls that followed, {_MOST_TRIES} times in a row: "
    "something that the code depends on changes from call to call, or is known by its identity"
)


def _plain_name(code: types.CodeType) -> str:
    return _SERIAL.sub("", code.co_name)


def _free_the_compile_lock() -> None:
    """In a forked child: the thread that held it is not there."""
    reinitialise = getattr(compile_lock, "_at_fork_reinit", None)
    if reinitialise is not None:
        reinitialise()


after_fork_in_child.append(_free_the_compile_lock)
