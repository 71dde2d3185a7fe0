"""`generation.compile`'s result: a Hugging Face causal language model whose decoding is compiled."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import GenerationConfig

from burnish.errors import BadOptionValue, GenerationInterrupted, NotACausalLM, NothingToResume, UsageError
from burnish.generation.buckets import CHUNKS
from burnish.generation.request import Asked, Request, configured, understood
from burnish.generation.run import Run
from burnish.generation.stats import GenerationStats, Record
from burnish.generation.store import Store
from burnish.observe.log import failure_reason
from burnish.stats import Fallback


@dataclass(frozen=True)
class Held:
    """The conversation so far, on the host. The cache holds the first `cached` tokens."""

    ids: torch.Tensor
    mask: torch.Tensor
    cached: int


class CompiledLM:
    """`generate` gives what the eager model's `generate` would; `stream` gives tokens as they come; `eager` is the
    model itself. One request runs at a time: a cache belongs to one conversation."""

    def __init__(
        self,
        model: Any,
        *,
        max_length: int | None = None,
        max_batch: int | None = None,
        chunk_sizes: Sequence[int] = CHUNKS,
        mode: str | None = None,
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        eager_first: bool = True,
    ) -> None:
        model = _original(model)
        _check_model(model)
        for option, value in (
            ("max_length", max_length),
            ("max_batch", max_batch),
            *((("chunk_sizes", c)) for c in chunk_sizes),
        ):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadOptionValue(option, value, "a whole number of at least 1")
        self.eager = model
        self.name = name or type(model).__name__
        given = dict(settings or {})
        if not given.get("options"):
            given["mode"] = mode or ("reduce-overhead" if _device(model).type == "cuda" else None)
        elif mode is not None:
            given["mode"] = mode
        self._store = Store(
            model, max_length=max_length, max_batch=max_batch, chunk_sizes=chunk_sizes, settings=given, name=self.name,
            eager_first=eager_first,
        )  # fmt: skip
        self._record = Record()
        self._held: Held | None = None
        self._lock = threading.RLock()  # held while a request works, not while a stream's reader does
        self._ticket = 0

    def generate(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        *,
        generation_config: GenerationConfig | None = None,
        logits_processor: Sequence[Any] | None = None,
        stopping_criteria: Sequence[Any] | None = None,
        tokenizer: Any = None,
        streamer: Any = None,
        seed: int | None = None,
        resume: bool = False,
        **settings: Any,
    ) -> Any:
        """The whole sequences [batch, tokens], prompt included, as the model's own `generate` returns them.

        `settings` are fields of GenerationConfig. `seed` decides all draws of `do_sample=True`; without it, torch's
        generator on the host does. With `resume=True` the new tokens continue what the cache holds, and `input_ids`,
        if any, is what comes in between."""
        asked = Asked(
            input_ids, attention_mask, generation_config, tuple(logits_processor or ()), tuple(stopping_criteria or ()),
            tokenizer, streamer, seed, resume, settings,
        )  # fmt: skip
        with self._lock:
            request, held = self._request(asked)
            new = list(self._tokens(request, held))
            sequences = torch.cat([request.ids, *new], 1).to(_device(self.eager))
        if request.config.return_dict_in_generate:
            from transformers.generation import GenerateDecoderOnlyOutput

            return GenerateDecoderOnlyOutput(sequences=sequences)
        return sequences

    def stream(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        *,
        generation_config: GenerationConfig | None = None,
        logits_processor: Sequence[Any] | None = None,
        stopping_criteria: Sequence[Any] | None = None,
        tokenizer: Any = None,
        seed: int | None = None,
        resume: bool = False,
        **settings: Any,
    ) -> Iterator[torch.Tensor]:
        """New tokens as they come: for each step a tensor [batch] on the host, the first one as soon as it exists.
        Arguments are those of `generate`. What is wrong with them is raised here, not at the first token."""
        asked = Asked(
            input_ids, attention_mask, generation_config, tuple(logits_processor or ()), tuple(stopping_criteria or ()),
            tokenizer, None, seed, resume, settings,
        )  # fmt: skip
        with self._lock:
            request, held = self._request(asked)
        return self._columns(request, held)

    def _columns(self, request: Request, held: int) -> Iterator[torch.Tensor]:
        columns = self._tokens(request, held)
        while True:
            with self._lock:
                tokens = next(columns, None)
            if tokens is None:
                return
            yield from tokens.unbind(1)

    # -- one request ---------------------------------------------------------------------------------------------

    def _request(self, asked: Asked) -> tuple[Request, int]:
        """The parsed request, and the number of its tokens that the cache already holds."""
        config = configured(self.eager, asked)
        ids, mask, cached = self._whole(asked)
        request = understood(self.eager, asked, config, ids, mask, self._vocabulary())
        self._store.check(request.batch, request.total, request.max_new)
        return request, cached

    def _whole(self, asked: Asked) -> tuple[torch.Tensor, torch.Tensor, int]:
        ids, mask = _on_host(asked.ids, asked.mask)
        if not asked.resume:
            if ids is None or mask is None or ids.shape[1] == 0:
                raise BadOptionValue("input_ids", None, "a tensor [batch, tokens] with at least one token")
            return ids, mask, 0
        held = self._held
        if held is None:
            raise NothingToResume("nothing was generated yet")
        if ids is None or mask is None:
            return held.ids, held.mask, held.cached
        if ids.shape[0] != held.ids.shape[0]:
            raise NothingToResume(f"the cache holds a batch of {held.ids.shape[0]}, and this is one of {ids.shape[0]}")
        return torch.cat([held.ids, ids], 1), torch.cat([held.mask, mask], 1), held.cached

    def _vocabulary(self) -> int:
        head = self.eager.get_output_embeddings()
        return int(head.out_features if hasattr(head, "out_features") else head.weight.shape[0])

    def _tokens(self, request: Request, cached: int) -> Iterator[torch.Tensor]:
        """New tokens [batch, n], as they become known; from eager, should ours fail."""
        self._ticket += 1
        ticket = self._ticket
        self._record.requests += 1
        self._held = None  # until it is known what the cache holds
        if request.streamer is not None:
            request.streamer.put(request.ids)
        done: list[torch.Tensor] = []
        run: Run | None = None
        try:
            try:
                programs = self._store.programs(request.batch, request.total, request.max_new, keep=cached)
                run = Run(request, programs, self._store.chunk_sizes, cached, self._record)
                for tokens in self._noted(request, run):
                    done.append(tokens)
                    yield tokens
                    if self._ticket != ticket:
                        raise GenerationInterrupted()
            except UsageError:
                raise
            except Exception as error:
                self._record.fell_back(Fallback("generation", failure_reason(error)))
                run = None
                yield from self._in_eager(request, done)
        finally:
            if self._ticket == ticket:
                self._remember(request, done, run)
            if request.streamer is not None:
                request.streamer.end()

    def _noted(self, request: Request, run: Run) -> Iterator[torch.Tensor]:
        if request.processors is not None:
            self._record.notes["a LogitsProcessor ran on the host after every step"] += 1
        if request.criteria:
            self._record.notes["a StoppingCriteria ran on the host after every step"] += 1
        for tokens in run.tokens():
            if request.streamer is not None:
                for column in tokens.unbind(1):
                    request.streamer.put(column)
            yield tokens

    def _remember(self, request: Request, done: list[torch.Tensor], run: Run | None) -> None:
        new = torch.cat(done, 1) if done else request.ids[:, :0]
        ids = torch.cat([request.ids, new], 1)
        self._record.new_tokens += new.numel()
        if run is None:  # the cache is not to be trusted; resuming runs all of it again
            self._held = Held(ids, torch.cat([request.mask, torch.ones_like(new, dtype=torch.bool)], 1), 0)
            return
        mask = torch.cat([request.mask, run.ends.mask()[:, : new.shape[1]]], 1)
        self._held = Held(ids, mask, ids.shape[1] - 1 if done else 0)  # the last token has not been run
        self._record.last = run.timing()

    def _in_eager(self, request: Request, done: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The rest of the request by the model's own `generate`."""
        device = _device(self.eager)
        new = torch.cat(done, 1) if done else request.ids[:, :0]
        ids = torch.cat([request.ids, new], 1).to(device)
        mask = torch.cat([request.mask, torch.ones_like(new, dtype=torch.bool)], 1).long().to(device)
        settings = request.config.to_dict()
        for name in ("max_length", "num_return_sequences", "cache_implementation", "return_dict_in_generate"):
            settings.pop(name, None)
        config = GenerationConfig.from_dict(settings)
        config.max_new_tokens = request.max_new - new.shape[1]
        config.num_return_sequences = 1
        config.pad_token_id = request.pad
        out = self.eager.generate(
            ids,
            attention_mask=mask,
            generation_config=config,
            logits_processor=list(request.user_processors),
            stopping_criteria=list(request.criteria),
            tokenizer=request.tokenizer,
        )
        rest = out[:, ids.shape[1] :].cpu()
        if request.streamer is not None:
            for column in rest.unbind(1):
                request.streamer.put(column)
        done.append(rest)
        yield rest

    # -- the rest ------------------------------------------------------------------------------------------------

    def stats(self) -> GenerationStats:
        store = self._store
        slot_bytes = store.shape.slot_bytes if store.cache_bytes else 0
        return self._record.snapshot(self.name, store.length, store.rows, store.cache_bytes, slot_bytes, store.stats())

    def reset(self) -> None:
        """Forget the conversation; cache and programs stay."""
        self._held = None

    def close(self) -> None:
        """Free the cache, the programs and their memory. A later call makes new ones."""
        with self._lock:
            self._held = None
            self._store.close()

    def __repr__(self) -> str:
        return f"<{self.name}, decoding compiled by burnish: {self._record.requests} requests>"


