"""The queue of background compiles, its thread, and the limits on the time that it takes from callers.

One thread per process compiles (Dynamo's lock allows only one compile at a time). It must not

- starve callers: Python runs one thread at a time, and every op of an eager call releases and reacquires the GIL. So a
  compile works in short slices while calls are in flight, and pauses in between (`Pace`);
- outlive its parent: at exit the current compile is cancelled, its C compiler is ended, and the process waits briefly
  for the thread;
- break a fork: the compile is interrupted, restarted in the parent, and queued again by the child's next call.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from burnish.capture.gc_pause import Patience, patience
from burnish.observe.log import failure_reason
from burnish.runtime.deadline import Cancelled, Deadline
from burnish.runtime.process import at_exit, has_started
from burnish.trust.jobs import JobState, JobStats

SLICE_SECONDS = 0.0005  # processor time of one slice of a compile while calls are in flight ...
REST_SECONDS = 0.005  # ... followed by a pause of at least this long, ...
TURN_SECONDS = 0.004  # ... until the other threads have used this much processor time, ...
LONGEST_REST_SECONDS = 0.02  # ... but at most this long, on a busy machine or if the threads wait
NAP_SECONDS = 0.001
LOOK_SECONDS = 0.005  # between two checks for a first call ...
LOOKOUT_SECONDS = 30.0  # ... which is expected for this long after `burnish.compile`
FIRST_REST_SECONDS = 2.0  # before a job begins: the call that submitted it should be over
EXIT_SECONDS = 2.0  # how long the exit of the process waits for the current compile to stop
FORK_SECONDS = 1.0  # the same before a fork

SWITCH_SECONDS = 0.0005  # the GIL's switch interval while compiling

_FORK = "interrupted by a fork"


class Pace:
    """Counts calls in flight, and pauses a compile for them."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
        others_worked: Callable[[], float] = lambda: time.process_time() - time.thread_time(),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.calls: list[None] = []  # one element per call in flight: append and pop need no lock
        self._clock = clock
        self._worked = worked  # processor time of the compiling thread
        self._others_worked = others_worked
        self._sleep = sleep
        self._since = 0.0

    def begin(self) -> None:
        end = self._clock() + FIRST_REST_SECONDS
        while self.calls and self._clock() < end:
            self._sleep(REST_SECONDS)
        self._since = self._worked()

    def check(self) -> None:
        """Called by the compiling thread, often."""
        if self.calls and self._worked() - self._since >= SLICE_SECONDS:
            self._rest(REST_SECONDS, LONGEST_REST_SECONDS)

    def _rest(self, shortest: float, longest: float) -> None:
        start, turn_ends = self._clock(), self._others_worked() + TURN_SECONDS
        self._sleep(shortest)  # one sleep: a check whether the calls have ended would take the GIL from them
        while self.calls and self._clock() - start < longest and self._others_worked() < turn_ends:
            self._sleep(NAP_SECONDS)
        self._since = self._worked()


class GoodManners:
    """GIL and garbage-collector settings while the background thread has work; restored afterwards.

    By default a thread that waits for the GIL requests it after 5 ms, at each op of its call; here it does after a
    fraction of that. Full garbage collections, which would stop all threads for a quarter of a second, are
    postponed."""

    def __init__(self, patience: Patience = patience) -> None:
        self._before: float | None = None
        self._during = 0.0
        self._patience = patience

    def assume(self) -> None:
        if self._before is not None:
            return
        self._before = sys.getswitchinterval()
        sys.setswitchinterval(min(self._before, SWITCH_SECONDS))
        self._during = sys.getswitchinterval()
        self._patience.ask()

    def drop(self) -> None:
        """A value that other code has set meanwhile is kept."""
        if self._before is None:
            return
        before, self._before = self._before, None
        self._patience.let_go()
        if sys.getswitchinterval() == self._during:
            sys.setswitchinterval(before)


_manners = GoodManners()  # one, because one thread compiles in the background


class Job:
    """One frame to compile. `work` does it; it raises if it fails."""

    _numbers = itertools.count(1)

    def __init__(self, function: str, inputs: str, work: Callable[[Job], None], deadline: Deadline, pace: Pace) -> None:
        self.number = next(Job._numbers)
        self.function = function
        self.inputs = inputs
        self.deadline = deadline
        self.pace = pace
        self.state: JobState = "pending"
        self.reason = ""
        self.seconds = 0.0
        self.used = False  # whether a call has taken over the compiled code
        self.done = threading.Event()
        self._work: Callable[[Job], None] | None = work

    def run(self) -> None:
        work = self._work
        if work is None:
            return
        self.state = "compiling"
        start = time.perf_counter()
        try:
            self.pace.begin()
            self.deadline.start()
            with self.deadline.governing():
                work(self)
            self.seconds = time.perf_counter() - start
            self.finish("ready")
        except Cancelled as cancelled:
            if cancelled.reason == _FORK:
                raise
            self.finish("cancelled", str(cancelled))
        except BaseException as error:  # SystemExit in a model's code must not end the thread, either
            self.finish("failed", failure_reason(error))

    def finish(self, state: JobState, reason: str = "") -> bool:
        """The first call of `finish` sets the state. The job's data (a call's arguments) is released."""
        with _lock:
            if self.done.is_set():
                return False
            self.state, self.reason, self._work = state, reason, None
            self.done.set()
            return True

    def again(self) -> None:
        """After a fork: reset to the state before its start."""
        self.deadline = self.deadline.renewed()
        self.state = "pending"

    def stats(self) -> JobStats:
        return JobStats(self.function, self.inputs, self.state, self.reason, self.seconds)


def _nothing() -> None:
    pass


