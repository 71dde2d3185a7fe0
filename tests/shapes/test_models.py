"""Which models' inputs may be padded: real code from `transformers`, one layer each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

from burnish.capture.proof_graphs import Key, ProofGraph, captured_for_proof
from burnish.shapes.content import Number
from burnish.shapes.padding import Proof
from tests.models import zoo
from tests.shapes.cases import padded_to

BATCH, LENGTH = 3, 11
IDS = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) * 7 % 90 + 3
MASK = torch.ones(BATCH, LENGTH, dtype=torch.long)
MASK[1, -4:] = 0
BOTH = {name: {"input_ids": d, "attention_mask": d} for d, name in enumerate(("batch", "sequence"))}
IDS_ALONE = {name: {"input_ids": d} for d, name in enumerate(("batch", "sequence"))}


def captured(
    model: Any, *args: Any, dims: Mapping[str, Mapping[Key, int]], grad: bool = False, **kwargs: Any
) -> ProofGraph:
    with torch.set_grad_enabled(grad):
        return captured_for_proof(model, args, kwargs, dims=dims)


def proof_of(model: Any, *args: Any, dims: Mapping[str, Mapping[Key, int]], **kwargs: Any) -> Proof:
    return captured(model, *args, dims=dims, **kwargs).prove()


def text_model(kind: type[nn.Module], config: type, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(zoo.small(config, num_hidden_layers=1, **more)).eval()


def bert() -> nn.Module:
    return text_model(hf.BertModel, hf.BertConfig, add_pooling_layer=False)


def llama() -> nn.Module:
    return text_model(hf.LlamaForCausalLM, hf.LlamaConfig, use_cache=False, **zoo.GROUPED)


def same_when_padded(
    model: nn.Module, graph: ProofGraph, inputs: Mapping[str, torch.Tensor], sizes: dict[int, int]
) -> None:
    """What the caller does with a proof gives what the model gives."""
    proof = graph.prove()
    assert proof.safe, proof
    with torch.no_grad():
        expected = model(**inputs)[0]
        found = model(**{name: padded_to(x, sizes) for name, x in inputs.items()})[0]
    real = {graph.symbols["batch"]: BATCH, graph.symbols["sequence"]: LENGTH}
    for dim, size in proof.outputs[0].sizes(real).items():
        found = found.narrow(dim, 0, size)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_bert_with_a_mask() -> None:
    model, inputs = bert(), {"input_ids": IDS, "attention_mask": MASK}
    graph = captured(model, dims=BOTH, **inputs)
    same_when_padded(model, graph, inputs, {LENGTH: 16, BATCH: 4})
    assert {"fill", "finite"} <= {n.kind for n in graph.prove().needs}
    assert not graph.prove(fills={"attention_mask": 1}).safe


def test_bert_without_a_mask_is_refused_with_its_line() -> None:
    proof = proof_of(bert(), dims=IDS_ALONE, input_ids=IDS)
    (refusal,) = proof.refusals
    assert "attention" in refusal.operation and "there is no mask" in refusal.reason
    assert refusal.line.startswith("integrations/sdpa_attention.py:")


def test_a_causal_model_needs_no_mask() -> None:
    model, inputs = llama(), {"input_ids": IDS}
    same_when_padded(model, captured(model, dims=IDS_ALONE, **inputs), inputs, {LENGTH: 16, BATCH: 4})


def test_gpt2_needs_none_either() -> None:
    config = hf.GPT2Config(vocab_size=zoo.VOCABULARY, n_embd=32, n_layer=1, n_head=4, n_positions=64, use_cache=False)
    assert proof_of(hf.GPT2LMHeadModel(config).eval(), dims=IDS_ALONE, input_ids=IDS).safe


def test_a_t5_encoder() -> None:
    config = hf.T5Config(vocab_size=zoo.VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    model = hf.T5EncoderModel(config).eval()
    proof = proof_of(model, dims=BOTH, input_ids=IDS, attention_mask=MASK)
    assert proof.safe and "unmasked" in {n.kind for n in proof.needs}


def test_a_batch_of_images() -> None:
    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=8
    )
    images = torch.randn(BATCH, 3, 16, 16)
    assert proof_of(hf.ViTModel(config).eval(), dims={"batch": {0: 0}}, *[images]).safe  # noqa: B026


def test_images_of_a_convolutional_network() -> None:
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], num_labels=5, layer_type="basic")
    model, images = hf.ResNetForImageClassification(config).eval(), torch.randn(BATCH, 3, 32, 40)
    assert proof_of(model, images, dims={"batch": {0: 0}}).safe
    refused = proof_of(model, images, dims={"width": {0: 3}})
    assert not refused.safe and "dimension width" in str(refused)


def test_batch_norm_in_training_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    proof = proof_of(model, torch.randn(BATCH, 3, 8, 8), dims={"batch": {0: 0}})
    assert "takes the mean and variance over the dimension batch" in str(proof)


def test_a_recurrent_network_has_no_graph() -> None:
    graph = captured(nn.LSTM(4, 6, batch_first=True), torch.randn(BATCH, LENGTH, 4), dims={"sequence": {0: 1}})
    assert graph.captured is None and "LSTM" in graph.problem


LABELLED = {name: {"ids": d, "labels": d} for d, name in enumerate(("batch", "sequence"))}


@pytest.mark.parametrize(("fill", "safe"), [(-100, True), (0, False)])
def test_a_training_step_ignores_labels_of_the_padding(fill: Number, safe: bool) -> None:
    model = nn.Sequential(nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 20))

    def loss(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())

    graph = captured(loss, dims=LABELLED, grad=True, ids=IDS % 20, labels=IDS % 20)
    assert graph.prove(fills={"labels": fill}).safe is safe


def test_a_training_step_with_attention_pads_its_sequence() -> None:
    model = text_model(hf.BertForMaskedLM, hf.BertConfig).train()
    dims = {name: {**places, "labels": d} for d, (name, places) in enumerate(BOTH.items())}
    graph = captured(model, dims=dims, grad=True, input_ids=IDS, attention_mask=MASK, labels=IDS)
    assert graph.prove(["sequence"], {"labels": -100}).safe, graph.prove(["sequence"], {"labels": -100})
    # Rows of a padded batch see nothing, and the gradients of attention to nothing are not known.
    assert not graph.prove(["batch"], {"labels": -100}).safe
