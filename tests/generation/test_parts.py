"""The pure parts of `generation`: chunks of prompts, draws, ends, pace."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.generation.buckets import CHUNKS, chunks, grown, rows, slack
from burnish.generation.cache import ModelShape
from burnish.generation.ends import Ends
from burnish.generation.pace import Pace
from burnish.generation.programs import Words, decode_step, prefill_step
from burnish.generation.selection import Choice, Knobs, choose, noise
from burnish.generation.state import State
from burnish.tools.decoding import Report


@given(
    st.integers(1, 3000), st.integers(0, 500), st.sampled_from([CHUNKS, (16,), (1, 8), (7, 100)]), st.integers(0, 90)
)
def test_chunks_cover_a_prompt_and_stay_inside(tokens: int, start: int, sizes: tuple[int, ...], more: int) -> None:
    capacity = start + tokens + more + slack(sizes)
    plan = chunks(tokens, start, capacity, sizes)
    assert plan[0].start == start and sum(chunk.used for chunk in plan) == tokens
    for chunk, following in itertools.pairwise(plan):
        assert chunk.start + chunk.used == following.start
    assert all(c.size in sizes and 0 < c.used <= c.size and c.start + c.size <= capacity for c in plan)


@given(st.integers(1, 100_000), st.integers(1, 4096) | st.none())
def test_caches_grow_by_doubling(needed: int, limit: int | None) -> None:
    length = grown(needed, limit)
    assert length >= needed and (length < 2 * needed or length in (64, limit))


def test_rows() -> None:
    assert [rows(n) for n in (1, 2, 3, 4, 5, 32)] == [1, 2, 4, 4, 8, 32]


def draws(choice: Choice, logits: torch.Tensor, count: int) -> torch.Tensor:
    """`count` independent draws, as shares of each token."""
    knobs = Knobs(logits.device)
    knobs.set(choice)
    how = choice.selection(True, logits.shape[-1])
    ends = torch.zeros(logits.shape[-1], dtype=torch.bool)
    many = logits.expand(256, -1)
    found = [choose(many, how, knobs, torch.tensor(slot), ends, None) for slot in range(count // 256)]
    return torch.bincount(torch.cat(found), minlength=logits.shape[-1]) / count


def test_draws_have_the_distribution_that_is_asked_for() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, -torch.inf])
    count = 256 * 64
    p = torch.softmax(logits, -1)
    tolerance = 4 * float((p * (1 - p) / count).sqrt().max())
    assert (draws(Choice(seed=1), logits, count) - p).abs().max() < tolerance
    warm = torch.softmax(logits / 2, -1)
    assert (draws(Choice(temperature=2.0, seed=2), logits, count) - warm).abs().max() < tolerance
    best = torch.where(torch.tensor([1, 1, 0, 0, 1, 0]).bool(), p, 0)
    best = best / best.sum()
    assert (draws(Choice(top_k=3, seed=3), logits, count) - best).abs().max() < tolerance
    two = torch.where(torch.tensor([1, 0, 0, 0, 1, 0]).bool(), p, 0)
    two = two / two.sum()
    assert (draws(Choice(top_p=0.7, seed=4), logits, count) - two).abs().max() < tolerance
    assert (draws(Choice(top_k=5, top_p=0.7, seed=5), logits, count) - two).abs().max() < tolerance
    assert (draws(Choice(min_p=0.5, seed=6), logits, count) - two).abs().max() < tolerance


def test_noise_of_rows_slots_and_seeds_is_apart() -> None:
    tokens = torch.arange(4096).expand(3, -1)
    a = noise(torch.tensor(1), torch.tensor(5), tokens)
    others = [
        a[1],
        noise(torch.tensor(2), torch.tensor(5), tokens)[0],
        noise(torch.tensor(1), torch.tensor(6), tokens)[0],
    ]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([a[0], other]))[0, 1])) < 0.08
    assert abs(float(a.mean()) - 0.5772) < 0.04 and bool(a.isfinite().all())


class Recorded(torch.nn.Module):
    """A model that only says what it was asked for."""

    def forward(self, input_ids, position_ids, past_key_values, use_cache, logits_to_keep):  # type: ignore[no-untyped-def]
        self.asked = {"input_ids": input_ids, "position_ids": position_ids, "logits_to_keep": logits_to_keep}
        return SimpleNamespace(logits=torch.ones(input_ids.shape[0], 1, 7))


def test_a_prompt_asks_for_the_logits_of_its_last_token_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.generation.programs.cache_over", lambda *arguments: None)
    state = State(ModelShape((), 7, torch.device("cpu")), (), 2, 16)
    state.begin(torch.arange(10).view(2, 5), torch.ones(2, 5, dtype=torch.bool), 0, 2)
    state.used.fill_(5)
    model = Recorded()
    prefill_step(model, state, Words.of(model), 8, 8, False)()
    assert model.asked["logits_to_keep"].tolist() == [4], "the last one of the prompt, not of the padding"
    assert model.asked["input_ids"].shape == (2, 8) and state.length == 5 and state.logits.eq(1).all()
    decode_step(model, state, Words.of(model), None, False)()
    assert model.asked["logits_to_keep"] == 1 and state.length == 6


def test_a_report_says_how_fast() -> None:
    text = str(
        Report(
            target="a model",
            device="Some GPU",
            dtype="bfloat16",
            batch=2,
            prompt=5,
            new=6,
            cold_first_token_s=1.5,
            cold_s=5.0,
            first_token_ms=4.25,
            token_p50_ms=0.7,
            token_p99_ms=0.9,
            tokens_per_s=1234.5,
            gigabytes=2.5,
            gigabytes_per_s=3000.0,
            ceiling_gigabytes_per_s=4000.0,
            eager_tokens_per_s=500.0,
            same_as_eager=True,
        )
    )
    for part in (
        "1,234.5 a second (2.47 x eager's)",
        "of the first request, in eager, 1.50 s, and all of it 5.00 s",
        "0.700 ms p50, 0.900 ms p99",
    ):
        assert part in text
    assert "2.500 GB a step at 3,000.0 GB/s, 75% of this machine's 4,000.0" in text and "those of eager" in text


def test_ends() -> None:
    ends = Ends(2, [9], pad=0)
    tokens, told = ends.add(torch.tensor([[1, 9, 5], [2, 3, 4]]))
    assert tokens.tolist() == [[1, 9, 0], [2, 3, 4]] and told == [] and not ends.is_over
    tokens, _ = ends.add(torch.tensor([[5, 5, 5], [9, 7, 7]]))
    assert tokens.tolist() == [[0], [9]] and ends.is_over
    assert ends.mask().tolist() == [[True, True, False, False], [True] * 4]
    assert Ends(2, [], 0).stop([True, False]) == [0]


def test_the_host_looks_seldom_but_not_late() -> None:
    pace = Pace(ahead=True)
    asked = []
    for _ in range(8):
        asked.append(pace.steps(1000))
        pace.took(0.001 * asked[-1], asked[-1])
    assert asked[0] == 1 and asked[-1] == 10 and asked == sorted(asked)
    assert pace.steps(3) == 3
    pace.took(1.0, 10)
    assert pace.steps(1000) == 1  # steps have become slow
    on_host = Pace(ahead=False)
    on_host.took(1e-6, 1)
    assert on_host.steps(1000) == 1
