"""The caller's stream and device, and threads that share one object."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import burnish
from tests.gpu.on_device import DEVICE, captured, compiled, graphed, randn

pytestmark = pytest.mark.gpu


def chain(x: torch.Tensor) -> torch.Tensor:
    """Long enough on the device that a wrong order is seen."""
    for _ in range(6):
        x = torch.tanh(x @ x.t()).softmax(-1) @ x
    return torch.sort(x, -1).values * 2


BOTH = pytest.mark.parametrize("make", [compiled, graphed], ids=["plain", "graphs"])


@BOTH
def test_work_goes_to_the_current_stream(make: Any) -> None:
    c = make(chain)
    with torch.no_grad():
        for _ in range(3):
            c(randn(256, 128))
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            x = randn(256, 128)
            torch.cuda._sleep(50_000_000)  # what is launched elsewhere would overtake this
            x.mul_(0.5)
            y = c(x)
        side.synchronize()
        torch.testing.assert_close(y, chain(x))


@BOTH
def test_calls_on_two_streams_do_not_meet(make: Any) -> None:
    c = make(chain)
    with torch.no_grad():
        for _ in range(3):
            c(randn(256, 128))
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(2)]
        found = []
        for n in range(10):
            with torch.cuda.stream(streams[n % 2]):
                x = randn(256, 128)
                found.append((x, c(x)))
        torch.cuda.synchronize()
        for x, y in found:
            torch.testing.assert_close(y, chain(x))


@BOTH
def test_threads_share_one_object(make: Any) -> None:
    c = make(chain)
    with torch.no_grad():
        for _ in range(3):
            c(randn(128, 64))
    wrong: list[Any] = []
    start = threading.Barrier(4)

    def work(own_stream: bool) -> None:
        try:
            start.wait()
            stream = torch.cuda.Stream() if own_stream else torch.cuda.default_stream()
            with torch.no_grad(), torch.cuda.stream(stream):
                for _ in range(10):
                    x = randn(128, 64)
                    torch.testing.assert_close(c(x), chain(x))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k % 2 == 0,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    assert burnish.stats(c).compiles == 1


def test_a_thread_that_never_touched_the_device() -> None:
    c = compiled(chain)
    x = randn(64, 32)
    with torch.no_grad():
        expected = c(x)
    found: list[torch.Tensor] = []

    def work() -> None:
        with torch.no_grad():
            found.append(c(x))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@BOTH
def test_arguments_on_a_device_that_is_not_current(make: Any) -> None:
    c = make(chain)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(64, 32, device="cuda:1")
            torch.testing.assert_close(c(x), chain(x))
    assert torch.cuda.current_device() == 0


def test_sealed_calls_replay() -> None:
    c = graphed(chain)
    with torch.no_grad():
        for _ in range(3):
            c(randn(64, 32))
        burnish.seal(c)
        for _ in range(4):
            x = randn(64, 32)
            torch.testing.assert_close(c(x), chain(x))
        odd = randn(65, 32)
        torch.testing.assert_close(c(odd), chain(odd))
    assert 1 <= captured(c) <= 2 and burnish.stats(c).compiles == 1
    assert burnish.stats(c).notices["sealed call in eager: not compiled for its inputs"] == 1


def test_the_native_launcher_is_in_use_and_tritons_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.errors import CompileError
    from burnish.runtime.cuda import launch as cuda_launch

    x = randn(64, 32)
    with torch.no_grad():
        c = compiled(chain)
        torch.testing.assert_close(c(x), chain(x))
        assert isinstance(cuda_launch._launchers[torch.device(DEVICE).index or 0], cuda_launch.NativeLauncher)

        def no_compiler(*args: Any) -> Any:
            raise CompileError("build", "no C compiler here")

        monkeypatch.setattr(cuda_launch, "_launchers", {})
        monkeypatch.setattr(cuda_launch, "launch_library", no_compiler)
        slower = compiled(chain)
        torch.testing.assert_close(slower(x), chain(x))
        assert isinstance(cuda_launch._launchers[0], cuda_launch.TritonLauncher)
