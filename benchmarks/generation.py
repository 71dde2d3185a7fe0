"""Decoding on a GPU: language models with random weights, the step alone and `generate` end to end.

    PYTHONPATH=. python3 -m benchmarks.generation [--only 1b,...] [--candidates burnish,...] [--layers N] [--json FILE]

Each candidate runs in a process of its own with empty caches. The table of steps: one decode step with a static cache
that holds as many tokens as the workload says; p50 is a step with a synchronisation after it, stream the time of a step
among many back to back, gpu and n the time and number of its kernels. Then 256 new tokens from a prompt of 128, batch 1
or the workload's: seconds, time to the first token, and what the first generation took beyond that (cold).

Models are made on the device in their own type. `--layers 1 --device cpu` is a smoke run on any machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.cuda import facts, in_fresh_process, kernels

STEPS = ("eager", "inductor:reduce-overhead", "inductor:max-autotune", "burnish")
WHOLE = ("hf:eager", "hf:static", "burnish:generate")
CANDIDATES = STEPS + WHOLE
CHILD_SECONDS = 420
PROMPT, NEW = 128, 256


@dataclass(frozen=True)
class Work:
    """A model's shape, and the cache of the decode step: `held` tokens in `room` slots of each row."""

    config: Callable[[], Any]
    batch: int
    room: int
    held: int


def llama(**sizes: Any) -> Any:
    import transformers

    return transformers.LlamaConfig(max_position_embeddings=8192, **sizes)


def one_b() -> Any:
    return llama(
        hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
        intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True,
    )  # fmt: skip


def eight_b() -> Any:
    return llama(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        intermediate_size=14336, vocab_size=128256, tie_word_embeddings=False,
    )  # fmt: skip


def qwen() -> Any:
    import transformers

    return transformers.Qwen3Config(
        hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=8192,
    )  # fmt: skip


def routed() -> Any:
    import transformers

    return transformers.Qwen3MoeConfig(
        hidden_size=2048, num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=768, intermediate_size=6144, num_hidden_layers=16,
        vocab_size=151936, decoder_sparse_step=1, max_position_embeddings=8192,
    )  # fmt: skip


WORK = {
    "1b": Work(one_b, batch=1, room=1024, held=700),
    "8b": Work(eight_b, batch=1, room=1024, held=700),
    "qwen3-b8": Work(qwen, batch=8, room=4352, held=4096),
    "moe-b4": Work(routed, batch=4, room=1024, held=512),
}


@dataclass(frozen=True)
class Setting:
    device: str = "cuda"
    layers: int | None = None
    seconds: float = 1.0
    new: int = NEW

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32


def build(work: Work, setting: Setting) -> Any:
    """The model, made where and in the type it will run: 8B parameters in float32 on the host would not fit."""
    import transformers

    config = work.config()
    if setting.layers is not None:
        config.num_hidden_layers = setting.layers
        for name in ("layer_types", "mlp_only_layers"):
            if isinstance(getattr(config, name, None), list):
                setattr(config, name, getattr(config, name)[: setting.layers])
    if setting.device == "cpu":  # a smoke run: as few words and experts as will do
        config.vocab_size = 1024
        config.hidden_size, config.intermediate_size = 256, 512
    config.pad_token_id = config.eos_token_id = config.bos_token_id = None
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(setting.dtype)
    try:
        with torch.device(setting.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=setting.dtype)
    finally:
        torch.set_default_dtype(before)
    return model.eval()


# -- one process --------------------------------------------------------------------------------------------------


def measure(name: str, candidate: str, setting: Setting) -> dict[str, Any]:
    work = WORK[name]
    if setting.device == "cpu":
        work = Work(work.config, min(work.batch, 2), 256, 100)
    model = build(work, setting)
    with torch.no_grad():
        return (_step if candidate in STEPS else _whole)(model, work, candidate, setting)


def _sync(setting: Setting) -> None:
    if setting.device == "cuda":
        torch.cuda.synchronize()


def _ids(model: Any, batch: int, tokens: int, setting: Setting) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (batch, tokens), device=setting.device)


