"""Programs of a few kernels launched without a graph: addresses, streams, fresh results. The driver is a fake, whose
kernels are the reference's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.pipeline import Kind, Setting, _load_for_cuda
from burnish.runtime.cache.stored_program import packed, unpacked
from burnish.runtime.cuda import direct_launch as direct_runs
from burnish.runtime.cuda import program as cuda_programs
from burnish.runtime.cuda.direct_launch import DirectRun, direct_plan
from burnish.runtime.cuda.graphs import GraphedProgram
from burnish.runtime.cuda.launch import Kernel, NativeLauncher, launch_library
from burnish.runtime.cuda.program import LoadedUnit, assemble
from burnish.runtime.host.extension import host_library
from tests.capture.entry.test_threads import together
from tests.runtime.cuda.on_cpu import OnCpu, cuda_program, unaligned
from tests.runtime.cuda.test_launcher import Driver, driver

__all__ = ["driver"]
Kernels = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)))


def policy(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.tanh(F.linear(torch.tanh(F.linear(x, a, b)), c))


def inputs() -> list[torch.Tensor]:
    return [torch.randn(1, 16), torch.randn(32, 16), torch.randn(32), torch.randn(8, 32)]


@dataclass
class Native:
    """A program whose launches go through C to a driver that computes."""

    driver: Driver
    on: OnCpu
    log: CompileLog = field(default_factory=CompileLog)

    def __post_init__(self) -> None:
        launcher = NativeLauncher(launch_library(Options(), CompileLog()), 0, self.driver.path)
        self.driver.number("kernels_run").value = 1
        self.driver.number("param_count").value = 0
        calls = self.on.program.unit.triton.calls  # type: ignore[attr-defined]
        self.callbacks = {n: Kernels(self._kernel(n)) for n in calls}
        kernels = {n: Kernel(f"k{n}", ctypes.cast(c, ctypes.c_void_p).value, 4, 0) for n, c in self.callbacks.items()}
        flag = torch.zeros(1, dtype=torch.int64) if self.on.program.unit.checks else None
        loaded = LoadedUnit(self.on.program, launcher, lambda: kernels, flag, lambda n: kernels[n])
        self.run = assemble(loaded, lambda device: self.on.stream[0], self.log)
        self.run.host = lambda: host_library(Options(), CompileLog())

    def _kernel(self, n: int) -> Callable[[Any], None]:
        unit: Any = self.on.program.unit
        call = unit.triton.calls[n]
        names = (*call.buffers, *(("error",) if call.checks else ()))

        def kernel(params: Any) -> None:
            table = {unit.slots[name]: params[k][0] for k, name in enumerate(names)}
            self.on.launcher._run(SimpleNamespace(kernel=SimpleNamespace(handle=n)), table)  # type: ignore[arg-type]

        return kernel

    def direct(self) -> DirectRun:
        plan = direct_plan(self.on.program)
        assert plan is not None
        return DirectRun(self.run, plan, torch.device("cpu"))


@pytest.fixture
def make(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Native]:
    def native(fn: Callable[..., Any], *args: torch.Tensor, **settings: Any) -> Native:
        found = Native(driver, cuda_program(fn, *args, **settings))
        monkeypatch.setattr(direct_runs, "current_raw_stream", lambda device: found.on.stream[0])
        return found

    return native


@pytest.fixture
def native(make: Callable[..., Native]) -> Native:
    return make(policy, *inputs())


def test_results_are_eagers_and_their_own(native: Native) -> None:
    run = native.direct()
    native.run.run = None  # type: ignore[assignment]  # the plain program is not asked
    kept = []
    for _ in range(3):
        args = inputs()  # parameters elsewhere, too: nothing is compared, all addresses are the call's
        kept.append((run(list(args))[0], policy(*args)))
    for found, expected in kept:
        torch.testing.assert_close(found, expected)
    assert len({found.data_ptr() for found, _ in kept}) == 3
    assert len(native.driver.launches()) == 3 * run.plan.launches


def test_a_stream_has_its_own_memory_and_its_launches(native: Native) -> None:
    run, args = native.direct(), inputs()
    for stream in (5, 6, 5):
        native.on.stream[0] = stream
        torch.testing.assert_close(run(list(args))[0], policy(*args))
        assert native.driver.launches()[-1][1] == stream
    assert {key[0] for key in run.run.__globals__["pool"].free} == {5, 6}
    run.release()
    assert not run.run.__globals__["pool"].free


def test_what_is_not_aligned_is_the_plain_programs(native: Native) -> None:
    run, args = native.direct(), inputs()
    args[0] = unaligned(args[0])
    given = list(args)
    torch.testing.assert_close(run(given)[0], policy(*args))
    assert not given and [n for n in native.log.snapshot().notices if "multiple of 16" in n]


def test_a_callers_capture_gets_memory_of_its_own(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    run, args = native.direct(), inputs()
    for module in (direct_runs, cuda_programs):
        monkeypatch.setattr(module, "is_capturing", lambda: True)
    torch.testing.assert_close(run(list(args))[0], policy(*args))
    assert not run.run.__globals__["pool"].free  # the kept workspaces were not used


def test_an_index_out_of_range_is_raised_by_the_next_call(make: Callable[..., Native]) -> None:
    table, at = torch.randn(10, 8), torch.tensor([3, 9])
    run = make(lambda table, at: table[at] * 2, table, at).direct()
    run([table, torch.tensor([3, 10])])
    with pytest.raises(IndexError):
        run([table, at])
    torch.testing.assert_close(run([table, at])[0], table[at] * 2)


def test_threads_share_one_object(native: Native) -> None:
    """Launching lets other threads go on: each call has a workspace of its own meanwhile."""
    run, wrong = native.direct(), []

    def work(number: int) -> None:
        for _ in range(8):
            args = inputs()
            if not torch.allclose(run(list(args))[0], policy(*args), atol=1e-5):
                wrong.append(args)

    together(3, work)
    assert not wrong and len(native.driver.launches()) == 3 * 8 * run.plan.launches


def test_without_the_extension_python_does_it(native: Native) -> None:
    native.run.host = lambda: None
    run, args = native.direct(), inputs()
    for _ in range(2):
        torch.testing.assert_close(run(list(args))[0], policy(*args))


def test_a_failing_launch_is_raised(native: Native) -> None:
    native.driver.number("fail_at").value = 1
    with pytest.raises(Exception, match="too many resources"):
        native.direct()(inputs())


def test_results_of_inference_mode(native: Native) -> None:
    run, args = native.direct(), inputs()
    with torch.inference_mode():
        assert all(run(list(args))[0].is_inference() for _ in range(2))
    assert not run(list(args))[0].is_inference()  # the one made ready is


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(5):
        x = torch.tanh(x @ w)
    return x


def test_a_program_from_the_cache_is_launched_alike(native: Native) -> None:
    program = replace(native.on.program, device=torch.device("cuda"))
    assert direct_plan(unpacked(packed(program, ""), "cuda").program) == direct_plan(program) is not None


def test_results_that_are_one_tensor_and_others_over_its_memory(make: Callable[..., Native]) -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.tanh(x @ w)
        part = y.detach()
        return y, x + 1, y.float(), part, part.contiguous(), y[:]

    run = make(twice, SQUARE.clone(), SQUARE.clone()).direct()
    assert len(run.plan.results) == 2
    for _ in range(3):
        args = [torch.randn(16, 16), torch.randn(16, 16)]
        found, expected = run(list(args)), twice(*args)
        torch.testing.assert_close(found, expected)
        assert [[a is b for b in found] for a in found] == [[a is b for b in expected] for a in expected]
        assert len({x.data_ptr() for x in found}) == 2
        found[-1].zero_()
        assert not found[0].any() and found[1].any()


SQUARE = torch.randn(16, 16)
NOT_DIRECT: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "more than a few launches": (chain, {}),
    "an argument is written": (lambda x, w: x.add_(w), {}),
    "a result is a part of another": (lambda x, w: (lambda y: (y, y[2:]))(torch.exp(x) + w), {}),
    "a result is part of an argument": (lambda x, w: (x[2:], x + w), {}),
    "an ATen call": (lambda x, w: torch.sort(x + w).values + 1, {}),
    "sizes differ from call to call": (lambda x, w: torch.exp(x) + 1, {"dynamic": True}),
}


@pytest.mark.parametrize("name", NOT_DIRECT)
def test_what_is_not_launched_so(name: str) -> None:
    fn, settings = NOT_DIRECT[name]
    assert direct_plan(cuda_program(fn, SQUARE.clone(), SQUARE.clone(), **settings).program) is None


def test_a_size_that_kernels_compute_with_is_not_launched_so() -> None:
    one = torch.randn(1, 1)
    on = cuda_program(lambda x, w: torch.exp(w) + x.shape[0], SQUARE.clone(), one, dynamic=True)
    assert direct_plan(on.program) is None


def test_an_argument_that_no_kernel_reads_may_be_of_any_size(make: Callable[..., Native]) -> None:
    """Its strides were asked for, and a workspace for them: the launch knew of none."""
    native = make(lambda x, w: torch.exp(w) + 1, SQUARE.clone(), torch.randn(1, 1), dynamic=True)
    run = native.direct()
    for size in (16, 24):
        w = torch.randn(1, 1)
        torch.testing.assert_close(run([torch.randn(size, size), w])[0], w.exp() + 1)


@pytest.mark.parametrize(
    ("options", "graph", "kind", "said"),
    [
        (Options(), "inference", DirectRun, False),
        (Options(), "forward", DirectRun, False),
        (Options(mode="reduce-overhead"), "inference", DirectRun, True),
        (Options(mode="reduce-overhead"), "forward", GraphedProgram, False),
        (Options(mode="reduce-overhead", cuda_graphs=True), "inference", GraphedProgram, False),
    ],
)
def test_the_rule(
    native: Native, options: Options, graph: Kind, kind: type, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every mode, unless graphs are asked for by name or lend saved tensors."""
    monkeypatch.setattr(cuda_programs, "load_cuda_program", lambda *args: native.run)
    log = CompileLog()
    assert isinstance(_load_for_cuda(Setting(graph, options, log, returned=1), native.on.program), kind)
    assert any("launches are quicker without one" in n for n in log.snapshot().notices) == said
