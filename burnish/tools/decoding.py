"""Measure a model's decoding: compiled, and beside it the model's own `generate`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from burnish import generation
from burnish.errors import BadTarget
from burnish.generation.quantize import logit_error
from burnish.generation.traffic import decode_bytes, synchronise
from burnish.options import Options
from burnish.tools.explain.ceiling import bandwidth_ceiling
from burnish.tools.targets import Target, split_inputs

_PROMPT = 128
Told = Callable[[str], None]


@dataclass(frozen=True)
class DecodingSettings:
    """What to run. Without `prompt`, the target's own tokens if it has more than one, else 128 random ones."""

    new: int = 128
    prompt: int | None = None
    batch: int | None = None
    max_length: int | None = None
    sample: bool = False
    mode: str | None = None
    runs: int = 3
    eager: bool = True
    bits: int | None = None  # of the weights; None: as they are


@dataclass(frozen=True)
class Report:
    """Times of the best of the runs, by tokens a second. `gigabytes` are read per step."""

    target: str
    device: str
    dtype: str
    batch: int
    prompt: int
    new: int
    cold_first_token_s: float
    cold_s: float  # of the first request, with what it compiles
    first_token_ms: float
    token_p50_ms: float
    token_p99_ms: float
    tokens_per_s: float  # of all rows
    gigabytes: float
    gigabytes_per_s: float
    ceiling_gigabytes_per_s: float
    eager_tokens_per_s: float | None = None
    same_as_eager: bool | None = None
    bits: int | None = None
    logit_error: float | None = None  # of weights in few bits, against the model as it was
    compiles: int = 0
    aten_calls: dict[str, int] = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)

    @property
    def share_of_ceiling(self) -> float:
        return self.gigabytes_per_s / self.ceiling_gigabytes_per_s if self.ceiling_gigabytes_per_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share_of_ceiling": self.share_of_ceiling}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def __str__(self) -> str:
        against = f"{self.tokens_per_s / self.eager_tokens_per_s:.2f} x" if self.eager_tokens_per_s else ""
        lines = [
            f"burnish generate: {self.target}",
            f"  on            {self.device}, {self.dtype}, batch {self.batch}, {self.prompt} + {self.new} tokens",
            f"  tokens        {self.tokens_per_s:,.1f} a second" + (f" ({against} eager's)" if against else ""),
            f"  first token   {self.first_token_ms:.2f} ms; of the first request, in eager, "
            f"{self.cold_first_token_s:.2f} s, and all of it {self.cold_s:.2f} s",
            f"  each token    {self.token_p50_ms:.3f} ms p50, {self.token_p99_ms:.3f} ms p99",
            f"  memory        {self.gigabytes:.3f} GB a step at {self.gigabytes_per_s:,.1f} GB/s, "
            f"{self.share_of_ceiling:.0%} of this machine's {self.ceiling_gigabytes_per_s:,.1f}",
            f"  compiled      {self.compiles} programs",
        ]
        if self.same_as_eager is not None:
            lines.append(
                f"  tokens are    {'those of eager' if self.same_as_eager else 'not all those of eager (ties?)'}"
            )
        if self.logit_error is not None:
            lines.append(f"  weights       in {self.bits} bits: logits are {self.logit_error:.2%} off")
        lines += [f"  left to ATen  {count} x {op}" for op, count in self.aten_calls.items()]
        lines += [f"  in eager      {reason}" for reason in self.fallbacks]
        return "\n".join(lines)


def language_model(target: Target) -> Any:
    """The target's model, or the first one inside it that generates."""
    modules = target.model.modules() if isinstance(target.model, torch.nn.Module) else ()
    for module in modules:
        if callable(getattr(module, "generate", None)) and hasattr(module, "get_output_embeddings"):
            return module
    raise BadTarget(target.name, "there is no Hugging Face causal language model in it")