class Worker:
    """A thread and its queue.

    The thread keeps its normal priority: with a low one, other processes could delay it while it holds the GIL, and
    with it all threads that wait for the GIL. Only its C compilers run at a low priority."""

    def __init__(self, urgent: bool = True) -> None:
        self._gives_way = not urgent
        self._jobs: deque[Job] = deque()
        # Wakes the thread. A call that submits a job may take only 40 us: this costs a tenth of a condition variable.
        self._rings: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._looks_out_until = 0.0
        self._current: Job | None = None
        self._changed = threading.Condition(_lock)
        self._held = False
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._is_there()

    def submit(self, job: Job) -> bool:
        """False if there is no thread, or it has ended with the process."""
        if not self._is_there():
            return False
        with _lock:
            if self._stopped:
                return False
            self._jobs.append(job)
        return self.ring()

    def ring(self, bring: Callable[[], None] = _nothing) -> bool:
        """Wake the thread and let it call `bring`, which submits jobs. Does not wait. False if there is no thread."""
        if self._thread is None and not self._is_there():
            return False
        self._rings.put(bring)
        return True

    def _is_there(self) -> bool:
        """Start the thread if needed; a system without free threads may have one later."""
        with _lock:
            if self._thread is None:
                thread = threading.Thread(target=self._loop, name="burnish-compile", daemon=True)
                self._thread = thread if has_started(thread) else None
            return self._thread is not None

    def expect(self) -> None:
        """A call of `ring` is expected soon. Waking a thread costs the caller 15 us, a third of a small model's call,
        so for a while the thread polls instead."""
        self._looks_out_until = time.monotonic() + LOOKOUT_SECONDS
        self.ring()

    def _loop(self) -> None:
        while (job := self._next()) is not None:
            try:
                job.run()
            except Cancelled:  # by a fork
                with _lock:
                    job.again()
                    self._jobs.appendleft(job)
            finally:
                with _lock:
                    self._current = None
                    self._changed.notify_all()

    def _next(self) -> Job | None:
        while True:
            with _lock:
                if self._stopped:
                    _manners.drop()
                    return None
                if self._jobs and not self._held:
                    self._current = self._jobs.popleft()
                    return self._current
            self._answer_one()

    def _answer_one(self) -> None:
        if self._gives_way:
            _manners.drop()
        bring = self._next_ring()
        if self._gives_way:
            _manners.assume()
            time.sleep(NAP_SECONDS)  # the call that rang has not returned yet
        with contextlib.suppress(Exception):  # an error of one object must not end the shared thread
            bring()

    def _next_ring(self) -> Callable[[], None]:
        bring = _nothing
        while bring is _nothing and time.monotonic() < self._looks_out_until:
            if self._stopped or (self._jobs and not self._held):
                return _nothing
            try:
                bring = self._rings.get_nowait()
            except Empty:
                time.sleep(LOOK_SECONDS)
        if bring is _nothing:
            return self._rings.get()
        self._looks_out_until = 0.0
        return bring

    def _answer_rings(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._rings.get_nowait()()

    def hold(self, seconds: float) -> None:
        """Interrupt the current job; wait until it has stopped, or until the timeout."""
        self._answer_rings()  # so that no request is lost in the child
        with _lock:
            self._held = True
            if self._current is not None:
                self._current.deadline.cancel(_FORK)
            self._changed.wait_for(lambda: self._current is None, timeout=seconds)

    def release(self) -> None:
        with _lock:
            self._held = False
        self.ring()

    def stop(self, seconds: float) -> None:
        with _lock:
            self._stopped = True
            if self._current is not None:
                self._current.deadline.cancel("cancelled because the process ends")
            for job in self._jobs:
                job.finish("cancelled", "the process ends")
            thread = self._thread
        if thread is not None:
            self.ring()
            thread.join(seconds)

    def abandon(self) -> None:
        """In a forked child, which lacks the thread: its jobs will be submitted again."""
        for job in [*self._jobs, *([self._current] if self._current else [])]:
            job.finish("cancelled", "left to the parent of a fork")


# Guards every queue and job state in this file. One lock, so that a fork can hold it; no callbacks run under it.
_lock = threading.RLock()
_workers: dict[bool, Worker] = {}
after_fork_in_child: list[Callable[[], None]] = []  # other repairs in the child


def submit(job: Job, urgent: bool) -> bool:
    """`urgent` jobs, for which a call waits, have their own thread. False if there is no thread."""
    with _lock:
        return worker_for(urgent).submit(job)


def worker_for(urgent: bool) -> Worker:
    """Also called by `burnish.compile`, because starting a thread takes longer than a small model's call."""
    if (worker := _workers.get(urgent)) is not None:
        return worker
    with _lock:
        return _workers.get(urgent) or _workers.setdefault(urgent, Worker(urgent))


def wait_for(jobs: Iterable[Job], timeout: float | None = None) -> bool:
    """Wait until all jobs are done, or for `timeout` seconds. Returns whether they are done."""
    end = None if timeout is None else time.monotonic() + timeout
    return all(job.done.wait(None if end is None else max(end - time.monotonic(), 0.0)) for job in jobs)


def _at_exit() -> None:
    for worker in list(_workers.values()):
        worker.stop(EXIT_SECONDS)


def _before_fork() -> None:
    for worker in list(_workers.values()):
        worker.hold(FORK_SECONDS)
    _lock.acquire()


def _after_fork_in_parent() -> None:
    _lock.release()
    for worker in list(_workers.values()):
        worker.release()


def _after_fork_in_child() -> None:
    _lock.release()
    _manners.drop()
    workers = list(_workers.values())
    _workers.clear()
    for worker in workers:
        worker.abandon()
    if workers:
        for repair in after_fork_in_child:
            repair()


at_exit(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
