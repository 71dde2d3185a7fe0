"""Parses one call of `generate` in transformers' terms: GenerationConfig, processors, criteria."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import GenerationConfig, GenerationMode, LogitsProcessorList
from transformers.generation import logits_process as hf

from burnish.errors import BadOptionValue, UnknownGenerationSetting, UnsupportedGeneration
from burnish.generation.selection import Choice, Selection
from burnish.options import nearest

_DEFAULT_NEW = 20  # tokens, as in transformers
_SEEDS = 1 << 32
# Results that would need more of each step than its token.
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
# Arguments of transformers' generate that are no fields of GenerationConfig.
_FOREIGN: Mapping[str, str] = {
    "assistant_model": "assisted generation (assistant_model)",
    "prefix_allowed_tokens_fn": "prefix_allowed_tokens_fn",
    "negative_prompt_ids": "classifier-free guidance (negative_prompt_ids)",
    "inputs_embeds": "prompts given as inputs_embeds",
    "past_key_values": "a cache of your own (past_key_values)",
    "custom_generate": "custom_generate",
    "synced_gpus": "synced_gpus",
}


@dataclass(frozen=True)
class Asked:
    """The arguments of `generate`, as given."""

    ids: torch.Tensor | None
    mask: torch.Tensor | None
    config: GenerationConfig | None = None
    processors: Sequence[Any] = ()
    criteria: Sequence[Any] = ()
    tokenizer: Any = None
    streamer: Any = None
    seed: int | None = None
    resume: bool = False
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Request:
    """The same, understood. `ids` and `mask` [batch, tokens] are on the host and begin with what was held before."""

    ids: torch.Tensor
    mask: torch.Tensor
    config: GenerationConfig
    max_new: int
    ends: tuple[int, ...]
    pad: int
    choice: Choice
    how: Selection
    processors: LogitsProcessorList | None  # to be run on the host; None: the device chooses by `how`
    criteria: tuple[Any, ...]
    user_processors: tuple[Any, ...]
    stops: tuple[str, ...]
    max_time: float | None
    tokenizer: Any
    streamer: Any

    @property
    def batch(self) -> int:
        return self.ids.shape[0]

    @property
    def total(self) -> int:
        return self.ids.shape[1]

    @property
    def padded(self) -> bool:
        return not bool(self.mask.all())

    @property
    def on_host(self) -> bool:
        """Whether each token waits for code of transformers' or the user's."""
        return self.processors is not None or bool(self.criteria)


def configured(model: Any, asked: Asked) -> GenerationConfig:
    """The settings in force: the call's, then the model's, then transformers' defaults."""
    settings = dict(asked.settings or {})
    for name, what in _FOREIGN.items():
        if settings.pop(name, None):
            raise UnsupportedGeneration(what)
    config, unknown = model._prepare_generation_config(asked.config, **settings)
    fields = [name for name in vars(GenerationConfig()) if not name.startswith("_")]
    for name in unknown:
        if name not in _OUTPUTS:
            raise UnknownGenerationSetting(name, nearest(name, fields))
    _check_supported(config)
    return config


def _check_supported(config: GenerationConfig) -> None:
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise UnsupportedGeneration(str(mode.value).replace("_", " "))
    if config.guidance_scale is not None and config.guidance_scale != 1:
        raise UnsupportedGeneration("classifier-free guidance (guidance_scale)")
    if getattr(config, "token_healing", None):
        raise UnsupportedGeneration("token_healing")
    for name in _OUTPUTS:
        if getattr(config, name, None):
            raise UnsupportedGeneration(name)
    if getattr(config, "watermarking_config", None) is not None:
        raise UnsupportedGeneration("watermarking")
    if config.use_cache is False:
        raise UnsupportedGeneration("use_cache=False", "it is the cache that makes it fast; leave the setting out")


