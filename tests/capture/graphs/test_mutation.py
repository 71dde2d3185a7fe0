"""What a call changes: arguments and buffers hold what eager leaves in them, and caches are written where they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import burnish
from tests.against_eager import check, served_by_us, whole_copies


def _rename(x: torch.Tensor) -> torch.Tensor:
    x.t_()
    return x * 2


IN_PLACE: dict[str, Callable[[torch.Tensor], object]] = {
    "add": lambda x: x.add_(1),
    "chain": lambda x: x.mul_(2).exp_().clamp_(max=3),
    "copy": lambda x: x.copy_(torch.arange(6.0).expand(4, 6)),
    "fill": lambda x: x.fill_(2),
    "slice": lambda x: x[1:3].mul_(3),
    "strided slice": lambda x: x[:, ::2].sub_(1),
    "select": lambda x: x[2].zero_(),
    "transpose": lambda x: x.t()[0].add_(1),
    "shifted self": lambda x: x[1:].copy_(x[:-1].clone()),
    "index_copy": lambda x: x.index_copy_(0, torch.tensor([2, 0]), torch.ones(2, 6)),
    "index_add": lambda x: x.index_add_(0, torch.tensor([1, 1]), torch.ones(2, 6)),
    "index_put": lambda x: x.index_put_((torch.tensor([0, 3]),), torch.ones(6), accumulate=True),
    "setitem": lambda x: x.__setitem__((slice(1, 3), 4), 7.0),
    "masked_fill": lambda x: x.masked_fill_(x > 0, -1),
    "scatter": lambda x: x.scatter_(1, torch.tensor([[0, 5], [1, 1]]), 9.0),
    "softmax": lambda x: x.copy_(x.softmax(-1)),
    "row sums": lambda x: x.sub_(x.sum(-1, keepdim=True)),
    "column means": lambda x: x.sub_(x.mean(0)),
    "sort": lambda x: x.copy_(x.sort().values),
    "swap rows": lambda x: x.copy_(x.flip(0)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_argument_changed(name):
    change = IN_PLACE[name]

    def fn(x):
        before = x.sum()
        change(x)
        return before, x * 2

    check(fn, torch.randn(4, 6))


@pytest.mark.parametrize("name", ["add", "slice", "index_copy", "column means", "swap rows"])
@pytest.mark.parametrize("layout", ["transposed", "strided", "offset"])
def test_a_non_contiguous_argument_changed(name, layout):
    base = torch.randn(10, 12)
    x = {"transposed": base[:6, :4].t(), "strided": base[::2, ::2][:4], "offset": base[3:7, 2:8]}[layout]

    def fn(x):
        IN_PLACE[name](x)

    check(fn, x)


def test_an_argument_whose_elements_share_memory():
    """Eager adds to what two elements share twice. In which order things happen is its own: it is left to it."""

    def fn(x):
        x[1:].add_(1)
        return x * 2

    outcomes = []
    for run in (fn, burnish.compile(fn, gate=False, verify="off")):
        memory = torch.zeros(5)
        outcomes.append((run(memory.as_strided((2, 2, 2), (2, 1, 1))), memory))
    torch.testing.assert_close(outcomes[1], outcomes[0])


def test_metadata_changed():
    check(_rename, torch.randn(4, 6))


def test_arguments_exchanged():
    def fn(a, b):
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)

    check(fn, torch.randn(3, 4), torch.randn(3, 4))


def test_each_argument_from_the_others_old_value():
    def fn(a, b, c):
        total = a + b + c
        a.copy_(b * 2)
        b.copy_(c + a)
        c.copy_(total)
        return a + b

    check(fn, *(torch.randn(5) for _ in range(3)))


def test_an_argument_that_takes_another_ones_value():
    def fn(a, b):
        a.copy_(b)
        return a.sum()

    check(fn, torch.randn(3, 4), torch.randn(3, 4))


@pytest.mark.parametrize("name", ["add", "index_copy", "slice", "swap rows", "copy"])
def test_the_old_value_of_an_argument_as_result(name):
    def fn(x):
        old = x.clone()
        IN_PLACE[name](x)
        return old, old.t().contiguous()

    check(fn, torch.randn(4, 6))


def test_the_old_value_of_a_cache_in_another_argument():
    def fn(backup, cache, x):
        backup.copy_(cache)
        cache.index_copy_(0, torch.tensor([1]), x)

    check(fn, torch.zeros(3, 4), torch.randn(3, 4), torch.ones(1, 4))


def test_a_value_broadcast_and_cast_into_an_argument():
    def fn(a, b):
        a.copy_(b)

    check(fn, torch.zeros(3, 4, dtype=torch.int64), torch.randn(4) * 9)


def test_changed_and_differentiated():
    def fn(x, w):
        y = x.sin() * w
        y.add_(1).relu_()
        x.mul_(0.5)
        return y.square()

    check(fn, torch.randn(4, 3), torch.randn(3, requires_grad=True))


def test_a_view_of_a_changed_argument_in_the_backward():
    """What the backward reads is the argument as it was, through views as well."""

    def fn(x, w):
        y = (x.t().sin() @ w).exp() * x.sum()
        x.add_(1)
        return y

    check(fn, torch.randn(4, 3) / 4, torch.randn(4, 2, requires_grad=True))


def test_an_argument_changed_keeps_its_address_and_moves_its_version():
    compiled = burnish.compile(lambda x: x.add_(1))
    x = torch.randn(3)
    address, version = x.data_ptr(), x._version
    returned = compiled(x)
    assert x.data_ptr() == address and x._version > version and returned is x


def test_counters_and_running_statistics():
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.steps += 1
            self.mean.lerp_(x.mean(0), 0.1)
            return x - self.mean

    eager = Running()
    compiled = burnish.compile(copy.deepcopy(eager))
    for _ in range(4):
        x = torch.randn(6, 4)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(compiled.mean, eager.mean)
    assert compiled.steps.item() == 4
    served_by_us(compiled)


# --- caches -----------------------------------------------------------------------------------------------------


class KeyValueCache(nn.Module):
    """A static cache as language models keep it: [batch, heads, length, width], one position written per step."""

    LENGTH = 96

    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("keys", torch.zeros(2, 3, self.LENGTH, 8))
        self.register_buffer("values", torch.zeros(2, 3, self.LENGTH, 8))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        key, value = x * 2, x + 1
        self.write(self.keys, position, key)
        self.write(self.values, position, value)
        scores = torch.matmul(x, self.keys.transpose(-1, -2)).softmax(-1)
        return torch.matmul(scores, self.values)


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "index_copy_": lambda cache, at, new: cache.index_copy_(2, at, new),
    "index assignment": lambda cache, at, new: cache.__setitem__((slice(None), slice(None), at), new),
    "scatter_": lambda cache, at, new: cache.scatter_(2, at.view(1, 1, -1, 1).expand_as(new), new),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_cache_is_written_in_place(write, tmp_path: Path):
    eager = KeyValueCache(WRITES[write])
    compiled = burnish.compile(copy.deepcopy(eager), options={"dump_dir": tmp_path})
    addresses = compiled.keys.data_ptr(), compiled.values.data_ptr()
    for step in range(3):
        x, position = torch.randn(2, 3, 1, 8), torch.tensor([step * 7])
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, position), eager(x, position))
        assert torch.equal(compiled.keys, eager.keys) and torch.equal(compiled.values, eager.values)
    assert addresses == (compiled.keys.data_ptr(), compiled.values.data_ptr())
    served_by_us(compiled)
    copies = whole_copies((tmp_path / "inference.schedule.txt").read_text(), KeyValueCache.LENGTH * 8)
    assert copies == [], "kernels that write a whole cache"


def test_a_slice_of_a_cache_is_written_in_place(tmp_path: Path):
    def fn(cache, x):
        cache[:, 4:6] = x
        return cache.sum(-1)

    compiled = burnish.compile(fn, options={"dump_dir": tmp_path})
    ours, theirs, x = torch.zeros(3, 96, 8), torch.zeros(3, 96, 8), torch.randn(3, 2, 8)
    torch.testing.assert_close(compiled(ours, x), fn(theirs, x))
    assert torch.equal(ours, theirs)
    served_by_us(compiled)
    assert whole_copies((tmp_path / "inference.schedule.txt").read_text(), 96 * 8) == []


@pytest.mark.parametrize("write", ["zero_", "neg_"])
def test_a_double_of_no_dimensions_is_written(write):
    """Dynamo takes one for a number."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        getattr(x, write)()
        return x

    compiled = burnish.compile(fn, options={"gate": False, "verify": "off"})
    for value in (-2.5, 3.0):
        x, want = (torch.tensor(value, dtype=torch.float64) for _ in range(2))
        compiled(x)
        torch.testing.assert_close(x, fn(want))


