"""Hugging Face's `generate`, which calls the model it is a method of."""

import pytest
import torch

import burnish

transformers = pytest.importorskip("transformers")


@pytest.fixture
def llama():
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.slow
def test_generate(llama):
    compiled = burnish.compile(llama, dynamic=True)
    prompt = torch.randint(0, 128, (1, 6))
    arguments = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(compiled.generate(prompt, **arguments), llama.generate(prompt, **arguments))
    assert burnish.stats(compiled).compiles >= 1
    assert isinstance(compiled, transformers.PreTrainedModel) and compiled.config is llama.config


@pytest.mark.slow
def test_output_classes(llama):
    compiled = burnish.compile(llama)
    ids = torch.randint(0, 128, (2, 5))
    with torch.no_grad():
        ours, theirs = compiled(ids, labels=ids), llama(ids, labels=ids)
    assert type(ours) is type(theirs)
    torch.testing.assert_close(ours.logits, theirs.logits)
    torch.testing.assert_close(ours["loss"], theirs["loss"])


@pytest.mark.slow
def test_save_pretrained(llama, tmp_path):
    burnish.compile(llama).save_pretrained(tmp_path)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.lm_head.weight, llama.lm_head.weight)