def understood(
    model: Any, asked: Asked, config: GenerationConfig, ids: torch.Tensor, mask: torch.Tensor, vocabulary: int
) -> Request:
    """`ids` and `mask` are whole: what was held before, and what is new."""
    copies = int(config.num_return_sequences or 1)
    if copies > 1:
        if not config.do_sample:
            raise BadOptionValue("num_return_sequences", copies, "1 without do_sample=True: all of them would be equal")
        ids, mask = ids.repeat_interleave(copies, 0), mask.repeat_interleave(copies, 0)
    total = ids.shape[1]
    max_new = _new_tokens(model, asked, config, total)
    ends, pad = _special_tokens(config)
    stops = _stop_strings(config, asked.tokenizer)
    processors = _processors(model, asked, config, total, max_new, ends)
    choice = _choice(processors, total, _seed(asked.seed) if config.do_sample else 0)
    on_device = choice is not None
    if choice is None:  # all of the list is applied on the host; what is left is to choose by its scores
        choice = Choice(seed=_seed(asked.seed) if config.do_sample else 0)
    return Request(
        ids=ids,
        mask=mask,
        config=config,
        max_new=max_new,
        ends=ends,
        pad=pad,
        choice=choice,
        how=choice.selection(bool(config.do_sample), vocabulary),
        processors=None if on_device else processors,
        criteria=tuple(asked.criteria),
        user_processors=tuple(asked.processors),
        stops=stops,
        max_time=config.max_time,
        tokenizer=asked.tokenizer,
        streamer=asked.streamer,
    )


def _new_tokens(model: Any, asked: Asked, config: GenerationConfig, total: int) -> int:
    if config.max_new_tokens is not None:
        new = int(config.max_new_tokens)
    else:
        given = (asked.settings or {}).get("max_length")
        for source in (asked.config, model.generation_config):
            given = given if given is not None else getattr(source, "max_length", None)
        new = _DEFAULT_NEW if given is None else int(given) - total
    if new < 1:
        raise BadOptionValue(
            "max_length" if config.max_new_tokens is None else "max_new_tokens",
            config.max_length if config.max_new_tokens is None else new,
            f"enough for a new token after the {total} of the prompt",
        )
    return new


def _special_tokens(config: GenerationConfig) -> tuple[tuple[int, ...], int]:
    ends = config.eos_token_id
    listed = tuple(int(t) for t in (ends if isinstance(ends, (list, tuple)) else [ends]) if t is not None)
    pad = config.pad_token_id
    return listed, int(pad) if pad is not None else (listed[0] if listed else 0)


def _stop_strings(config: GenerationConfig, tokenizer: Any) -> tuple[str, ...]:
    stops = config.stop_strings
    if not stops:
        return ()
    if tokenizer is None:
        raise BadOptionValue("stop_strings", stops, "given together with tokenizer=, which is what reads the tokens")
    return (stops,) if isinstance(stops, str) else tuple(stops)


def _processors(
    model: Any, asked: Asked, config: GenerationConfig, total: int, max_new: int, ends: tuple[int, ...]
) -> LogitsProcessorList:
    """transformers' list for this configuration, with the user's own among them."""
    device = next(model.parameters()).device
    config.max_length = total + max_new
    config._eos_token_tensor = torch.tensor(ends, device=device) if ends else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no encoder is known
        return model._get_logits_processor(
            generation_config=config,
            input_ids_seq_length=total,
            logits_processor=LogitsProcessorList(asked.processors),
            device=device,
            model_kwargs={},
        )


# What the decode step does itself: how each of transformers' processors is said in numbers.
_ON_DEVICE: Mapping[type, Callable[[Any], dict[str, float]]] = {
    hf.TemperatureLogitsWarper: lambda p: {"temperature": float(p.temperature)},
    hf.TopKLogitsWarper: lambda p: {"top_k": int(p.top_k)},
    hf.TopPLogitsWarper: lambda p: {"top_p": float(p.top_p)},
    hf.MinPLogitsWarper: lambda p: {"min_p": float(p.min_p)},
    hf.RepetitionPenaltyLogitsProcessor: lambda p: {"penalty": float(p.penalty)},
    hf.MinLengthLogitsProcessor: lambda p: {"min_length": int(p.min_length)},
    hf.MinNewTokensLengthLogitsProcessor: lambda p: {
        "min_length": int(p.prompt_length_to_skip) + int(p.min_new_tokens)
    },
}


def _choice(processors: LogitsProcessorList, total: int, seed: int) -> Choice | None:
    """The list in numbers; None where something in it is not the decode step's to do."""
    numbers: dict[str, Any] = {"seed": seed}
    for processor in processors:
        if type(processor) not in _ON_DEVICE:
            return None
        for name, value in _ON_DEVICE[type(processor)](processor).items():
            numbers[name] = max(value, numbers[name]) if name == "min_length" and name in numbers else value
    return Choice(**numbers)


def _seed(given: int | None) -> int:
    """Without a seed, torch's own generator on the host gives one: torch.manual_seed decides all draws."""
    return int(torch.randint(_SEEDS, (), dtype=torch.long)) if given is None else int(given)
