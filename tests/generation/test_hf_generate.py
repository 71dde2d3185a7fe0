"""`hf_model.generate(..., cache_implementation="static")` after `burnish.compile(hf_model)`."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import CompileConfig

import burnish
from tests.generation.tiny import family, left_padded, prompt, same_tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "compiles"),
    [
        ("llama", 2),  # the prompt, a step
        ("mistral", 3),  # and a step whose window is full
    ],
)
def test_a_static_cache(name: str, compiles: int) -> None:
    model = family(name)
    compiled = burnish.compile(copy.deepcopy(model))
    settings = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static"}
    for seed in (1, 2):
        inputs = left_padded(prompt(2, 4, seed), [4, 3])
        ours, theirs = (each.generate(**inputs, **settings) for each in (compiled, model))
        same_tokens(model, ours, theirs, inputs["attention_mask"])
    stats = burnish.stats(compiled)
    assert stats.compiles == compiles and stats.fallbacks == () and stats.graph_breaks == (), stats
    assert {variant.engine for variant in stats.variants} == {"burnish"}


@pytest.mark.slow
def test_where_generate_compiles_by_itself_it_takes_ours() -> None:
    """As it does on a GPU: there is one compiler too many, and the one that was asked for is ours."""
    model = family("llama")
    compiled = burnish.compile(copy.deepcopy(model))
    everywhere = CompileConfig(backend="burnish")
    everywhere._compile_all_devices = True
    ids = prompt(1, 5)
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static"}
    before = burnish.stats().compiles  # of all that goes through torch.compile
    ours = compiled.generate(ids, compile_config=everywhere, **settings)
    assert torch.equal(ours, model.generate(ids, **settings))
    stats = burnish.stats(compiled)
    assert stats.compiles == 2 and {variant.engine for variant in stats.variants} == {"burnish"}, stats
    assert burnish.stats().compiles == before
    assert compiled.get_compiled_call(everywhere) == compiled.__call__
