"""Small random models of many architectures: real code from `transformers`, sizes that run in milliseconds.

An entry makes a model and the arguments of one call. Nothing is downloaded: weights are random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

Inputs = dict[str, torch.Tensor]
VOCABULARY, BATCH, LENGTH = 99, 2, 7


@dataclass(frozen=True)
class Architecture:
    family: str
    make: Callable[[], tuple[nn.Module, Inputs]]
    draws_layers: bool = False  # in training it asks a random number whether to skip a layer: that splits the graph


def text(**more: torch.Tensor) -> Inputs:
    ids = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) * 7 % (VOCABULARY - 3) + 3
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask, **more}


def image(size: int = 16, name: str = "pixel_values") -> Inputs:
    count = BATCH * 3 * size * size
    return {name: torch.linspace(-3, 3, count).sin().reshape(BATCH, 3, size, size)}


def small(config: type, **more: Any) -> Any:
    """A configuration of two layers, 32 wide, whatever the family calls these."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    }
    return config(**{**sizes, **QUIET, **more})


# Dropout off, so that a training step can be compared; token numbers that exist in the small vocabulary.
QUIET: dict[str, Any] = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}


def bert() -> tuple[nn.Module, Inputs]:
    return hf.BertForMaskedLM(small(hf.BertConfig)), text()


def roberta() -> tuple[nn.Module, Inputs]:
    return hf.RobertaForSequenceClassification(small(hf.RobertaConfig)), text()


def distilbert() -> tuple[nn.Module, Inputs]:
    config = hf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48, dropout=0.0, attention_dropout=0.0
    )
    return hf.DistilBertForTokenClassification(config), text()


def electra() -> tuple[nn.Module, Inputs]:
    return hf.ElectraForPreTraining(small(hf.ElectraConfig, embedding_size=24)), text()


def albert() -> tuple[nn.Module, Inputs]:
    return hf.AlbertModel(small(hf.AlbertConfig, embedding_size=16)), text()


def deberta() -> tuple[nn.Module, Inputs]:
    config = small(
        hf.DebertaV2Config, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
        pooler_dropout=0.0, share_att_key=True, norm_rel_ebd="layer_norm",
    )  # fmt: skip
    return hf.DebertaV2Model(config), text()


def modernbert() -> tuple[nn.Module, Inputs]:
    config = small(hf.ModernBertConfig, local_attention=4, cls_token_id=1, sep_token_id=2, mlp_dropout=0.0)
    return hf.ModernBertModel(config), text()


def gpt2() -> tuple[nn.Module, Inputs]:
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return hf.GPT2LMHeadModel(config), text()


def llama() -> tuple[nn.Module, Inputs]:
    return hf.LlamaForCausalLM(small(hf.LlamaConfig, **GROUPED)), text()


def mistral() -> tuple[nn.Module, Inputs]:
    return hf.MistralForCausalLM(small(hf.MistralConfig, sliding_window=4, **GROUPED)), text()


def qwen2() -> tuple[nn.Module, Inputs]:
    return hf.Qwen2ForCausalLM(small(hf.Qwen2Config, **GROUPED)), text()


def qwen3() -> tuple[nn.Module, Inputs]:
    return hf.Qwen3ForCausalLM(small(hf.Qwen3Config, **GROUPED)), text()


def gemma2() -> tuple[nn.Module, Inputs]:
    config = small(hf.Gemma2Config, sliding_window=4, query_pre_attn_scalar=8, **GROUPED)
    return hf.Gemma2ForCausalLM(config), text()


def phi3() -> tuple[nn.Module, Inputs]:
    return hf.Phi3ForCausalLM(small(hf.Phi3Config, num_key_value_heads=2, resid_pdrop=0.0, embd_pdrop=0.0)), text()


def opt() -> tuple[nn.Module, Inputs]:
    config = small(hf.OPTConfig, ffn_dim=48, word_embed_proj_dim=32, dropout=0.0)
    return hf.OPTForCausalLM(config), text()


def gpt_neox() -> tuple[nn.Module, Inputs]:
    return hf.GPTNeoXForCausalLM(small(hf.GPTNeoXConfig, hidden_dropout=0.0)), text()


def falcon() -> tuple[nn.Module, Inputs]:
    return hf.FalconForCausalLM(small(hf.FalconConfig, hidden_dropout=0.0, alibi=False)), text()


def bloom() -> tuple[nn.Module, Inputs]:
    config = hf.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0.0, attention_dropout=0.0
    )
    return hf.BloomForCausalLM(config), text()


def t5() -> tuple[nn.Module, Inputs]:
    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", decoder_start_token_id=0,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config), text(decoder_input_ids=text()["input_ids"][:, :5])


