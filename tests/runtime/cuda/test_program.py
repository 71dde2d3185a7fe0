"""What a CUDA program does on the host: tables, workspaces, addresses, alignment, flags. Kernels run in torch."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F

from burnish.errors import CompileError
from burnish.observe.log import CompileLog
from burnish.options import Options
from burnish.runtime.cuda.graphs import GraphPool
from burnish.runtime.cuda.piecewise import PiecewiseProgram
from burnish.runtime.host import addresses
from burnish.runtime.host.extension import host_library
from tests.runtime.cuda.on_cpu import cuda_program, partitions_on_cpu, unaligned


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],), w, b))


def test_results_are_eagers_and_launches_go_to_the_current_stream() -> None:
    x, w, b = torch.randn(6, 40), torch.randn(40), torch.randn(40)
    on = cuda_program(norm, x, w, b)
    for stream in (1, 2, 1):
        on.stream[0] = stream
        torch.testing.assert_close(on.run([x, w, b])[0], norm(x, w, b))
        assert on.launcher.streams[-1] == stream
    assert {key[0] for key in on.run.run.__globals__["pool"].free} == {1, 2}  # a stream's memory is its own


def test_sizes_of_the_call_make_the_grid() -> None:
    f = lambda x: torch.exp(x) + 1  # noqa: E731
    on = cuda_program(f, torch.randn(300, 256), dynamic=True)
    for rows in (300, 1200, 300):
        x = torch.randn(rows, 256)
        torch.testing.assert_close(on.run([rows, x] if len(on.inputs) == 2 else [x])[0], f(x))
    grids = [grid for _, grid in on.launcher.launched]
    assert grids[0] == grids[2] != grids[1]


def test_indices_have_64_bits_only_where_a_call_needs_them() -> None:
    f = lambda x: torch.exp(x) + 1  # noqa: E731
    on = cuda_program(f, torch.randn(300, 64), dynamic=True)
    for rows in (300, 40):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(on.run([rows, x] if len(on.inputs) == 2 else [x])[0], f(x))
    assert set(on.launcher.names) == {"k0"}
    for size, used in ((1 << 12, "k0"), (1 << 31, "wide0")):
        launches = on.loaded.launches(dict.fromkeys(on.program.sources, size))[0]
        assert [launch.kernel.name for launch in launches] == [used]


def test_an_unaligned_argument_is_copied_and_counted() -> None:
    x, w, b = torch.randn(6, 40), torch.randn(40), torch.randn(40)
    on = cuda_program(norm, x, w, b)
    torch.testing.assert_close(on.run([unaligned(x), w, b])[0], norm(x, w, b))
    assert [n for n in on.log.snapshot().notices if "multiple of 16" in n]


def test_an_unaligned_argument_that_is_written_gets_its_value_back() -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache * 2

    cache, x = torch.randn(9, 5), torch.randn(9, 5)
    on = cuda_program(step, cache.clone(), x)
    theirs, ours = cache.clone(), unaligned(cache)
    expected = step(theirs, x)
    torch.testing.assert_close(on.run([ours, x])[0], expected)
    torch.testing.assert_close(ours, theirs)


def many(*xs: torch.Tensor) -> torch.Tensor:
    total = xs[0] * 2
    for x in xs[1:]:
        total = torch.tanh(total + x)
    return total


@pytest.mark.parametrize("by", ["C", "torch"])
def test_parameters_are_asked_for_their_addresses_only_when_one_moved(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    host = host_library(Options(), CompileLog()) if by == "C" else None
    monkeypatch.setattr(addresses, "host_if_built", lambda: host)
    xs = [torch.randn(32) for _ in range(8)]
    on = cuda_program(many, *xs, static=frozenset(range(1, 8)))
    names, taken = on.run.run.__globals__, []
    take = names["take_addresses"]
    names["take_addresses"] = lambda *args: (taken.append(1), take(*args))
    for _ in range(3):
        torch.testing.assert_close(on.run(list(xs))[0], many(*xs))
    assert len(taken) == 1
    xs[3].copy_(torch.randn(32))  # in place: the same memory, another value
    torch.testing.assert_close(on.run(list(xs))[0], many(*xs))
    assert len(taken) == 1
    xs[5] = torch.randn(32)  # replaced
    torch.testing.assert_close(on.run(list(xs))[0], many(*xs))
    assert len(taken) == 2
    xs[2] = unaligned(xs[2])
    for _ in range(2):
        torch.testing.assert_close(on.run(list(xs))[0], many(*xs))
        xs[2].mul_(0.5)


def test_an_index_out_of_range_is_raised_by_the_next_call() -> None:
    def pick(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return table[at] * 2

    table = torch.randn(10, 4)
    on = cuda_program(pick, table, torch.tensor([1, 2]))
    on.run([table, torch.tensor([1, 99])])
    with pytest.raises(IndexError, match="earlier call"):
        on.run([table, torch.tensor([1, 2])])
    torch.testing.assert_close(on.run([table, torch.tensor([3, -1])])[0], table[[3, -1]] * 2)


def test_a_refused_kernel_runs_in_torch() -> None:
    x, w, b = torch.randn(6, 40), torch.randn(40), torch.randn(40)
    on = cuda_program(norm, x, w, b, refuse=True)
    torch.testing.assert_close(on.run([x, w, b])[0], norm(x, w, b))
    assert not on.launcher.launched
    assert on.log.snapshot().notices["kernel run in torch: told to"] >= 1


def test_memory_kept_between_calls_is_given_back() -> None:
    f = lambda x: torch.softmax(x, 0) @ torch.softmax(x.T, 0)  # noqa: E731
    x = torch.randn(64, 64)
    on = cuda_program(f, x)
    on.run([x])
    pool = on.run.run.__globals__["pool"]
    assert pool.held_bytes() > 0
    on.run.release()
    assert pool.held_bytes() == 0
    torch.testing.assert_close(on.run([x])[0], f(x))


def test_arguments_go_as_soon_as_they_have_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each before the first ATen call, the parameter never; and until then, a call can be done over."""
    monkeypatch.setattr("burnish.runtime.cuda.program._WORTH_FREEING", 0)

    def f(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sort(torch.sort(a * w).values * b).values + w

    on = cuda_program(f, *(torch.randn(4, 8) for _ in range(3)), static=frozenset({2}))
    assert on.run.consumes
    args = [torch.randn(4, 8) for _ in range(3)]
    expected, alive, watched = f(*args), [], [weakref.ref(x) for x in args]
    launch = on.loaded.launcher.launch

    def counting(segment: object) -> int:
        alive.append((sum(r() is not None for r in watched), len(args)))
        return launch(segment)

    parameter = args[2]
    on.run.run.__globals__["launch"] = counting
    torch.testing.assert_close(on.run(args)[0], expected)
    assert alive == [(3, 3), (2, 0), (1, 0)] and watched[2]() is parameter


def test_few_bytes_are_held_to_the_end() -> None:
    f = lambda x: torch.sort(x * 2).values + 1  # noqa: E731
    assert not cuda_program(f, torch.randn(4, 8)).run.consumes


def test_a_program_in_partitions() -> None:
    """Each partition is a program; what one leaves for another goes through its results and arguments."""

    def f(cache: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache.add_(x)
        y = torch.sort(cache * 2).values
        return torch.softmax(y, -1) + x, torch.sort(y * x).values.sum(-1)

    cache, x = torch.randn(6, 8), torch.randn(6, 8)
    parts = partitions_on_cpu(f, cache, x)
    assert len(parts) == 5  # two sorts, and what is around them
    program = PiecewiseProgram(parts, GraphPool(torch.device("cpu"), 4))
    for _ in range(3):
        ours, theirs, x = cache.clone(), cache.clone(), torch.randn(6, 8)
        torch.testing.assert_close(program([ours, x]), f(theirs, x))
        torch.testing.assert_close(ours, theirs)


def test_results_over_one_memory_leave_partitions_so() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, order = torch.tanh(x), torch.sort(x * 2).values
        part = y.detach()
        z = order + y
        return y, y.float(), part, part.contiguous(), y[2:], z, z.detach()

    parts = partitions_on_cpu(f, torch.randn(6, 8))
    assert len(parts) == 3
    program = PiecewiseProgram(parts, GraphPool(torch.device("cpu"), 4))
    for _ in range(3):
        x = torch.randn(6, 8)
        found, expected = program([x]), f(x)
        assert [[a is b for b in found] for a in found] == [[a is b for b in expected] for a in expected]
        for results in (found, expected):
            results[3].add_(1), results[5].add_(2)
        torch.testing.assert_close(found, expected)


def test_no_partition_runs_before_the_kernels_of_all_are_there() -> None:
    def f(cache: torch.Tensor) -> torch.Tensor:
        cache.add_(1)
        return torch.sort(cache).values * 2

    def not_there() -> None:
        raise CompileError("build", "on purpose")

    cache = torch.zeros(4, 8)
    parts = partitions_on_cpu(f, cache.clone())
    parts[-1].ready = not_there
    program = PiecewiseProgram(parts, GraphPool(torch.device("cpu"), 4))
    with pytest.raises(CompileError, match="on purpose"):
        program([cache])
    assert torch.equal(cache, torch.zeros(4, 8))
    parts[-1].ready = lambda: None
    assert torch.equal(program([cache])[0], torch.full((4, 8), 2.0))
