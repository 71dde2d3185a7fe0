"""Language models of one or two layers with few words, one for each family that `generation` promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from tests.models.zoo import GROUPED, QUIET

VOCABULARY = 61
CHUNKS = (16,)


def sizes(**more: Any) -> dict[str, Any]:
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
    }
    return {**common, **QUIET, "eos_token_id": None, "pad_token_id": None, **more}


def gpt2() -> Any:
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=None
    )
    return hf.GPT2LMHeadModel(config)


def moe(config: type, model: type, **more: Any) -> Any:
    return model(config(**sizes(num_experts_per_tok=2, **GROUPED, **more)))


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**sizes(**GROUPED))),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**sizes(sliding_window=6, **GROUPED))),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**sizes(**GROUPED))),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**sizes(**GROUPED))),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**sizes(sliding_window=6, query_pre_attn_scalar=8, num_hidden_layers=2, **GROUPED))
    ),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(
            **sizes(
                sliding_window=6,
                query_pre_attn_scalar=8,
                num_hidden_layers=2,
                layer_types=["sliding_attention", "full_attention"],
                **GROUPED,
            )
        )
    ),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**sizes(num_key_value_heads=2, resid_pdrop=0.0, embd_pdrop=0.0))),
    "gpt2": gpt2,
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**sizes(hidden_dropout=0.0))),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(**sizes(ffn_dim=48, word_embed_proj_dim=32, dropout=0.0, pad_token_id=1))
    ),
    "falcon": lambda: hf.FalconForCausalLM(hf.FalconConfig(**sizes(hidden_dropout=0.0, alibi=False))),
    "stablelm": lambda: hf.StableLmForCausalLM(hf.StableLmConfig(**sizes(num_key_value_heads=2))),
    "olmo": lambda: hf.OlmoForCausalLM(hf.OlmoConfig(**sizes(num_key_value_heads=2))),
    "granite": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**sizes(num_key_value_heads=2))),
    # not promised by name: neighbours of a head are rotated, not its halves
    "cohere": lambda: hf.CohereForCausalLM(hf.CohereConfig(**sizes(num_key_value_heads=2))),
    "mixtral": lambda: moe(hf.MixtralConfig, hf.MixtralForCausalLM, num_local_experts=4),
    "qwen3_moe": lambda: moe(
        hf.Qwen3MoeConfig, hf.Qwen3MoeForCausalLM, num_experts=4, moe_intermediate_size=24, decoder_sparse_step=1
    ),
}


def family(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return FAMILIES[name]().eval()


def prompt(batch: int = 2, tokens: int = 7, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, tokens), generator=generator)


def left_padded(ids: torch.Tensor, lengths: list[int], pad: int = 0) -> dict[str, torch.Tensor]:
    """The last `lengths[row]` tokens of each row, with padding before them."""
    mask = torch.arange(ids.shape[1]) >= ids.shape[1] - torch.tensor(lengths).unsqueeze(-1)
    return {"input_ids": ids.where(mask, pad), "attention_mask": mask.long()}


def same_tokens(model: Any, ours: torch.Tensor, theirs: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    """Equal, or different from a token on that eager itself cannot tell from ours: a tie in its logits."""
    assert ours.shape == theirs.shape
    for row in range(ours.shape[0]):
        differs = (ours[row] != theirs[row]).nonzero()
        if not len(differs):
            continue
        at = int(differs[0])
        seen = torch.ones(1, at, dtype=torch.long)
        if mask is not None:
            seen[:, : mask.shape[1]] = mask[row]
        with torch.no_grad():
            positions = (seen.cumsum(-1) - 1).clamp(min=0)
            logits = model(theirs[row : row + 1, :at], attention_mask=seen, position_ids=positions).logits[0, -1]
        gap = float(logits[theirs[row, at]] - logits[ours[row, at]])
        assert gap <= 1e-5 * float(logits.abs().max()), f"row {row}, token {at}: {ours[row]} instead of {theirs[row]}"