def _device(model: Any) -> torch.device:
    return next(model.parameters()).device


def _original(model: Any) -> Any:
    """A model that burnish.compile or torch.compile returned is compiled from its original."""
    from burnish.identity import handle_of_module

    if not isinstance(model, torch.nn.Module):
        return model
    handle = handle_of_module(model)
    return handle.eager if handle is not None else getattr(model, "_orig_mod", model)


def _check_model(model: Any) -> None:
    config = getattr(model, "config", None)
    is_module = isinstance(model, torch.nn.Module)
    if not is_module or config is None or not callable(getattr(model, "generate", None)):
        raise NotACausalLM(model, "is not one")
    if getattr(config, "is_encoder_decoder", False):
        raise NotACausalLM(model, "has an encoder")
    if model.get_output_embeddings() is None:
        raise NotACausalLM(model, "has no head that gives logits")


def _on_host(ids: torch.Tensor | None, mask: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if ids is None:
        return None, None
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.is_floating_point():
        raise BadOptionValue("input_ids", getattr(ids, "shape", ids), "a tensor [batch, tokens] of integers")
    if mask is None:
        return ids.cpu().long(), torch.ones(ids.shape, dtype=torch.bool)
    if mask.shape != ids.shape:
        raise BadOptionValue("attention_mask", tuple(mask.shape), f"of the shape of input_ids, {tuple(ids.shape)}")
    return ids.cpu().long(), mask.cpu().bool()
