"""The main loop of a worker process that builds Triton kernels. `workers.py` starts it.

The first process imports Triton once, then forks the workers, each with a socket of its own to the parent. It then
monitors the parent: when the parent ends in any way, its end of the control pipe closes, and the whole process group is
ended, the assembler's processes included. Idle workers end by themselves after a while.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from burnish.runtime.triton.compile import BuiltKernel, KernelSource, compile_kernel
from burnish.runtime.triton.messages import receive, send

_LOOK_SECONDS = 1.0  # how often to look whether the parent is still the parent: a forked child may hold its pipe open
IDLE_SECONDS = 120.0


def serve(control: int, sockets: Sequence[int], parent: int) -> None:
    """Never returns in a worker; in the first process, when all is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's user pressed it: the parent decides
    folder = Path(tempfile.mkdtemp(prefix="burnish-triton-"))
    tempfile.tempdir = str(folder)  # the assembler's input and output, too, go when this process does
    _prepare(folder)
    gc.freeze()
    workers = {_fork(k, sockets, control, folder) for k in range(len(sockets))}
    for each in sockets:
        os.close(each)
    try:
        _watch(control, workers, parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)


def _prepare(folder: Path) -> None:
    """Import what every compile needs, and leave out what none here does."""
    import triton.compiler.code_generator
    import triton.language.extra.cuda  # noqa: F401
    from triton import knobs
    from triton.runtime import cache

    import burnish.runtime.triton.device_functions  # noqa: F401

    # Triton's own cache is not used. So its key need not identify Triton's version, for which Triton would read its
    # whole library, 400 MB.
    knobs.cache.dir = str(folder / "cache")
    cache.triton_key = lambda: "one process, one Triton"
    knobs.compilation.store_binary_only = True
    knobs.compilation.disable_line_info = True  # of files that nobody else ever sees


def _fork(number: int, sockets: Sequence[int], control: int, folder: Path) -> int:
    if pid := os.fork():
        return pid
    try:
        os.close(control)
        for k, each in enumerate(sockets):
            if k != number:
                os.close(each)
        with socket.socket(fileno=sockets[number]) as parent:
            _work(parent, folder)
    finally:
        os._exit(0)


def _work(parent: socket.socket, folder: Path) -> None:
    send(parent, {"worker": os.getpid()})
    parent.settimeout(IDLE_SECONDS)
    with contextlib.suppress(OSError, EOFError):  # nothing to do for long, or nobody to do it for
        while True:
            request, _ = receive(parent)
            send(parent, *_answer(request, folder))


def _answer(request: dict[str, Any], folder: Path) -> tuple[dict[str, Any], bytes]:
    try:
        built: BuiltKernel = compile_kernel(KernelSource.from_dict(request), folder)
        return {"built": True}, built.to_bytes()
    except Exception as error:
        return {"failed": type(error).__name__, "reason": str(error)}, b""


def _watch(control: int, workers: set[int], parent: int) -> None:
    """Until the parent is gone or no worker is left; on the way, end the workers that the parent has given up."""
    while workers and os.getppid() == parent:
        for pid in list(workers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                workers.discard(pid)
        if not select.select([control], [], [], _LOOK_SECONDS)[0]:
            continue
        if not (words := os.read(control, 4096)):
            return
        for pid in map(int, words.split()):
            if pid in workers:  # not waited for yet, so nobody else has its number
                os.kill(pid, signal.SIGKILL)


def main() -> NoReturn:
    control, parent, *sockets = map(int, sys.argv[1:])
    serve(control, sockets, parent)
    sys.exit(0)