@pytest.mark.parametrize("change", [("unsqueeze_", 0), ("t_",), ("squeeze_",), ("transpose_", 0, 1)])
def test_the_shape_of_what_is_given_another_in_place(change):
    name, *arguments = change

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        getattr(y, name)(*arguments)
        return y.reshape(y.shape[0], -1)

    x = torch.arange(2.0).reshape(2, 1)
    torch.testing.assert_close(burnish.compile(fn, options={"gate": False, "verify": "off"})(x), fn(x))


@pytest.mark.parametrize("write", ["set", "add", "scatter"])
def test_a_place_out_of_range_is_not_written_anywhere_else(write):
    """Who catches the exception goes on with a cache in which no other entry has changed."""

    def step(cache, place, x):
        if write == "set":
            cache[:, place] = x
        elif write == "add":
            cache.index_add_(1, place, x)
        else:
            cache.scatter_(1, place[None].expand_as(x), x)
        return cache * 2

    compiled = burnish.compile(step, gate=False, verify="off")
    cache = torch.zeros(1, 4)
    compiled(cache, torch.tensor([1]), torch.ones(1, 1))
    with pytest.raises((IndexError, RuntimeError)):
        compiled(cache, torch.tensor([99]), torch.ones(1, 1))
    assert cache.tolist() == [[0, 1, 0, 0]]
