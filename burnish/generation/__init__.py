"""Decoding with language models: `generation.compile(hf_model)`, then `generate` and `stream` as usual.

from burnish import generation
llm = generation.compile(hf_model)
out = llm.generate(**tok(prompt), max_new_tokens=256)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.errors import MissingExtra
from burnish.generation.quantize import LogitError, QuantizationReport, quantization_error, quantize

if TYPE_CHECKING:
    from burnish.generation.llm import CompiledLM
    from burnish.options import Options

__all__ = ["LogitError", "QuantizationReport", "compile", "quantization_error", "quantize"]


def compile(
    model: Any,
    *,
    max_length: int | None = None,
    max_batch: int | None = None,
    chunk_sizes: Sequence[int] | None = None,
    eager_first: bool = True,
    mode: str | None = None,
    options: Mapping[str, object] | Options | None = None,
    name: str | None = None,
    verify: str | bool | None = None,
    gate: bool | None = None,
    sample: float | None = None,
) -> CompiledLM:
    """Compile the decoding of a decoder-only Hugging Face causal language model.

    `max_length` is how many tokens, prompt and new ones, the cache holds for each sequence, and `max_batch` for how
    many sequences; without them the cache grows with the requests as far as memory goes, and programs compile again
    when it does. `chunk_sizes` are the lengths that prompts are padded to or cut into, each a program of its own.
    With `eager_first` the first prompt of each such length runs in eager, so that its first token waits for no
    compiler, and the second one has the program compiled. The others are arguments of `burnish.compile`; on a GPU the
    mode is "reduce-overhead" unless another is given.

    The model itself is not changed, and is `.eager` of the result."""
    try:
        from burnish.generation.buckets import CHUNKS
        from burnish.generation.llm import CompiledLM
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "transformers":
            raise
        raise MissingExtra("burnish.generation", "transformers", "hf") from error
    return CompiledLM(
        model,
        max_length=max_length,
        max_batch=max_batch,
        chunk_sizes=CHUNKS if chunk_sizes is None else chunk_sizes,
        mode=mode,
        name=name,
        eager_first=eager_first,
        settings={"options": options, "verify": verify, "gate": gate, "sample": sample},
    )
