"""What only a later process profits from is done after the call, before the process ends, and by nobody else."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from burnish.runtime.cache.deferred_writes import Later

LONG = 60.0


def test_a_thread_does_it_in_order_and_whatever_fails_the_rest_follows() -> None:
    later, done, over = Later(quiet_seconds=0.0), list[int](), threading.Event()
    later.do(lambda: done.append(1))
    later.do(lambda: 1 // 0)
    later.do(lambda: (done.append(2), over.set())[0])
    assert over.wait(LONG)
    assert done == [1, 2]


def test_who_asks_for_the_end_has_it_done_or_waits_for_whom_does_it() -> None:
    later, done = Later(quiet_seconds=LONG), list[int]()
    later.do(lambda: done.append(1))
    later.finish()
    assert done == [1]

    begun, go = threading.Event(), threading.Event()
    later.do(lambda: (begun.set(), go.wait(LONG), done.append(2))[2])
    other = threading.Thread(target=later.finish)
    other.start()
    assert begun.wait(LONG)
    later.finish(seconds=0.0)  # which gives up
    assert done == [1]
    go.set()
    later.finish()
    assert done == [1, 2]
    other.join(LONG)


def test_a_forked_child_leaves_it_to_its_parent() -> None:
    later, done = Later(quiet_seconds=LONG), list[int]()
    later.do(lambda: done.append(1))
    later.forget()
    later.finish()
    assert not done


@pytest.mark.parametrize("killed", [False, True])
def test_it_is_done_when_a_process_ends_and_not_when_it_is_killed(tmp_path: Path, killed: bool) -> None:
    text = f"""
import os
from pathlib import Path
from burnish.runtime.cache.deferred_writes import later
later.do(lambda: Path({str(tmp_path / "done")!r}).write_text("done"))
if {killed}:
    os.kill(os.getpid(), 9)
"""
    ended = subprocess.run([sys.executable, "-c", text], timeout=LONG, check=False)
    assert (ended.returncode == 0) != killed
    assert (tmp_path / "done").exists() != killed