def prompt_of(target: Target, model: Any, plan: DecodingSettings) -> dict[str, torch.Tensor]:
    device = next(model.parameters()).device
    args, kwargs = split_inputs(target.inputs)
    given: Any = kwargs.get("input_ids", args[0] if args else None)
    own = isinstance(given, torch.Tensor) and given.dim() == 2 and not given.is_floating_point() and given.shape[1] > 1
    if own and plan.prompt is None and plan.batch is None:
        mask: Any = kwargs.get("attention_mask")
        return {"input_ids": given} if mask is None else {"input_ids": given, "attention_mask": mask}
    words = int(model.get_input_embeddings().weight.shape[0])
    generator = torch.Generator().manual_seed(0)
    shape = (plan.batch or 1, plan.prompt or _PROMPT)
    return {"input_ids": torch.randint(0, words, shape, generator=generator).to(device)}


def measure(target: Target, plan: DecodingSettings, tell: Told = lambda text: None) -> Report:
    model = language_model(target)
    model.eval()
    inputs = prompt_of(target, model, plan)
    error = None if plan.bits is None else _quantized(model, plan.bits, inputs)
    ids = inputs["input_ids"]
    device = ids.device
    arguments: dict[str, Any] = {**inputs, "max_new_tokens": plan.new, "min_new_tokens": plan.new, "pad_token_id": 0}
    arguments["do_sample"] = plan.sample
    llm = generation.compile(
        model, max_length=plan.max_length or ids.shape[1] + plan.new, max_batch=ids.shape[0], mode=plan.mode
    )
    tell("compiling")
    out = llm.generate(**arguments, seed=0)
    cold = llm.stats().last
    llm.generate(**arguments, seed=0)  # compiles what the first one ran in eager
    best = llm.stats().last
    for run in range(plan.runs):
        tell(f"generating, {run + 1} of {plan.runs}")
        llm.generate(**arguments, seed=0)
        last = llm.stats().last
        best = last if run == 0 or last.seconds < best.seconds else best
    eager_s, same = None, None
    if plan.eager:
        tell("the model's own generate")
        eager_s, theirs = _eager(model, arguments, device)
        same = None if plan.sample else torch.equal(out, theirs)
    tell("measuring this machine's memory")
    ceiling = bandwidth_ceiling(device, Options()) / 1e9
    stats, batch = llm.stats(), ids.shape[0]
    step = decode_bytes(model, stats.slot_bytes, batch, ids.shape[1] + plan.new / 2) / 1e9
    p50 = best.quantile(0.5)
    return Report(
        target=target.name,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        batch=batch,
        prompt=ids.shape[1],
        new=plan.new,
        cold_first_token_s=cold.first_token_s,
        cold_s=cold.seconds,
        first_token_ms=best.first_token_s * 1e3,
        token_p50_ms=p50 * 1e3,
        token_p99_ms=best.quantile(0.99) * 1e3,
        tokens_per_s=batch * plan.new / best.seconds,
        gigabytes=step,
        gigabytes_per_s=step / p50 if p50 else 0.0,
        ceiling_gigabytes_per_s=ceiling,
        eager_tokens_per_s=batch * plan.new / eager_s if eager_s else None,
        same_as_eager=same,
        bits=plan.bits,
        logit_error=error,
        compiles=stats.compiles,
        aten_calls=dict(stats.aten_calls),
        fallbacks=[str(f) for f in (*stats.fallbacks, *(f for program in stats.programs for f in program.fallbacks))],
    )


@torch.no_grad()
def _quantized(model: Any, bits: int, inputs: dict[str, torch.Tensor]) -> float:
    """Put the weights into so many bits, in place; how far the prompt's logits are from what they were."""
    before = model(**inputs).logits
    generation.quantize(model, bits=bits)
    return logit_error(model(**inputs).logits, before).relative


def _eager(model: Any, arguments: dict[str, Any], device: torch.device) -> tuple[float, torch.Tensor]:
    best = float("inf")
    for _ in range(2):
        begin = time.perf_counter()
        out = model.generate(**arguments)
        synchronise(device)
        best = min(best, time.perf_counter() - begin)
    return best, out
