"""The compiled programs: a prompt's chunk of each length, and the decode step of each kind. Made when first wanted."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import burnish
from burnish.errors import NothingToSeal
from burnish.generation.buckets import Chunk
from burnish.generation.cache import cache_over
from burnish.generation.selection import Selection
from burnish.generation.state import State
from burnish.handle import close_all
from burnish.stats import Stats

Program = Callable[[], None]


@dataclass(frozen=True)
class Words:
    """The optional arguments of a step that the model's forward accepts."""

    position_ids: bool
    logits_to_keep: bool

    @staticmethod
    def of(model: Any) -> Words:
        known = inspect.signature(type(model).forward).parameters
        return Words("position_ids" in known, "logits_to_keep" in known)


@dataclass
class _Made:
    """A program, sealed after its first call and settled after its second."""

    call: Program
    calls: int = 0


class Programs:
    """Programs over one set of buffers. `settings` are further arguments of `burnish.compile`.

    With `eager_first`, chunks of a kind that no prompt had before run in eager, over the same buffers: the first token
    does not wait for a compiler, and a length that never comes again gets no program."""

    def __init__(
        self, model: Any, state: State, settings: Mapping[str, Any], name: str, eager_first: bool = False
    ) -> None:
        self.model = model
        self.state = state
        self.settings = settings
        self.name = name
        self.eager_first = eager_first
        self.words = Words.of(model)
        self._always_masked = False
        self._met: set[tuple[object, ...]] = set()  # kinds of chunks
        self._made: dict[tuple[object, ...], _Made] = {}

    def prompt(self, plan: Sequence[Chunk], padded: bool) -> int:
        """Run the chunks of a prompt from slot `length` on, and leave the logits behind its last token. How many of
        the chunks ran in eager."""
        padded = padded or self._always_masked
        keys = [("prefill", chunk.size, chunk.visible(self.state.capacity), padded) for chunk in plan]
        new = set(keys) - self._met if self.eager_first else set()
        for chunk, key in zip(plan, keys, strict=True):
            self.state.used.fill_(chunk.used)
            self._prefill(key, key in new)
        self._met |= new
        return sum(key in new for key in keys)

    def _prefill(self, key: tuple[str, int, int, bool], in_eager: bool) -> None:
        _, size, visible, padded = key
        made = self._made.get(key)
        if made is None:
            step = prefill_step(self.model, self.state, self.words, size, visible, padded)
            if in_eager:
                step()
                return
            what = f"prefill {size}" + (" of more" if visible != size else "")
            made = self._made[key] = self._compiled(step, what, padded)
        self._run(key, made)

    def decode(self, how: Selection | None, padded: bool) -> None:
        """Run the pending token and choose the next; without `how`, leave the logits for others to choose by."""
        padded = padded or self._always_masked
        key = ("decode", how, padded)
        made = self._made.get(key)  # once: a token has some microseconds of the host's time in all
        if made is None:
            step = decode_step(self.model, self.state, self.words, how, padded)
            made = self._made[key] = self._compiled(step, f"decode {how or 'logits'}", padded)
        if made.calls > 1:
            made.call()
            return
        with self._for_few_tokens():
            self._run(key, made)

    def _for_few_tokens(self) -> contextlib.AbstractContextManager[Any]:
        """Applies transformers' choice of implementations (of experts) for decoding while a step is traced, and again
        for the first sealed call, which checks that the state is the same."""
        return getattr(self.model, "_optimize_model_for_decode", contextlib.nullcontext)()

    def _compiled(self, step: Program, what: str, padded: bool) -> _Made:
        name = f"{self.name} {what}, batch {self.state.rows}{' padded' if padded else ''}"
        return _Made(burnish.compile(step, dynamic=False, name=name, **self.settings))

    def _run(self, key: tuple[object, ...], made: _Made) -> None:
        made.call()
        made.calls += 1
        if made.calls > 1:
            return
        if not self._always_masked and not key[-1] and burnish.stats(made.call).graph_breaks:
            # A model that makes its own mask if it gets none may synchronise with the host for the length. Passing a
            # mask avoids that.
            self._always_masked = True
            close_all([burnish.api.handle_of(self._made.pop(key).call)])
            return
        # Every call is like the first: nothing is left to check or to compile.
        with contextlib.suppress(NothingToSeal):  # eager serves it, and the reason is in its statistics
            burnish.seal(made.call)

    def stats(self) -> list[Stats]:
        return [burnish.stats(made.call) for made in self._made.values()]

    def close(self) -> None:
        close_all([burnish.api.handle_of(made.call) for made in self._made.values()])
        self._made.clear()
        self._met.clear()


def prefill_step(model: Any, state: State, words: Words, size: int, visible: int, padded: bool) -> Program:
    cache = cache_over(model, state.shape, state.memory, state.length, visible)

    def prefill() -> None:
        slots = torch.arange(size, device=state.length.device) + state.length
        inputs: dict[str, Any] = {"input_ids": state.tokens.index_select(1, slots)}
        if padded:
            inputs["attention_mask"] = state.mask[:, :visible]
        if words.position_ids:
            inputs["position_ids"] = state.places.index_select(1, slots) if padded else slots.unsqueeze(0)
        last = (state.used - 1).view(1)
        if words.logits_to_keep:
            logits = model(past_key_values=cache, use_cache=True, logits_to_keep=last, **inputs).logits
        else:
            logits = model(past_key_values=cache, use_cache=True, **inputs).logits.index_select(1, last)
        state.logits.copy_(logits[:, -1])
        state.length.add_(state.used)

    return prefill


def decode_step(model: Any, state: State, words: Words, how: Selection | None, padded: bool) -> Program:
    cache = cache_over(model, state.shape, state.memory, state.length, state.capacity)

    def decode() -> None:
        inputs: dict[str, Any] = {"input_ids": state.token.unsqueeze(-1)}
        if padded:
            inputs["attention_mask"] = state.mask
        if words.position_ids:
            inputs["position_ids"] = state.positions.unsqueeze(-1) if padded else state.length.view(1, 1)
        if words.logits_to_keep:
            inputs["logits_to_keep"] = 1
        logits = model(past_key_values=cache, use_cache=True, **inputs).logits[:, -1]
        state.length.add_(1)
        state.positions.add_(1)
        if how is None:
            state.logits.copy_(logits)
        else:
            state.take(logits.float(), how)

    return decode