def _bart_sizes() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "max_position_embeddings": 64, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
    }  # fmt: skip


def bart() -> tuple[nn.Module, Inputs]:
    ids = text()["input_ids"][:, :5]
    return hf.BartForConditionalGeneration(hf.BartConfig(**_bart_sizes())), text(decoder_input_ids=ids)


def marian() -> tuple[nn.Module, Inputs]:
    ids = text()["input_ids"][:, :5]
    return hf.MarianMTModel(hf.MarianConfig(**_bart_sizes())), text(decoder_input_ids=ids)


def mixtral() -> tuple[nn.Module, Inputs]:
    config = small(hf.MixtralConfig, num_local_experts=4, num_experts_per_tok=2, **GROUPED)
    return hf.MixtralForCausalLM(config), text()


def qwen3_moe() -> tuple[nn.Module, Inputs]:
    config = small(
        hf.Qwen3MoeConfig,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        decoder_sparse_step=1,
        **GROUPED,
    )
    return hf.Qwen3MoeForCausalLM(config), text()


def vit() -> tuple[nn.Module, Inputs]:
    return hf.ViTForImageClassification(small(hf.ViTConfig, image_size=16, patch_size=4)), image()


def swin() -> tuple[nn.Module, Inputs]:
    config = hf.SwinConfig(
        image_size=16, patch_size=2, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=4, drop_path_rate=0.0
    )
    return hf.SwinForImageClassification(config), image()


def convnext() -> tuple[nn.Module, Inputs]:
    config = hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, image_size=16, drop_path_rate=0.0)
    return hf.ConvNextForImageClassification(config), image()


def resnet() -> tuple[nn.Module, Inputs]:
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic")
    return hf.ResNetForImageClassification(config), image()


def clip() -> tuple[nn.Module, Inputs]:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = hf.CLIPConfig(
        text_config={"vocab_size": VOCABULARY, "max_position_embeddings": 16, "eos_token_id": 2, **sizes},
        vision_config={"image_size": 16, "patch_size": 8, **sizes},
        projection_dim=16,
    )
    return hf.CLIPModel(config), {**text(), **image()}


def wav2vec2() -> tuple[nn.Module, Inputs]:
    config = small(
        hf.Wav2Vec2Config, conv_dim=[16, 16], conv_kernel=[6, 3], conv_stride=[4, 2], num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2, num_feat_extract_layers=2, hidden_dropout=0.0, feat_proj_dropout=0.0,
        layerdrop=0.0, apply_spec_augment=False, activation_dropout=0.0, final_dropout=0.0,
    )  # fmt: skip
    return hf.Wav2Vec2ForCTC(config), {"input_values": torch.linspace(0, 40, BATCH * 120).sin().reshape(BATCH, 120)}


def whisper() -> tuple[nn.Module, Inputs]:
    sizes = _bart_sizes()
    sizes.pop("max_position_embeddings")
    config = hf.WhisperConfig(
        **sizes, num_mel_bins=10, max_source_positions=12, max_target_positions=16, apply_spec_augment=False
    )
    features = torch.linspace(0, 30, BATCH * 10 * 24).cos().reshape(BATCH, 10, 24)
    ids = text()["input_ids"][:, :5]
    return hf.WhisperForConditionalGeneration(config), {"input_features": features, "decoder_input_ids": ids}


def mamba() -> tuple[nn.Module, Inputs]:
    config = hf.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, use_mambapy=False, pad_token_id=0
    )
    return hf.MambaForCausalLM(config), {"input_ids": text()["input_ids"][:, :4]}


def mamba2() -> tuple[nn.Module, Inputs]:
    config = hf.Mamba2Config(
        vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, num_heads=4, head_dim=8, n_groups=2,
        expand=2, chunk_size=4, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return hf.Mamba2ForCausalLM(config), {"input_ids": text()["input_ids"]}


ARCHITECTURES: dict[str, Architecture] = {
    make.__name__: Architecture(family, make, draws_layers=make in (opt, bart, marian, wav2vec2, whisper))
    for family, makes in {
        "encoder": (bert, roberta, distilbert, electra, albert, deberta, modernbert),
        "decoder": (gpt2, llama, mistral, qwen2, qwen3, gemma2, phi3, opt, gpt_neox, falcon, bloom),
        "encoder-decoder": (t5, bart, marian),
        "mixture of experts": (mixtral, qwen3_moe),
        "vision": (vit, swin, convnext, resnet, clip),
        "audio": (wav2vec2, whisper),
        "state space": (mamba, mamba2),
    }.items()
    for make in makes
}
