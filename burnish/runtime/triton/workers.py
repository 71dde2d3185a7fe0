"""Processes that build Triton kernels: started once, while the front end still traces, and used by every compile.

They neither use the device nor import torch. They always end with this process: see worker.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial

from burnish.errors import CompileError
from burnish.processor import usable_cores
from burnish.runtime.process import at_exit, has_started
from burnish.runtime.triton.compile import BuiltKernel, KernelSource
from burnish.runtime.triton.messages import receive, send
from burnish.version import PACKAGE

MOST_WORKERS = 16
_KERNEL_SECONDS = 90.0  # after which a worker is given up; the slowest kernels take a few
_START_SECONDS = 60.0
_END_SECONDS = 0.5  # that this process waits for them when it ends
_TRIES = 2  # workers that one kernel may cost

# The package's own __init__ would import torch: a bare package in its place lets modules below it be imported.
_BOOT = """import json, sys, types
sys.path[:] = json.loads(sys.argv.pop(1))
burnish = sys.modules["burnish"] = types.ModuleType("burnish")
burnish.__path__ = [sys.argv.pop(1)]
from burnish.runtime.triton.worker import main
main()
"""


class NoWorkers(Exception):
    """There is no worker for a kernel; the message has the reason."""


class WorkerLost(Exception):
    """A worker ended, or did not answer, while it built a kernel."""


class Worker:
    """One process, on the other end of a socket. Used by one thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._pid: int | None = None  # known when it has said that it is there

    def build(self, source: KernelSource, seconds: float) -> BuiltKernel:
        try:
            if self._pid is None:
                self._end.settimeout(_START_SECONDS)
                self._pid = int(receive(self._end)[0]["worker"])
            self._end.settimeout(seconds)
            send(self._end, source.to_dict())
            answer, body = receive(self._end)
        except TimeoutError:
            raise WorkerLost(f"a process that builds kernels did not answer for {seconds:g} s") from None
        except (OSError, EOFError):
            raise WorkerLost("a process that builds kernels has ended") from None
        if "built" in answer:
            return BuiltKernel.from_bytes(body)
        raise CompileError("build", f"{source.function}: {answer['failed']}: {answer['reason']}")

    def is_there(self) -> bool:
        """Whether it is idle or still starting: one that has ended, as they do when long idle, reads as closed."""
        try:
            if self._pid is None and self._has_said() is not None:
                self._end.setblocking(True)
                self._pid = int(receive(self._end)[0]["worker"])
            return self._has_said() is None
        except (OSError, EOFError):
            return False

    def _has_said(self) -> bytes | None:
        """A message if one is available now, or None. Raises EOFError if the other end is closed."""
        self._end.setblocking(False)
        try:
            said = self._end.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return None
        if not said:
            raise EOFError
        return said

    @property
    def pid(self) -> int | None:
        return self._pid

    def close(self) -> None:
        self._end.close()


class WorkerPool:
    """Started with `start`; any number of threads may `build`."""

    def __init__(self, count: int, command: Sequence[str] | None = None, seconds: float = _KERNEL_SECONDS) -> None:
        self.count = count
        self.why = ""  # there are no workers
        self._command = command or (sys.executable, "-I", "-S", "-c", _BOOT)
        self._seconds = seconds
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._alive = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control = -1
        self._lock = threading.Lock()

    def start(self) -> None:
        """Returns at once. Errors are reported by `build`."""
        with self._lock:
            self._drop_ended()
            if self._alive or self.why:
                return
            self._stop()
            try:
                self._start()
            except OSError as error:
                self.why = f"processes that build kernels cannot be started: {error}"

    def _drop_ended(self) -> None:
        kept = []
        with contextlib.suppress(queue.Empty):
            while True:
                worker = self._free.get_nowait()
                if worker.is_there():
                    kept.append(worker)
                else:
                    worker.close()
                    self._alive -= 1
        for worker in kept:
            self._free.put(worker)

    def _start(self) -> None:
        pairs = [socket.socketpair() for _ in range(self.count)]
        theirs = [their.fileno() for _, their in pairs]
        control, self._control = os.pipe()
        words = (json.dumps(sys.path), str(PACKAGE), control, os.getpid(), *theirs)
        try:
            self._process = subprocess.Popen(
                [*self._command, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(control, *theirs),
                start_new_session=True,  # a group of their own: they end together
            )
        finally:
            os.close(control)
            for _, their in pairs:
                their.close()
        for ours, _ in pairs:
            self._free.put(Worker(ours))
        self._alive = self.count

    def build(self, source: KernelSource) -> BuiltKernel:
        """Waits for a free worker and for its work. Raises NoWorkers; CompileError when the kernel is at fault."""
        for _ in range(_TRIES):
            worker = self._take()
            try:
                built = worker.build(source, self._seconds)
            except WorkerLost as loss:
                lost = loss
                self._give_up(worker, str(loss))
                continue
            except BaseException:
                self._free.put(worker)
                raise
            self._free.put(worker)
            return built
        raise CompileError("build", f"{source.function}: {lost}, twice: this kernel seems to be the cause")

    def _take(self) -> Worker:
        while True:
            with self._lock:
                if not self._alive:
                    raise NoWorkers(self.why or "no process that builds kernels is there")
            try:
                worker = self._free.get(timeout=1.0)  # then look again: the last one may have ended meanwhile
            except queue.Empty:
                continue
            return worker

    def _give_up(self, worker: Worker, why: str) -> None:
        with self._lock:
            self._alive = max(self._alive - 1, 0)
            if worker.pid is None:  # then none of them will
                self._alive = 0
                self.why = f"processes that build kernels cannot be started: {self._exit_words() or why}"
            elif self._control >= 0:
                with contextlib.suppress(OSError):  # it hangs, perhaps: who started it ends it
                    os.write(self._control, f"{worker.pid} ".encode())
        worker.close()

    def _exit_words(self) -> str:
        code = self._process.poll() if self._process else None
        return f"exit status {code}" if code else ""

    def alive(self) -> int:
        return self._alive

    def close(self, seconds: float = _START_SECONDS) -> None:
        with self._lock:
            self._stop(seconds)
            self._alive = 0

    def _stop(self, seconds: float = _START_SECONDS) -> None:
        """Closing the control pipe ends them; wait so long for it."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._free.get_nowait().close()
        if self._control >= 0:
            os.close(self._control)
            self._control = -1
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            self._process = None

    def leave(self) -> None:
        """In a forked child: these are its parent's workers, and must not wait for the child to end."""
        self._process = None
        self.close()


# -- this process's -----------------------------------------------------------------------------------------------

_pool: WorkerPool | None = None
_guard = threading.Lock()


def worker_count() -> int:
    return min(math.ceil(usable_cores()), MOST_WORKERS)


def workers() -> WorkerPool:
    """Started, or starting."""
    global _pool
    with _guard:
        if _pool is None:
            _pool = WorkerPool(worker_count())
            at_exit(partial(_pool.close, _END_SECONDS))
        pool = _pool
    pool.start()
    return pool


def prepare_workers() -> None:
    """Start them, so that they import Triton in parallel with other work."""
    has_started(threading.Thread(target=workers, name="burnish-workers", daemon=True))


def _after_fork() -> None:
    global _pool, _guard
    _guard = threading.Lock()
    if _pool is not None:
        _pool._lock = threading.Lock()
        _pool.leave()
        _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
