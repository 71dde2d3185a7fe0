"""`generation.compile(model)`: what users ask of `generate` beyond the next token."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from burnish import generation
from burnish.errors import (
    BadOptionValue,
    BatchTooLarge,
    GenerationInterrupted,
    NotACausalLM,
    NothingToResume,
    PromptTooLong,
    UnknownGenerationSetting,
    UnsupportedGeneration,
)
from burnish.generation.llm import CompiledLM
from burnish.generation.pace import Pace
from tests.generation.tiny import CHUNKS, family, left_padded, prompt, same_tokens

pytestmark = pytest.mark.slow
LENGTH = 40


@pytest.fixture(scope="module")
def model() -> Any:
    return family("llama")


@pytest.fixture(scope="module")
def llm(model: Any) -> Iterator[CompiledLM]:
    """One for all tests: its programs are compiled once."""
    made = generation.compile(model, max_length=LENGTH, max_batch=2, chunk_sizes=CHUNKS, eager_first=False)
    yield made
    made.close()


def both(llm: CompiledLM, **arguments: Any) -> torch.Tensor:
    """Ours, after it was found to be eager's."""
    arguments = {"do_sample": False, "pad_token_id": 0, **arguments}
    ours, theirs = llm.generate(**arguments), llm.eager.generate(**arguments)
    same_tokens(llm.eager, ours, theirs, arguments.get("attention_mask"))
    assert llm.stats().fallbacks == (), llm.stats()
    return ours


# -- lengths -----------------------------------------------------------------------------------------------------


def test_every_length_up_to_the_limit_of_the_cache_from_few_programs(llm: CompiledLM) -> None:
    for tokens in (1, 16, 17, LENGTH - 3):
        assert both(llm, input_ids=prompt(2, tokens), max_new_tokens=3).shape == (2, tokens + 3)
    made = llm.stats().compiles
    assert made <= 3, llm.stats()  # a chunk at the beginning, one behind others, the step
    both(llm, input_ids=prompt(2, 23), max_new_tokens=LENGTH - 23)
    assert llm.stats().compiles == made


def test_the_first_token_waits_for_no_compiler(model: Any) -> None:
    """The first prompt of each length runs in eager, over the buffers that the programs have."""
    llm = generation.compile(model, max_length=LENGTH, chunk_sizes=CHUNKS)
    tokens = llm.stream(prompt(1, 17), max_new_tokens=4, do_sample=False)  # a chunk, and one behind it
    first = next(tokens)
    assert (llm.stats().compiles, llm.stats().eager_chunks) == (0, 2)
    whole = torch.cat([prompt(1, 17), torch.stack([first, *tokens], 1)], 1)
    assert llm.stats().compiles == 1  # the step
    same_tokens(model, whole, model.generate(prompt(1, 17), max_new_tokens=4, do_sample=False))
    both(llm, input_ids=prompt(1, 9), max_new_tokens=4)
    assert (llm.stats().compiles, llm.stats().eager_chunks) == (2, 2)
    llm.close()


def test_a_model_that_asks_the_host_for_a_length_unless_there_is_a_mask() -> None:
    model = family("opt")
    llm = generation.compile(model, max_length=LENGTH, chunk_sizes=CHUNKS)
    both(llm, input_ids=prompt(1, 6), max_new_tokens=5)
    (step,) = llm.stats().programs
    assert step.compiles == 1 and step.graph_breaks == () and "padded" in step.name, step
    llm.close()


def test_one_token_too_many(llm: CompiledLM) -> None:
    with pytest.raises(PromptTooLong, match=f"{LENGTH - 2} tokens of prompt and 3 new ones do not fit .* {LENGTH}"):
        llm.generate(prompt(2, LENGTH - 2), max_new_tokens=3)
    with pytest.raises(BatchTooLarge):
        llm.generate(prompt(3, 4), max_new_tokens=3)


def test_default_lengths(llm: CompiledLM) -> None:
    assert both(llm, input_ids=prompt(1, 5)).shape == (1, 25)
    assert both(llm, input_ids=prompt(1, 5), max_length=11).shape == (1, 11)


def test_a_cache_without_limits_grows(model: Any) -> None:
    llm = generation.compile(model, chunk_sizes=CHUNKS)
    both(llm, input_ids=prompt(1, 5), max_new_tokens=3)
    assert (llm.stats().max_length, llm.stats().max_batch) == (64, 1)
    first = llm.generate(prompt(1, 50), max_new_tokens=8, do_sample=False)
    whole = llm.generate(resume=True, max_new_tokens=12, do_sample=False)  # carried over into a larger one
    assert llm.stats().max_length == 128
    same_tokens(model, whole, model.generate(prompt(1, 50), max_new_tokens=20, do_sample=False))
    assert torch.equal(whole[:, : first.shape[1]], first)