def _step(model: Any, work: Work, candidate: str, setting: Setting) -> dict[str, Any]:
    begin = time.perf_counter()
    if candidate == "burnish":
        call, notes = _our_step(model, work, setting)
    else:
        call, notes = _their_step(model, work, candidate, setting), lambda: []
    _sync(setting)
    cold = time.perf_counter() - begin
    found = timings(call, setting)
    if setting.device == "cuda":
        found |= kernels(call)
        found["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    found |= _traffic(model, work, found["stream_ms"])
    return {**found, "cold_s": cold, "notes": notes()}


def _traffic(model: Any, work: Work, milliseconds: float) -> dict[str, Any]:
    from burnish.generation.cache import model_shape
    from burnish.generation.traffic import decode_bytes

    count = decode_bytes(model, model_shape(model).slot_bytes, work.batch, work.held)
    return {"gb": count / 1e9, "gb_per_s": count / milliseconds / 1e6}


def _their_step(model: Any, work: Work, candidate: str, setting: Setting) -> Callable[[], Any]:
    """A step as people write it: the model compiled, the cache and the position as tensors, the token from argmax."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=work.room)
    for start in range(0, work.held, 512):  # in pieces: the logits of a long prompt would take more than the model
        tokens = min(512, work.held - start)
        model(_ids(model, work.batch, tokens, setting), past_key_values=cache, use_cache=True, logits_to_keep=1)
    engine, _, mode = candidate.partition(":")
    called = model if engine == "eager" else torch.compile(model, mode=mode, fullgraph=True, dynamic=False)
    token = _ids(model, work.batch, 1, setting)
    position = torch.full((1, 1), work.held, device=setting.device)
    lengths = [layer.cumulative_length for layer in cache.layers]

    def step() -> torch.Tensor:
        for length in lengths:
            length.fill_(work.held)
        out = called(token, position_ids=position, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))
        return token

    with model._optimize_model_for_decode():
        for _ in range(4):
            step()
    return step


def _our_step(model: Any, work: Work, setting: Setting) -> tuple[Callable[[], Any], Callable[[], list[str]]]:
    from burnish import generation

    llm = generation.compile(model, max_length=work.room, max_batch=work.batch)
    llm.generate(_ids(model, work.batch, work.held - 8, setting), max_new_tokens=8, do_sample=False)
    programs = llm._store.programs(work.batch, work.held, 1)
    state, how = programs.state, next(key[1] for key in programs._made if key[0] == "decode")

    def step() -> torch.Tensor:
        state.length.fill_(work.held)  # so that the cache never overflows: one small kernel more than in `generate`
        programs.decode(how, False)
        return state.token

    for _ in range(4):
        step()

    def notes() -> list[str]:
        stats = llm.stats()
        out = [f"{count} x {op}" for op, count in stats.aten_calls.items()]
        out += [str(f) for f in (*stats.fallbacks, *(f for p in stats.programs for f in p.fallbacks))]
        return out + [f"{p.name}: {v}" for p in stats.programs for v in p.variants] + [
            f"{p.name}: {count} x {what}" for p in stats.programs for what, count in p.notices.items()
        ]  # fmt: skip

    return step, notes


def timings(call: Callable[[], Any], setting: Setting) -> dict[str, Any]:
    clock = time.perf_counter
    for _ in range(3):
        call()
    _sync(setting)
    begin = clock()
    call()
    _sync(setting)
    n = max(10, min(1000, int(setting.seconds / (clock() - begin))))
    whole = []
    for _ in range(n):
        begin = clock()
        call()
        _sync(setting)
        whole.append(clock() - begin)
    begin = clock()
    for _ in range(n):
        call()
    host = (clock() - begin) / n
    _sync(setting)
    stream = (clock() - begin) / n
    whole.sort()
    return {
        "p50_ms": statistics.median(whole) * 1e3, "p99_ms": whole[int(0.99 * (n - 1))] * 1e3, "n": n,
        "stream_ms": stream * 1e3, "host_us": host * 1e6,
    }  # fmt: skip


def _whole(model: Any, work: Work, candidate: str, setting: Setting) -> dict[str, Any]:
    """`generate` from a prompt: the first time, and the best of three later ones."""
    ids = _ids(model, work.batch, PROMPT, setting)
    arguments = {"max_new_tokens": setting.new, "min_new_tokens": setting.new, "do_sample": False, "pad_token_id": 0}
    found: dict[str, Any] = {}
    first_s: list[float] = []
    if candidate == "burnish:generate":
        from burnish import generation

        llm = generation.compile(model, max_length=PROMPT + setting.new, max_batch=work.batch)

        def generate() -> Any:
            out = llm.generate(ids, **arguments)
            first_s.append(llm.stats().last.first_token_s)
            return out

    else:
        extra = {"cache_implementation": "static"} if candidate == "hf:static" else {}

        def generate() -> Any:
            begin = time.perf_counter()
            clock = _FirstToken(begin)
            out = model.generate(ids, streamer=clock if work.batch == 1 else None, **arguments, **extra)
            first_s.append(clock.first if clock.first else 0.0)
            return out

    took = []
    for _ in range(4):
        begin = time.perf_counter()
        generate()
        _sync(setting)
        took.append(time.perf_counter() - begin)
    best = min(took[1:])
    found |= {"seconds": best, "cold_s": took[0] - best, "tokens_per_s": work.batch * setting.new / best}
    found["first_token_ms"] = min(first_s[1:]) * 1e3
    found["cold_first_token_s"] = first_s[0]
    return found


class _FirstToken:
    """A streamer that only notes when the first token came (after the prompt, which is put first)."""

    def __init__(self, begin: float) -> None:
        self.begin, self.puts, self.first = begin, 0, 0.0

    def put(self, value: object) -> None:
        self.puts += 1
        if self.puts == 2:
            self.first = time.perf_counter() - self.begin

    def end(self) -> None:
        pass


# -- all of them --------------------------------------------------------------------------------------------------


def run_child(name: str, candidate: str, setting: Setting) -> dict[str, Any]:
    more = ["--device", setting.device, "--seconds", str(setting.seconds), "--new", str(setting.new)]
    more += ["--layers", str(setting.layers)] if setting.layers is not None else []
    return in_fresh_process("benchmarks.generation", name, candidate, more, CHILD_SECONDS)


def line(name: str, candidate: str, row: dict[str, Any]) -> str:
    head = f"{name:10} {candidate:25}"
    if "failure" in row:
        return f"{head} FAILED {row['failure'].splitlines()[-1][:120] if row['failure'] else ''}"
    if "p50_ms" in row:
        gpu = f"{row['gpu_ms']:8.3f} {row['kernels']:5d}" if "gpu_ms" in row else " " * 14
        return (
            f"{head} {row['p50_ms']:8.3f} {row['stream_ms']:8.3f} {row['host_us']:8.0f} {gpu} {row['gb_per_s']:8.0f} "
            f"{row['cold_s']:7.1f}"
        )
    return (
        f"{head} {row['seconds']:8.3f} s {row['tokens_per_s']:8.1f} tokens/s, first token {row['first_token_ms']:.1f} "
        f"ms; the first time {row['cold_s']:.1f} s more, its first token after {row['cold_first_token_s']:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(WORK), help="workloads, separated by commas")
    parser.add_argument("--candidates", default=",".join(CANDIDATES))
    parser.add_argument("--layers", type=int, help="so many layers instead of the model's own")
    parser.add_argument("--new", type=int, default=NEW, help="tokens that `generate` makes")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed steps per candidate")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--top", action="store_true", help="print notes, and the kernels that take most time")
    parser.add_argument("--child", nargs=3, metavar=("WORKLOAD", "CANDIDATE", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    setting = Setting(options.device, options.layers, options.seconds, options.new)
    if options.child:
        name, candidate, out = options.child
        Path(out).write_text(json.dumps(measure(name, candidate, setting)))
        return
    rows: dict[str, dict[str, Any]] = {}
    heads = ("p50 ms", "stream", "host µs", "gpu ms")
    print(f"{'workload':10} {'candidate':25} " + " ".join(f"{h:>8}" for h in heads) + "     n     GB/s  cold s")
    for name in options.only.split(","):
        for candidate in options.candidates.split(","):
            row = rows.setdefault(name, {})[candidate] = run_child(name, candidate, setting)
            print(line(name, candidate, row), flush=True)
            if options.top:
                for note in row.get("notes", ()):
                    print(f"    {note[:200]}")
                for kernel, count, micros in row.get("top", ()):
                    print(f"    {micros:9.1f} µs {count:6.1f} x  {kernel}")
            if options.json:
                told = facts() if options.device == "cuda" else {}
                options.json.write_text(json.dumps({**told, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
