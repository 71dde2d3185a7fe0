"""`burnish.compile(model, shapes=...)`: padded calls give eager's results, compile as often as there are buckets, and
what may not be padded is not."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import burnish
from burnish import handle
from burnish.errors import BadOptionValue, BadShapes, SealedError
from burnish.shapes.traffic import drawn
from burnish.torch_private import symbolic_sizes
from burnish.torch_private.dynamo import compile_lock
from tests.shapes.models import Attending, Mean, Normed, Rows, Tokens, ids, mask

GRID = {"batch": [1, 2, 4], "sequence": [8, 16, 32]}


def close(ours: Any, eager: Any) -> None:
    assert type(ours) is type(eager)
    if isinstance(ours, dict):
        assert list(ours) == list(eager)
        for name in ours:
            close(ours[name], eager[name])
        return
    assert ours.shape == eager.shape and ours.dtype == eager.dtype
    if eager.numel():
        assert ours.stride() == eager.stride()
    torch.testing.assert_close(ours, eager, rtol=2e-5, atol=2e-6)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def test_padded_calls_give_eagers_results() -> None:
    model = Attending().eval()
    compiled = burnish.compile(model, shapes=GRID)
    for batch, length in [(2, 3), (2, 3), (3, 10), (4, 16), (2, 17), (4, 30), (1, 5), (1, 7), (3, 9), (2, 8), (4, 2)]:
        x, m = ids(batch, length), mask(batch, length)
        close(compiled(x, attention_mask=m), model(x, attention_mask=m))
    shapes = burnish.stats(compiled).shapes
    assert shapes is not None and shapes.variants == burnish.stats(compiled).compiles <= 9
    assert sum(bucket.padded_calls for bucket in shapes.buckets) >= 7
    assert not shapes.refusals and shapes.dynamic_calls == 0


def test_sizes_0_and_1() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes=GRID)
    for _ in range(2):
        for batch, length in [(1, 1), (0, 5), (2, 1), (1, 9), (3, 0), (0, 0), (2, 6)]:
            x = ids(batch, length) if batch and length else torch.zeros(batch, length, dtype=torch.long)
            close(compiled(x), model(x))


def test_larger_than_every_bucket() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16]})
    for length in (3, 5, 20, 33, 12):
        close(compiled(ids(2, length)), model(ids(2, length)))
    shapes = burnish.stats(compiled).shapes
    assert shapes.eager_calls == 3  # the first call is traced, two are too large for a bucket
    assert shapes.variants == 2


def test_a_thousand_lengths_compile_once_for_each_bucket() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"batch": "auto", "sequence": "auto", "variants": 4, "after": 32})
    requests = drawn("lognormal:4-128,batch=2-6", 400, seed=1)
    for k, request in enumerate(requests):
        x = ids(request["batch"], request["sequence"], seed=k)
        close(compiled(x), model(x))
    shapes = burnish.stats(compiled).shapes
    assert 1 <= shapes.variants <= 4 and burnish.stats(compiled).compiles <= 5
    compiles = burnish.stats(compiled).compiles
    for k, request in enumerate(requests):
        compiled(ids(request["batch"], request["sequence"], seed=k))
    assert burnish.stats(compiled).compiles == compiles
    assert 0.0 < shapes.waste < 0.8 and shapes.plans


def test_what_mixes_padding_in_is_refused_and_right() -> None:
    model = Mean().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16]})
    for length in (3, 5, 7, 5, 12, 8):
        close(compiled(ids(2, length)), model(ids(2, length)))
    shapes = burnish.stats(compiled).shapes
    assert any("mean" in why for why in shapes.refusals)
    assert sum(bucket.padded_calls for bucket in shapes.buckets) == 0
    assert shapes.dynamic_calls > 0


def test_attention_without_a_mask_is_refused() -> None:
    model = Attending().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16]})
    for length in (3, 5, 7):
        close(compiled(ids(2, length)), model(ids(2, length)))
    shapes = burnish.stats(compiled).shapes
    assert any("there is no mask" in why for why in shapes.refusals), shapes
    assert not any(bucket.padded_calls for bucket in shapes.buckets)
    for length in (3, 5, 7):  # with a mask it is another form of call
        x, m = ids(2, length), mask(2, length)
        close(compiled(x, m), model(x, m))
    assert any(bucket.padded_calls for bucket in burnish.stats(compiled).shapes.buckets)


def test_a_mask_that_hides_a_whole_row() -> None:
    model = Attending().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16]})
    for length in (3, 5, 7, 7):
        x, m = ids(2, length), mask(2, length)
        close(compiled(x, m), model(x, m))
        m = m.clone()
        m[1] = 0
        close(compiled(x, m), model(x, m))


def test_a_mask_is_made_where_the_user_says_so() -> None:
    model = Attending().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16], "mask": "attention_mask"})
    for length in (3, 5, 7, 12):
        close(compiled(ids(2, length)), model(ids(2, length)))
        close(compiled(ids(2, length), None), model(ids(2, length)))
        close(compiled(ids(2, length), mask(2, length)), model(ids(2, length), mask(2, length)))
    shapes = burnish.stats(compiled).shapes
    assert not shapes.refusals and sum(bucket.padded_calls for bucket in shapes.buckets) >= 6


def test_only_the_batch_varies() -> None:
    model = Rows().eval()
    compiled = burnish.compile(model, shapes={"batch": [2, 4, 8], "sequence": [64]})
    for batch in (3, 5, 7, 8, 2, 3):
        close(compiled(torch.randn(batch, 8).mul(0).add(batch)), model(torch.full((batch, 8), float(batch))))
    shapes = burnish.stats(compiled).shapes
    assert shapes.variants == 3 and not shapes.refusals  # dimension 1 has a fixed size: it is no sequence


def test_a_changed_state_is_checked_again() -> None:
    model = Attending().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16]})
    for scale in (1.0, 0.25, 1.0):
        model.scale = scale
        for length in (3, 5, 7, 12):
            x, m = ids(2, length), mask(2, length)
            close(compiled(x, m), model(x, m))


def test_training_mode_is_not_padded_where_statistics_would_change() -> None:
    model, other = Normed().eval(), Normed()
    other.load_state_dict(model.state_dict())
    compiled = burnish.compile(model, shapes={"batch": [4, 8]})
    for training in (False, True, False, True):
        model.train(training), other.train(training)
        for batch in (3, 5, 6):
            x = torch.randn(batch, 8, generator=torch.Generator().manual_seed(batch))
            close(compiled(x), other(x))
        for mine, theirs in zip(model.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert any(bucket.padded_calls for bucket in burnish.stats(compiled).shapes.buckets)


def test_hooks_are_noticed() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5):
        compiled(ids(2, length))
    handle = model.register_forward_hook(lambda module, args, result: result.mean(1))
    for length in (3, 5, 6):
        close(compiled(ids(2, length)), model(ids(2, length)))
    handle.remove()
    for length in (3, 5, 6):
        close(compiled(ids(2, length)), model(ids(2, length)))


def test_gradients_are_not_padded_and_right() -> None:
    model = Tokens()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16]})
    with torch.enable_grad():
        for length in (3, 5, 7):
            compiled(ids(2, length)).square().sum().backward()
            ours = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            model(ids(2, length)).square().sum().backward()
            for mine, p in zip(ours, model.parameters(), strict=True):
                torch.testing.assert_close(mine, p.grad)
            model.zero_grad()
    assert not any(bucket.padded_calls for bucket in burnish.stats(compiled).shapes.buckets)


@pytest.mark.parametrize("returned", ["argument", "number", "parameter", "alias"])
def test_results_that_cannot_be_sliced_are_refused(returned: str) -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor) -> Any:
            x = super().forward(ids)
            other: Any = {"argument": ids, "number": ids.shape[1], "parameter": self.up.bias, "alias": x.view(-1)}
            return x, other[returned]

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 7):
        ours, eager = compiled(ids(2, length)), model(ids(2, length))
        close(ours[0], eager[0])
        if isinstance(eager[1], torch.Tensor):
            close(ours[1], eager[1])
        else:
            assert ours[1] == eager[1]
    shapes = burnish.stats(compiled).shapes
    assert shapes.refusals and not any(bucket.padded_calls for bucket in shapes.buckets)


def test_a_graph_break_is_refused() -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            torch._dynamo.graph_break()
            return self.up(x)

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 7):
        close(compiled(ids(2, length)), model(ids(2, length)))
    assert any("graph break" in why for why in burnish.stats(compiled).shapes.refusals)


def test_a_branch_on_the_size_is_followed() -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = super().forward(ids)
            return x * 2 if ids.shape[1] < 6 else x * 3

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16]})
    for length in (3, 5, 5, 6, 7, 7, 4, 12, 12):
        close(compiled(ids(2, length)), model(ids(2, length)))
    shapes = burnish.stats(compiled).shapes
    assert any("not that of the padded sizes" in why for why in shapes.refusals)  # 5 is padded to 8 in no way
    assert any(bucket.padded_calls for bucket in shapes.buckets)  # 7 is


def test_static_is_bounded() -> None:
    model = Mean().eval()
    compiled = burnish.compile(model, shapes={"strategy": "static", "variants": 3})
    for length in (3, 4, 5, 6, 7, 3, 5, 8, 6):
        close(compiled(ids(2, length)), model(ids(2, length)))
    shapes = burnish.stats(compiled).shapes
    assert shapes.variants == 3 and shapes.dynamic_calls == 4
    assert burnish.stats(compiled).compiles == 4


def test_dynamic_compiles_once() -> None:
    model = Mean().eval()
    compiled = burnish.compile(model, shapes="dynamic")
    for length in (3, 4, 5, 6):
        close(compiled(ids(2, length)), model(ids(2, length)))
    assert burnish.stats(compiled).compiles == 1
    assert "dynamic" in str(burnish.stats(compiled).shapes)


def test_pad_learns_one_maximum() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"strategy": "pad", "after": 8})
    for k in range(30):
        length = 2 + (7 * k) % 11
        close(compiled(ids(2, length)), model(ids(2, length)))
    shapes = burnish.stats(compiled).shapes
    assert shapes.variants == 1 and burnish.stats(compiled).compiles == 1


def test_auto_gives_frequent_sizes_a_variant_where_padding_is_refused() -> None:
    model = Mean().eval()
    compiled = burnish.compile(model, shapes={"strategy": "auto", "after": 4, "variants": 2})
    for k in range(40):
        length = 5 if k % 2 else 3 + k % 9
        close(compiled(ids(2, length)), model(ids(2, length)))
    shapes = burnish.stats(compiled).shapes
    assert shapes.refusals and 1 <= shapes.variants <= 2
    assert all(bucket.padded_calls == 0 for bucket in shapes.buckets)


def test_random_numbers_are_those_of_eager() -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(super().forward(ids), 0.5, self.training)

    model = Model().train()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 7):
        torch.manual_seed(length)
        ours = compiled(ids(2, length))
        torch.manual_seed(length)
        close(ours, model(ids(2, length)))
    assert not any(bucket.padded_calls for bucket in burnish.stats(compiled).shapes.buckets)


@pytest.mark.parametrize("fill", [None, -100])
def test_a_loss_is_padded_with_labels_that_it_ignores_only(fill: int | None) -> None:
    class Model(Tokens):
        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            logits = super().forward(ids)
            return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    model = Model().eval()
    asked = {"sequence": [8, 16]} if fill is None else {"sequence": [8, 16], "fills": {"labels": fill}}
    compiled = burnish.compile(model, shapes=asked)
    for length in (3, 5, 7, 12, 3, 9):
        x = ids(2, length)
        torch.testing.assert_close(compiled(x, x % 16), model(x, x % 16), rtol=2e-5, atol=2e-6)
    shapes = burnish.stats(compiled).shapes
    if fill is None:
        assert shapes.refusals and not any(bucket.padded_calls for bucket in shapes.buckets)


def test_a_table_of_positions_has_an_end() -> None:
    class Model(Tokens):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Embedding(20, 16)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.down(torch.relu(self.up(self.embed(ids) + self.positions(torch.arange(ids.shape[1])))))

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 32]})
    for length in (20, 5, 7, 18, 19, 20):
        close(compiled(ids(2, length)), model(ids(2, length)))
    with pytest.raises(IndexError):
        compiled(ids(2, 21))
    close(compiled(ids(2, 6)), model(ids(2, 6)))


def test_functions_and_strided_arguments() -> None:
    def function(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return torch.relu(x) * factor

    compiled = burnish.compile(function, shapes={"batch": [8, 16]})
    for batch in (3, 5, 7, 12):
        x = torch.randn(batch, 6)
        close(compiled(x), function(x))
        close(compiled(x, 3.0), function(x, 3.0))
        close(compiled(x.t().contiguous().t()), function(x.t().contiguous().t()))


def test_sealed() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16]})
    for length in (3, 5, 12, 16):
        compiled(ids(2, length))
    compiles, traces = burnish.stats(compiled).compiles, burnish.stats(compiled).shapes.traces
    burnish.seal(compiled)
    for length in (2, 4, 6, 9, 15, 16, 8):
        close(compiled(ids(2, length)), model(ids(2, length)))
    for batch, length in [(3, 5), (2, 40), (1, 4)]:  # nothing is compiled for these
        close(compiled(ids(batch, length)), model(ids(batch, length)))
    stats = burnish.stats(compiled)
    assert (stats.compiles, stats.shapes.traces) == (compiles, traces)
    assert sum(n for what, n in stats.notices.items() if what.startswith("sealed call in eager")) == 3
    compiled.burnish.unseal()
    close(compiled(ids(3, 5)), model(ids(3, 5)))


def test_sealed_strictly() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5):
        compiled(ids(2, length))
    burnish.seal(compiled, strict=True)
    close(compiled(ids(2, 7)), model(ids(2, 7)))
    with pytest.raises(SealedError):
        compiled(ids(2, 9))


def test_a_sealed_call_goes_to_the_nearest_larger_variant() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"batch": [2, 4], "sequence": [8, 16]})
    for batch, length in [(2, 5), (4, 12)]:
        for _ in range(2):
            compiled(ids(batch, length))
    burnish.seal(compiled, strict=True)
    for batch, length in [(3, 5), (4, 7), (2, 12)]:  # whose own buckets were not compiled
        close(compiled(ids(batch, length)), model(ids(batch, length)))


def test_rollback_and_retry() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5):
        compiled(ids(2, length))
    compiled.burnish.rollback()
    close(compiled(ids(2, 6)), model(ids(2, 6)))
    compiled.burnish.retry()
    close(compiled(ids(2, 6)), model(ids(2, 6)))
    compiled.burnish.reset()
    close(compiled(ids(2, 6)), model(ids(2, 6)))
    assert burnish.stats(compiled).shapes.traces >= 1


def test_sixteen_threads() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"batch": [4], "sequence": [8, 16, 32]})
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with torch.no_grad():
                for k in range(12):
                    x = ids(2 + (seed + k) % 3, 2 + (5 * seed + 7 * k) % 31, seed)
                    close(compiled(x), model(x))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    stats = burnish.stats(compiled)
    assert stats.compiles == stats.shapes.variants == 3


def test_mistakes_are_raised_at_once() -> None:
    with pytest.raises(BadShapes, match="mask is the name"):
        burnish.compile(Tokens(), shapes={"sequence": "auto", "mask": True})
    with pytest.raises(BadShapes, match="static"):
        burnish.compile(Tokens(), shapes="statc")
    for other in ({"dynamic": True}, {"backend": "eager"}, {"background": True}, {"budget": 3.0}):
        with pytest.raises(BadOptionValue):
            burnish.compile(Tokens(), shapes="auto", **other)


def test_without_shapes_nothing_is_different() -> None:
    compiled = burnish.compile(nn.Linear(3, 3))
    assert type(compiled.burnish.entrance).__name__ == "Entrance"
    compiled(torch.randn(2, 3))
    assert burnish.stats(compiled).shapes is None


def test_a_form_that_is_refused_in_one_state_is_planned_in_another() -> None:
    model = Normed().train()
    compiled = burnish.compile(model, shapes={"batch": "auto", "after": 6})
    for training in (True, False, True, False):
        model.train(training)
        for k in range(12):
            x = torch.randn(2 + k % 5, 8, generator=torch.Generator().manual_seed(k))
            before = [buffer.clone() for buffer in model.buffers()]
            ours = compiled(x)
            for buffer, old in zip(model.buffers(), before, strict=True):
                buffer.copy_(old)
            close(ours, model(x))
    shapes = burnish.stats(compiled).shapes
    assert shapes.refusals and shapes.plans


@pytest.mark.timeout(300)
def test_padded_calls_are_raced_apart_from_calls_of_the_buckets_own_size() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"batch": [4], "sequence": [32]}, gate=True)
    for k in range(40):
        for batch, length in [(4, 32), (2, 3), (4, 30)]:
            close(compiled(ids(batch, length, k)), model(ids(batch, length, k)))
    raced = burnish.stats(compiled).whole_call
    kinds = {each.inputs for each in raced}
    assert any("at most 25 %" in kind for kind in kinds) and any("not padding" not in kind for kind in kinds)
    assert burnish.stats(compiled).compiles == 1


def test_dynamo_is_reset_between_calls() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16], "variants": 2})
    for _ in range(3):
        for length in (3, 5, 9, 12):
            close(compiled(ids(2, length)), model(ids(2, length)))
        torch._dynamo.reset()
    close(compiled(ids(2, 5)), model(ids(2, 5)))
    assert burnish.stats(compiled).shapes.variants == 2


@pytest.mark.filterwarnings("ignore")
def test_the_model_is_freed_with_its_compiled_object() -> None:
    model = Tokens().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16]})
    for length in (3, 5, 12, 5):
        compiled(ids(2, length))
    alive = weakref.ref(model)
    del model, compiled
    gc.collect()
    assert alive() is None


def test_a_form_keeps_no_tensors() -> None:
    compiled = burnish.compile(Tokens().eval(), shapes={"sequence": [8]})
    x = ids(2, 3)
    compiled(x), compiled(ids(2, 5))
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None


def test_a_strict_seal_names_calls_that_are_not_bucketed() -> None:
    compiled = burnish.compile(Rows().eval(), shapes={"batch": [8]})
    for batch in (3, 5):
        compiled(torch.randn(batch, 8))
    burnish.seal(compiled, strict=True)
    compiled(torch.randn(6, 8))
    with pytest.raises(SealedError):
        compiled(torch.randn(8, 6).t())


def test_inference_mode() -> None:
    model = Attending().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8, 16]})
    with torch.inference_mode():
        for length in (3, 5, 12, 5):
            x, m = ids(2, length), mask(2, length)
            close(compiled(x, m), model(x, m))
    x, m = ids(2, 4), mask(2, 4)
    with torch.inference_mode():
        close(compiled(x, m), model(x, m))
    close(compiled(x, m), model(x, m))
    shapes = burnish.stats(compiled).shapes
    assert any(bucket.padded_calls for bucket in shapes.buckets) and not shapes.refusals


def test_calls_under_autocast_have_buckets_of_their_own() -> None:
    model = Rows().eval()
    compiled = burnish.compile(model, shapes={"batch": [4]})
    for _ in range(4):
        for dtype in (None, torch.bfloat16):
            with contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype):
                assert compiled(torch.randn(3, 8)).dtype == (dtype or torch.float32)
    stats = burnish.stats(compiled)
    assert stats.compiles == stats.shapes.compiles == stats.shapes.variants == 2


def test_sizes_are_told_apart_under_dynamos_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []

    class Config:
        use_duck_shape = True

        @contextlib.contextmanager
        def patch(self, changes: dict[str, bool]) -> Iterator[None]:
            def look() -> None:
                free = compile_lock.acquire(blocking=False)
                held.append(not free)
                if free:
                    compile_lock.release()

            thread = threading.Thread(target=look)
            thread.start(), thread.join()
            yield

    monkeypatch.setattr(symbolic_sizes, "config", Config())
    compiled = burnish.compile(Rows().eval(), shapes={"batch": [4]})
    compiled(torch.randn(3, 8))
    assert held and all(held)


def test_shapes_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[object] = []
    parse = handle.parse
    monkeypatch.setattr(handle, "parse", lambda shapes: parsed.append(shapes) or parse(shapes))
    burnish.compile(Rows(), shapes={"batch": [4]})
    assert parsed == [{"batch": [4]}]


def test_a_float_of_the_modules_is_a_constant_of_the_proof() -> None:
    class Model(Tokens):
        def __init__(self) -> None:
            super().__init__()
            self.epsilon = 1e-6

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)
            return (x * mask[..., None]).sum(1)

    model = Model().eval()
    compiled = burnish.compile(model, shapes={"sequence": [8]})
    for length in (3, 5, 6):
        close(compiled(ids(2, length), mask(2, length)), model(ids(2, length), mask(2, length)))
    assert sum(bucket.padded_calls for bucket in burnish.stats(compiled).shapes.buckets) == 2


def test_causal_attention_without_dropout_draws_no_numbers() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    compiled = burnish.compile(attend, shapes={"x": {2: [8]}})
    for length in (3, 5, 6):
        x = torch.randn(2, 2, length, 4)
        close(compiled(x), attend(x))
    assert sum(bucket.padded_calls for bucket in burnish.stats(compiled).shapes.buckets) == 2


def test_a_negative_zero_is_not_taken_for_zero() -> None:
    def divide(x: torch.Tensor, by: float) -> torch.Tensor:
        return x / by

    compiled = burnish.compile(divide, shapes={"batch": [4]})
    for by in (0.0, 0.0, -0.0, -0.0, 0.0):
        assert torch.equal(compiled(torch.ones(3, 2), by), torch.full((3, 2), torch.inf).copysign(torch.tensor(by)))


def test_arguments_that_require_gradients_are_padded_without_grad_mode() -> None:
    compiled = burnish.compile(Rows().eval(), shapes={"batch": [4]})
    for _ in range(3):
        assert not compiled(torch.randn(3, 8, requires_grad=True)).requires_grad
    assert sum(bucket.padded_calls for bucket in burnish.stats(compiled).shapes.buckets) == 2


def test_results_that_require_gradients_are_named() -> None:
    compiled = burnish.compile(Rows().eval(), shapes={"batch": [4]})
    with torch.enable_grad():
        for _ in range(3):
            assert compiled(torch.randn(3, 8, requires_grad=True)).requires_grad
    assert set(burnish.stats(compiled).shapes.refusals) == {"results require gradients"}


def test_tensors_made_outside_of_inference_mode_are_padded_in_it() -> None:
    compiled = burnish.compile(Rows().eval(), shapes={"batch": [4]})
    outside = torch.ones(3, 8)
    with torch.inference_mode():
        inside = torch.ones(3, 8)
        for _ in range(3):
            compiled(outside), compiled(inside)
    for _ in range(3):
        compiled(outside), compiled(inside)
    shapes = burnish.stats(compiled).shapes
    assert not shapes.refusals and sum(bucket.padded_calls for bucket in shapes.buckets) == 8


def test_warmup_in_inference_mode_is_for_tensors_made_outside() -> None:
    compiled = burnish.compile(Rows().eval(), shapes={"batch": [4, 8]})
    x = torch.ones(3, 8)
    with torch.inference_mode():
        burnish.warmup(compiled, example=x)
        burnish.seal(compiled, strict=True)
        assert compiled(x).shape == (3, 3)