def test_memory_limits_a_cache_without_limits(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = generation.compile(model, chunk_sizes=CHUNKS)
    slot = llm._store.shape.slot_bytes
    monkeypatch.setattr("burnish.generation.store.room", lambda device: slot * (90 + 15 + 16))  # and the slack
    with pytest.raises(PromptTooLong, match="80 tokens of prompt and 20 new ones .* 90 .*memory allows for 1 rows"):
        next(llm.stream(prompt(1, 80), max_new_tokens=20, do_sample=False))
    first = next(llm.stream(prompt(1, 70), max_new_tokens=20, do_sample=False))
    assert llm.stats().max_length == 90, "what is needed, where twice as much does not fit"
    assert int(first) == int(model.generate(prompt(1, 70), max_new_tokens=1, do_sample=False)[0, -1])


def test_three_sequences_are_filled_up_to_four(model: Any) -> None:
    llm = generation.compile(model, max_length=LENGTH, chunk_sizes=CHUNKS)
    inputs = left_padded(prompt(3, 8), [8, 3, 6])
    assert both(llm, **inputs, max_new_tokens=5).shape == (3, 13)
    assert llm.stats().max_batch == 4 and llm.stats().new_tokens == 15
    llm.close()


# -- ends --------------------------------------------------------------------------------------------------------


def test_rows_end_where_their_end_token_is(llm: CompiledLM) -> None:
    free = both(llm, input_ids=prompt(2, 6), max_new_tokens=12)[:, 6:]
    ends = [int(free[0, 3]), int(free[1, 7])]
    ended = both(llm, input_ids=prompt(2, 6), max_new_tokens=12, eos_token_id=ends)
    assert ended.shape[1] <= 6 + 8 and bool((ended == 0).any())
    both(llm, input_ids=prompt(2, 6), max_new_tokens=12, eos_token_id=ends, min_new_tokens=10)


class Letters:
    """A tokenizer: each token is a letter."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(48 + token) for token in tokens)


def test_stop_strings(llm: CompiledLM) -> None:
    free = llm.generate(prompt(2, 6), max_new_tokens=12, do_sample=False)[:, 6:].tolist()
    words = [Letters().decode(free[0][2:4]), Letters().decode(free[1][6:8])]
    out = llm.generate(
        prompt(2, 6), max_new_tokens=12, do_sample=False, stop_strings=words, tokenizer=Letters(), pad_token_id=0
    )[:, 6:]
    for row in range(2):
        text = Letters().decode(free[row])
        end = min(text.index(word) + 2 for word in words if word in text)
        kept = out[row, : min(end, out.shape[1])].tolist()
        assert kept == free[row][: len(kept)] and not out[row, end:].any(), (row, out[row], text, words)
    with pytest.raises(BadOptionValue, match="tokenizer"):
        llm.generate(prompt(2, 6), stop_strings=words)


def test_a_time_limit(llm: CompiledLM, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("burnish.generation.run.Run.__init__.__defaults__", (lambda: float(next(clock)),))
    out = llm.generate(prompt(1, 6), max_new_tokens=20, max_time=9.0, do_sample=False)
    assert 7 < out.shape[1] < 20


class AfterTokens(StoppingCriteria):
    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.tokens)


class NeverTwice(LogitsProcessor):
    """The token before may not come again."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter(1, input_ids[:, -1:], -torch.inf)


def test_code_of_the_users_runs_after_every_step_and_is_counted(llm: CompiledLM) -> None:
    before = llm.stats()
    out = both(llm, input_ids=prompt(2, 6), max_new_tokens=12, stopping_criteria=[AfterTokens(10)])
    assert out.shape == (2, 10)
    out = both(llm, input_ids=prompt(2, 6), max_new_tokens=8, logits_processor=[NeverTwice()], repetition_penalty=1.5)
    assert not bool((out[:, 6:] == out[:, 5:-1]).any())
    both(llm, input_ids=prompt(2, 6), max_new_tokens=8, no_repeat_ngram_size=2)
    stats = llm.stats()
    assert stats.host_steps - before.host_steps == 3 + 7 + 7
    assert set(stats.notes) == {
        "a LogitsProcessor ran on the host after every step",
        "a StoppingCriteria ran on the host after every step",
    }


def test_repetition_penalty_and_a_generation_config(llm: CompiledLM) -> None:
    config = GenerationConfig(max_new_tokens=14, repetition_penalty=1.7, do_sample=False, pad_token_id=0)
    ids = prompt(2, 6)
    ours, theirs = (each.generate(ids, generation_config=config) for each in (llm, llm.eager))
    same_tokens(llm.eager, ours, theirs)
    assert not torch.equal(ours, llm.generate(ids, max_new_tokens=14, do_sample=False))
    output = llm.generate(ids, max_new_tokens=3, do_sample=False, return_dict_in_generate=True)
    assert torch.equal(output.sequences, llm.generate(ids, max_new_tokens=3, do_sample=False))


# -- sampling ----------------------------------------------------------------------------------------------------


def test_samples_follow_from_the_seed(llm: CompiledLM) -> None:
    ids, settings = prompt(1, 6), {"max_new_tokens": 12, "do_sample": True, "top_k": 0}
    first = llm.generate(ids, seed=1, **settings)
    assert torch.equal(llm.generate(ids, seed=1, **settings), first)
    assert not torch.equal(llm.generate(ids, seed=2, **settings), first)
    torch.manual_seed(5)
    drawn = llm.generate(ids, **settings)
    assert not torch.equal(llm.generate(ids, **settings), drawn)
    torch.manual_seed(5)
    assert torch.equal(llm.generate(ids, **settings), drawn)
    two = llm.generate(ids, seed=1, num_return_sequences=2, **settings)
    assert two.shape == (2, 18) and not torch.equal(two[0], two[1])


def test_a_cold_sample_is_greedy(llm: CompiledLM) -> None:
    ids = prompt(2, 6)
    greedy = llm.generate(ids, max_new_tokens=6, do_sample=False)
    for settings in ({"temperature": 1e-4, "top_k": 0}, {"top_k": 1}, {"top_p": 1e-6, "top_k": 5}):
        out = llm.generate(ids, max_new_tokens=6, do_sample=True, seed=3, **settings)
        same_tokens(llm.eager, out, greedy)


# -- streams, turns, several models ------------------------------------------------------------------------------


def test_streaming(llm: CompiledLM) -> None:
    ids = prompt(2, 6)
    whole = llm.generate(ids, max_new_tokens=9, do_sample=False)
    before = llm.stats().steps
    tokens = llm.stream(ids, max_new_tokens=9, do_sample=False)
    first = next(tokens)
    assert llm.stats().steps == before  # the first token waits for no step
    assert torch.equal(torch.stack([first, *tokens], 1), whole[:, 6:])

    class Streamer:
        def __init__(self) -> None:
            self.columns: list[torch.Tensor] = []
            self.ended = False

        def put(self, tokens: torch.Tensor) -> None:
            self.columns.append(tokens)

        def end(self) -> None:
            self.ended = True

    streamer = Streamer()
    llm.generate(ids[:1], max_new_tokens=9, do_sample=False, streamer=streamer)
    assert streamer.ended and torch.equal(streamer.columns[0], ids[:1])
    assert torch.stack(streamer.columns[1:], 1).tolist() == whole[:1, 6:].tolist()


def test_a_stream_that_is_left_holds_nobody_up(llm: CompiledLM) -> None:
    tokens = llm.stream(prompt(2, 6), max_new_tokens=9, do_sample=False)
    seen = torch.stack([next(tokens) for _ in range(4)], 1)
    whole = both(llm, input_ids=prompt(2, 6), max_new_tokens=9)
    assert torch.equal(seen, whole[:, 6:10])
    with pytest.raises(GenerationInterrupted):
        next(tokens)
    stream = llm.stream(prompt(2, 6), max_new_tokens=9, do_sample=False)
    for _ in range(4):
        next(stream)
    stream.close()  # its tokens so far can be resumed
    assert torch.equal(llm.generate(resume=True, max_new_tokens=5, do_sample=False), whole)


def test_turns(llm: CompiledLM) -> None:
    """A conversation, one row of which ends early: what it said afterwards was padding, and must not be seen."""
    first, second = left_padded(prompt(2, 8), [8, 5]), left_padded(prompt(2, 4, seed=7), [2, 4])
    free = llm.generate(**first, max_new_tokens=6, do_sample=False)
    end = int(free[1, 10])
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": end, "pad_token_id": 0}
    said = llm.generate(**first, **settings)
    whole = llm.generate(**second, resume=True, max_new_tokens=7, do_sample=False, pad_token_id=0)
    mask = torch.cat([first["attention_mask"], torch.ones_like(said[:, 8:]), second["attention_mask"]], 1)
    for row in range(2):
        ends = (said[row, 8:] == end).nonzero()
        if len(ends):
            mask[row, 8 + int(ends[0]) + 1 : said.shape[1]] = 0
    ids = torch.cat([said, second["input_ids"]], 1)
    theirs = llm.eager.generate(ids, attention_mask=mask, max_new_tokens=7, do_sample=False, pad_token_id=0)
    same_tokens(llm.eager, whole, theirs, mask)
    assert llm.stats().fallbacks == ()
    llm.reset()
    with pytest.raises(NothingToResume):
        llm.generate(resume=True)


def test_two_models_at_once(llm: CompiledLM, model: Any) -> None:
    other = generation.compile(family("llama", seed=9), max_length=LENGTH, max_batch=1, chunk_sizes=CHUNKS)
    streams = [each.stream(prompt(1, 6), max_new_tokens=8, do_sample=False) for each in (llm, other)]
    pairs = list(zip(*streams, strict=True))
    for ours, net in zip(zip(*pairs, strict=True), (model, other.eager), strict=True):
        theirs = net.generate(prompt(1, 6), max_new_tokens=8, do_sample=False)
        same_tokens(net, torch.cat([prompt(1, 6), torch.stack(ours, 1)], 1), theirs)
    other.close()
    assert other.stats().cache_bytes == 0 and llm.stats().cache_bytes > 0


# -- what is refused, and what fails -----------------------------------------------------------------------------


def test_what_is_not_supported_is_named(llm: CompiledLM) -> None:
    for settings, named in (
        ({"num_beams": 4}, "beam search"),
        ({"prompt_lookup_num_tokens": 3}, "assisted generation"),
        ({"assistant_model": llm.eager}, "assistant_model"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        ({"guidance_scale": 2.0}, "guidance"),
        ({"use_cache": False}, "use_cache"),
    ):
        with pytest.raises(UnsupportedGeneration, match=named):
            llm.generate(prompt(1, 4), max_new_tokens=2, **settings)
    with pytest.raises(UnknownGenerationSetting, match="'max_new_tokens'"):
        llm.generate(prompt(1, 4), max_new_token=2)
    with pytest.raises(BadOptionValue, match="input_ids"):
        llm.generate(torch.zeros(1, 0, dtype=torch.long))
    with pytest.raises(NotACausalLM):
        generation.compile(torch.nn.Linear(2, 2))


def test_what_fails_is_decoded_in_eager(llm: CompiledLM, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = generation.compile(model, max_length=LENGTH, chunk_sizes=CHUNKS)
    whole = llm.generate(prompt(1, 6), max_new_tokens=9, do_sample=False)

    def fails(*_: Any) -> None:
        raise RuntimeError("no such device")

    stream = made.stream(prompt(1, 6), max_new_tokens=9, do_sample=False)
    tokens = [next(stream)]
    monkeypatch.setattr("burnish.generation.programs.Programs.decode", fails)
    tokens += stream
    assert torch.equal(torch.stack(tokens, 1), whole[:, 6:])
    assert [str(f) for f in made.stats().fallbacks] == ["generation: RuntimeError: no such device"]
    monkeypatch.undo()
    assert torch.equal(made.generate(prompt(1, 6), max_new_tokens=9, do_sample=False), whole)
    assert made.stats().notes == {"a request was decoded in eager": 1}


# -- the device ahead of the host, as on a GPU -------------------------------------------------------------------


def test_steps_that_ran_ahead_of_an_end_leave_no_trace(llm: CompiledLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.generation.run.Pace", lambda ahead: Pace(True))
    free = both(llm, input_ids=prompt(1, 6), max_new_tokens=30)
    before = llm.stats()
    end = int(free[0, 12])
    ended = both(llm, input_ids=prompt(1, 6), max_new_tokens=30, eos_token_id=end)
    stats = llm.stats()
    assert stats.wasted_steps > before.wasted_steps
    assert stats.steps - before.steps == ended.shape[1] - 6 - 1 + stats.wasted_steps - before.wasted_steps
    assert stats.looks - before.looks < ended.shape[1] - 6  # several tokens at once
    turn = prompt(1, 3, seed=5)
    whole = llm.generate(turn, resume=True, max_new_tokens=5, do_sample=False)
    theirs = llm.eager.generate(torch.cat([ended, turn], 1), max_new_tokens=5, do_sample=False)
    same_tokens(llm.eager, whole, theirs)


def test_steps_stay_compiled_where_the_model_is_set_otherwise_while_it_decodes() -> None:
    """As transformers does with experts on a GPU: what Dynamo guards on is there only inside the context."""
    model = family("qwen3_moe")
    sections = model.model.layers[0].mlp.experts.config

    @contextlib.contextmanager
    def decoding() -> Iterator[None]:
        before, sections._experts_implementation = sections._experts_implementation, "batched_mm"
        try:
            yield
        finally:
            sections._experts_implementation = before

    model._optimize_model_for_decode = decoding
    llm = generation.compile(model, max_length=LENGTH, chunk_sizes=CHUNKS, eager_first=False)
    llm.generate(prompt(1, 5), max_new_tokens=6, do_sample=False)
    assert not any("eager" in notice for p in llm.stats().programs for notice in p.notices), llm.stats()
    llm.close()
