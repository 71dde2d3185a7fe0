"""What is not padded, because a padded call would leave something behind or give other numbers."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

import burnish
from burnish.bucketed.escapes import escape
from tests.shapes.models import Attending, Tokens, ids, mask

STORES = "it stores tensors in an object: they would stay padded"


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def is_padded(compiled: Any) -> bool:
    return any(bucket.padded_calls for bucket in burnish.stats(compiled).shapes.buckets)


class Storing(Tokens):
    def __init__(self, store: Callable[[Any, torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__()
        self.last: Any = None
        self.held: dict[str, Any] = {"last": None}
        self.listed: list[Any] = [None]
        self.store = store

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = super().forward(ids)
        self.store(self, ids, x)
        return x.tanh()


WAYS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], object]] = {
    "attribute": lambda model, ids, x: setattr(model, "last", x),
    "argument": lambda model, ids, x: setattr(model, "last", ids),
    "nested": lambda model, ids, x: setattr(model, "last", (1, [x])),
    "size": lambda model, ids, x: setattr(model, "last", ids.shape[1]),
    "dict": lambda model, ids, x: model.held.update(last=x),
    "list": lambda model, ids, x: model.listed.__setitem__(0, x),
    "append": lambda model, ids, x: model.listed.append(x),
}


@pytest.mark.parametrize("way", WAYS)
def test_tensors_that_are_stored_are_not_padded(way: str) -> None:
    model, other = Storing(WAYS[way]).eval(), Storing(WAYS[way]).eval()
    other.load_state_dict(model.state_dict())
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 6, 5):
        compiled(ids(2, length)), other(ids(2, length))
        for mine, theirs in [(model.last, other.last), (model.held["last"], other.held["last"])]:
            torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(model.listed[-1], other.listed[-1])
    assert not is_padded(compiled) and burnish.stats(compiled).shapes.refusals


def test_a_result_that_is_stored_too_is_not_padded() -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            self.last = super().forward(ids)
            return self.last

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 6):
        compiled(ids(2, length))
        assert model.last.shape[1] == length
    assert STORES in burnish.stats(compiled).shapes.refusals


def test_a_hook_that_collects_is_not_padded() -> None:
    model, seen = Tokens().eval(), {"up": torch.zeros(0)}
    model.up.register_forward_hook(lambda module, args, result: seen.update(up=result))
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 6):
        compiled(ids(2, length))
        assert seen["up"].shape[1] == length
    assert not is_padded(compiled)


def test_results_in_containers_are_padded() -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor) -> Any:
            x = super().forward(ids)
            return [x, {"twice": (x * 2, None)}]

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 6):
        ours, eager = compiled(ids(2, length)), model(ids(2, length))
        torch.testing.assert_close(ours[0], eager[0])
        torch.testing.assert_close(ours[1]["twice"][0], eager[1]["twice"][0])
    assert is_padded(compiled)


class Both(NamedTuple):
    states: torch.Tensor
    first: torch.Tensor | None = None


Pair = collections.namedtuple("Pair", ["states", "first"])


@pytest.mark.parametrize("make", [lambda x: Both(x), lambda x: Pair(x, x[:, 0] * 2), lambda x: torch.max(x, -1)])
def test_results_in_named_tuples_are_padded(make: Callable[[torch.Tensor], Any]) -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor) -> Any:
            return make(super().forward(ids))

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 6):
        ours, eager = compiled(ids(2, length)), model(ids(2, length))
        assert type(ours) is type(eager)
        torch.testing.assert_close(tuple(ours), tuple(eager))
    assert is_padded(compiled)


class Remembering(Both):
    made: ClassVar[list[Any]] = []

    def __new__(cls, *args: Any) -> Any:
        made = super().__new__(cls, *args)
        cls.made.append(made)
        return made


def test_a_named_tuple_that_remembers_is_not_padded() -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor) -> Any:
            return Remembering(super().forward(ids))

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 6):
        compiled(ids(2, length))
        assert Remembering.made[-1].states.shape[1] == length
    assert not is_padded(compiled)


def test_code_that_only_returns() -> None:
    def stores(x: Any, held: Any) -> Any:
        held[0] = x

    assert escape((lambda x: [x, (x, 1)]).__code__) == ""
    assert escape(stores.__code__) == STORES


@pytest.mark.parametrize("hides", [0, 1])
def test_a_finite_mask_is_not_padded(hides: int) -> None:
    def attend(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = mask == 1 if hides else mask == 0
        scores = (x @ x.mT).masked_fill(hidden[:, None], torch.finfo(x.dtype).min)
        return scores.softmax(-1) @ x

    compiled = burnish.compile(attend, shapes={"sequence": [8], "fills": {"mask": hides}})
    for length in (3, 5, 6):
        x, mask = torch.randn(2, length, 4), torch.full((2, length), 1 - hides)
        for hidden in (0, 2, length):
            mask[0, :hidden] = hides
            torch.testing.assert_close(compiled(x, mask), attend(x, mask))
    assert "a finite mask may hide a whole row" in burnish.stats(compiled).shapes.refusals


def test_lengths_beyond_the_size_are_not_padded() -> None:
    def total(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        shown = torch.arange(x.shape[1])[None] < lengths[:, None]
        return torch.where(shown[..., None], x + 1, 0.0).sum(1)

    compiled = burnish.compile(total, shapes={"sequence": [8]})
    for length in (3, 5, 6):
        x, lengths = torch.randn(2, length, 4), torch.tensor([length, 20])
        torch.testing.assert_close(compiled(x, lengths), total(x, lengths))
    assert "lengths may be beyond the size" in burnish.stats(compiled).shapes.refusals


def test_testing_a_proof_writes_no_buffer() -> None:
    class Model(Tokens):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return super().forward(ids)

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for count, length in enumerate((3, 5, 6), 1):
        compiled(ids(2, length))
        assert model.calls == count
    assert any("writes" in why for why in burnish.stats(compiled).shapes.refusals)


def test_testing_a_proof_draws_no_random_number() -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) + torch.rand(1)

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    torch.manual_seed(0)
    ours = [compiled(ids(2, length)) for length in (3, 5, 6)]
    torch.manual_seed(0)
    for mine, length in zip(ours, (3, 5, 6), strict=True):
        torch.testing.assert_close(mine, model(ids(2, length)))
    assert any("random" in why for why in burnish.stats(compiled).shapes.refusals)


@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_a_nan_that_could_not_be_seen(kind: torch.dtype) -> None:
    class Model(Attending):
        def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
            return super().forward(ids, attention_mask)["states"].mul(4).to(kind)

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 6):
        x, m = ids(2, length), mask(2, length)
        assert torch.equal(compiled(x, m), model(x, m))
    (why,) = burnish.stats(compiled).shapes.refusals
    assert "makes numbers of a NaN" in why and not is_padded(compiled)


def test_a_result_of_whole_numbers_beside_one_that_may_be_nan() -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
            return ids + 1, (self.embed(ids) * mask[..., None]).sum(1)

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 6):
        torch.testing.assert_close(compiled(ids(2, length), mask(2, length)), model(ids(2, length), mask(2, length)))
    why = "a NaN from the padding could not be seen in a result of type int64"
    assert set(burnish.stats(compiled).shapes.refusals) == {why}


HIDING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "comparison": lambda x: (x > 0).float(),
    "choice": lambda x: torch.where(x > 0, 1.0, -1.0) * 2,
    "whole numbers": lambda x: x.long().clamp(-8, 8).float(),
    "truth value": lambda x: x.bool().float(),
    "place": lambda x: x.argmax(-1, keepdim=True).float(),
    "least": lambda x: x.topk(2, largest=False).values,
    "sign": lambda x: torch.sign(x),
    "nan_to_num": lambda x: x.nan_to_num(),
    "fmax": lambda x: torch.fmax(x, torch.zeros(())),
    "copysign": lambda x: torch.copysign(torch.ones(()), x),
    "threshold's derivative": lambda x: torch.ops.aten.threshold_backward(torch.ones_like(x), x, 0.0),
}


@pytest.mark.parametrize("way", HIDING)
def test_what_hides_a_nan_is_not_padded(way: str) -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids) * mask[..., None]
            return HIDING[way](x.sum(1) + 0.1)

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for infinite in (False, True):
        if infinite:
            model.embed.weight[0] = torch.inf  # the word that padding is
        for length in (3, 5, 6):
            x, m = ids(2, length), mask(2, length)
            torch.testing.assert_close(compiled(x, m), model(x, m))
    assert any("could not be seen" in why for why in burnish.stats(compiled).shapes.refusals)


SHOWING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "elu": torch.nn.functional.elu,
    "softplus": torch.nn.functional.softplus,
    "clamp": lambda x: x.clamp(-1, 1),
    "greatest": lambda x: x.amax(-1),
    "softmax": lambda x: x.softmax(-1),
    "norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "choice": lambda x: torch.where(torch.arange(x.shape[-1]) > 2, x, 0.0),
}


@pytest.mark.parametrize("way", SHOWING)
def test_what_shows_a_nan_is_padded(way: str) -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids) * mask[..., None]
            return SHOWING[way](x.sum(1) + 0.1)

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for infinite in (False, True):
        if infinite:
            model.embed.weight[0] = torch.inf
        for length in (3, 5, 6):
            x, m = ids(2, length), mask(2, length)
            torch.testing.assert_close(compiled(x, m), model(x, m), rtol=2e-5, atol=2e-6)
    assert is_padded(compiled)


@pytest.mark.parametrize("overlapping", [lambda x: x[:, :, :1].expand(-1, -1, 4), lambda x: x.unfold(1, 2, 1)])
def test_results_that_overlap_themselves_are_not_padded(overlapping: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return overlapping(super().forward(ids))

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"batch": [4], "sequence": [8]})
    for length in (3, 5, 6):
        torch.testing.assert_close(compiled(ids(2, length)), model(ids(2, length)))
    assert not is_padded(compiled)
