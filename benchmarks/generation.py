"""Decoding on a GPU: language models with random weights, the step alone and `generate` end to end.

    PYTHONPATH=. python3 -m benchmarks.generation --json benchmarks/results/generation-h200.json
    [--only 1b,...] [--candidates burnish,...] [--layers N] [--new N] [--turns] [--top]

Each candidate runs in a process of its own with empty caches. The table of steps: one decode step with a static cache
that holds about as many tokens as the workload says; p50 is a step with a synchronisation after it, stream the time of
a step among many back to back, gpu and n the time and number of its kernels, cold what the compiler took until then.
`burnish:int8` and `:int4` have their weights in 8 and 4 bits, and their error is of the logits, against bf16's.

`generate`, 256 new tokens from a prompt of 128, batch 1 or the workload's: seconds, time to the first token, and what
the first generation took beyond that (cold). `hf:burnish` is the model's own `generate` after `burnish.compile(model)`.

`burnish:start` counts from `generation.compile` to the first token, which eager computes, and to the second, for which
the step is compiled: in a process with empty caches, and in a second one that finds what the first has left (warm).

Models are made on the device in their own type. With --turns, the candidates of a workload compile at the same time
(and how long that takes is no figure), and are timed one after the other. `--layers 1 --device cpu` is a smoke run on
any machine. A FILE that exists keeps its other rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.cuda import facts, in_fresh_process, kernels, print_details, timings, when, write
from benchmarks.turns import in_turns, wait_for_turn

STEPS = ("eager", "inductor:reduce-overhead", "inductor:max-autotune", "burnish")
BACK_AFTER = 64  # steps, after which the cache holds again what it held: the number given, in the mean
SMALL = {"burnish:int8": 8, "burnish:int4": 4}  # bits of the weights
WHOLE = ("hf:eager", "hf:static", "hf:burnish", "burnish:generate")
START = "burnish:start"
CANDIDATES = (*STEPS, *SMALL, *WHOLE, START)
CHILD_SECONDS = 420
PROMPT, NEW = 128, 256
ENOUGH = 8.0  # seconds of later generations, after which no further one is measured


@dataclass(frozen=True)
class Work:
    """A model's shape, and the cache of the decode step: `held` tokens in `room` slots of each row."""

    config: Callable[[], Any]
    batch: int
    room: int
    held: int
    goal_ms: float | None = None  # for burnish's step, back to back
    without: tuple[str, ...] = (*SMALL, START)  # candidates that it is not measured with


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
    "1b": Work(one_b, batch=1, room=1024, held=700, goal_ms=0.70, without=()),
    "8b": Work(eight_b, batch=1, room=1024, held=700, goal_ms=3.9),
    "qwen3-b8": Work(qwen, batch=8, room=4352, held=4096, goal_ms=3.0),
    "moe-b4": Work(routed, batch=4, room=1024, held=512, goal_ms=2.4),
}
GOAL_INT4 = 1.5  # times our own bf16
GOAL_FIRST_TOKEN_S = {"cold": 4.0, "warm": 2.0}


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
        work = replace(work, batch=min(work.batch, 2), room=256, held=100)
    model = build(work, setting)
    if candidate == START:
        return _start(model, work, setting)
    with torch.no_grad():
        return (_whole if candidate in WHOLE else _step)(model, work, candidate, setting)


def _sync(setting: Setting) -> None:
    if setting.device == "cuda":
        torch.cuda.synchronize()


def _start(model: Any, work: Work, setting: Setting) -> dict[str, Any]:
    """From `generation.compile` to the first tokens. The model is there, and has not run."""
    from burnish import generation

    ids = _ids(model, work.batch, PROMPT, setting)
    _sync(setting)
    begin = time.perf_counter()
    llm = generation.compile(model, max_length=PROMPT + setting.new, max_batch=work.batch)
    tokens = llm.stream(ids, max_new_tokens=setting.new, do_sample=False)
    took = [time.perf_counter() - begin for _ in tokens]
    return {"first_token_s": took[0], "second_token_s": took[1], "last_token_s": took[-1], "tokens": len(took)}


def _ids(model: Any, batch: int, tokens: int, setting: Setting) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (batch, tokens), device=setting.device)


def _step(model: Any, work: Work, candidate: str, setting: Setting) -> dict[str, Any]:
    error = _quantized(model, SMALL[candidate], setting) if candidate in SMALL else {}
    begin = time.perf_counter()
    if candidate.startswith("burnish"):
        call, notes = _our_step(model, work, setting)
    else:
        call, notes = _their_step(model, work, candidate, setting), lambda: []
    _sync(setting)
    cold = time.perf_counter() - begin
    told = {} if wait_for_turn() else {"cold_s": cold}
    found = told | timings(call, setting.seconds, lambda: _sync(setting)) | error
    if setting.device == "cuda":
        found |= kernels(call)
        found["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    found |= _traffic(model, work, found["stream_ms"], setting)
    return {**found, "notes": notes()}


def _quantized(model: Any, bits: int, setting: Setting) -> dict[str, Any]:
    from burnish import generation
    from burnish.generation.quantize import logit_error

    ids = _ids(model, 1, 64, setting)
    before = model(ids).logits
    report = generation.quantize(model, bits=bits)
    error = logit_error(model(ids).logits, before)
    return {
        "logit_error": error.relative, "same_token": error.agreement, "weight_error": report.error, "bits": bits
    }  # fmt: skip


def _traffic(model: Any, work: Work, milliseconds: float, setting: Setting) -> dict[str, Any]:
    from burnish.generation.cache import model_shape
    from burnish.generation.traffic import decode_bytes
    from burnish.tools.explain.ceiling import measure_bandwidth

    count = decode_bytes(model, model_shape(model).slot_bytes, work.batch, work.held)
    speed, most = count / milliseconds * 1e3, measure_bandwidth(torch.device(setting.device), seconds=0.2)
    return {"gb": count / 1e9, "gb_per_s": speed / 1e9, "bandwidth_gb_per_s": most / 1e9, "of_bandwidth": speed / most}


def _their_step(model: Any, work: Work, candidate: str, setting: Setting) -> Callable[[], Any]:
    """A step as people write it: the model compiled, the cache and the position as tensors, the token from argmax."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=work.room)
    for start in range(0, work.held, 512):  # in chunks: the logits of a long prompt would take more than the model
        tokens = min(512, work.held - start)
        model(_ids(model, work.batch, tokens, setting), past_key_values=cache, use_cache=True, logits_to_keep=1)
    engine, _, mode = candidate.partition(":")
    called = model if engine == "eager" else torch.compile(model, mode=mode, fullgraph=True, dynamic=False)
    step = cached_step(called, cache, _ids(model, work.batch, 1, setting), work.held)
    with model._optimize_model_for_decode():
        for _ in range(4):
            step()
    return step


def cached_step(called: Callable[..., Any], cache: Any, token: torch.Tensor, held: int) -> Callable[[], torch.Tensor]:
    """From a static cache that holds about so many tokens, to the next token."""
    position = torch.full((1, 1), held, device=token.device)
    go_back = _going_back([*(layer.cumulative_length for layer in cache.layers), position], held)

    def step() -> torch.Tensor:
        go_back()
        out = called(token, position_ids=position, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))
        position.add_(1)
        return token

    return step


def _going_back(lengths: Sequence[torch.Tensor], held: int) -> Callable[[], None]:
    """Called before each step: now and then the cache is shortened to what it was, so that it never overflows."""
    steps = itertools.cycle(range(BACK_AFTER))

    def go_back() -> None:
        if next(steps) == 0:
            for length in lengths:
                length.fill_(held - BACK_AFTER // 2)

    return go_back


def _our_step(model: Any, work: Work, setting: Setting) -> tuple[Callable[[], Any], Callable[[], list[str]]]:
    from burnish import generation

    llm = generation.compile(model, max_length=work.room, max_batch=work.batch)
    llm.generate(_ids(model, work.batch, work.held - 8, setting), max_new_tokens=8, do_sample=False)
    programs = llm._store.programs(work.batch, work.held, 1)
    state, how = programs.state, next(key[1] for key in programs._made if key[0] == "decode")

    go_back = _going_back([state.length], work.held)

    def step() -> torch.Tensor:
        go_back()
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


def _whole(model: Any, work: Work, candidate: str, setting: Setting) -> dict[str, Any]:
    """`generate` from a prompt: the first time, and the best of two or three later ones."""
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
        extra = {} if candidate == "hf:eager" else {"cache_implementation": "static"}
        if candidate == "hf:burnish":
            import burnish

            model = burnish.compile(model, mode="reduce-overhead" if setting.device == "cuda" else None)

        def generate() -> Any:
            begin = time.perf_counter()
            clock = _FirstToken(begin)
            out = model.generate(ids, streamer=clock if work.batch == 1 else None, **arguments, **extra)
            first_s.append(clock.first if clock.first else 0.0)
            return out

    took: list[float] = []
    together = False
    for _ in range(4):
        begin = time.perf_counter()
        generate()
        _sync(setting)
        took.append(time.perf_counter() - begin)
        together = together or wait_for_turn()
        if len(took) > 2 and sum(took[1:]) > ENOUGH:
            break
    best = min(took[1:])
    found |= {"seconds": best, "tokens_per_s": work.batch * setting.new / best}
    found["first_token_ms"] = min(first_s[1:]) * 1e3
    return found if together else {**found, "cold_s": took[0] - best, "cold_first_token_s": first_s[0]}


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


def run_children(
    name: str, candidates: list[str], setting: Setting, turns: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    more = ["--device", setting.device, "--seconds", str(setting.seconds), "--new", str(setting.new)]
    more += ["--layers", str(setting.layers)] if setting.layers is not None else []
    module, sharing = "benchmarks.generation", [c for c in candidates if turns and c != START]
    yield from in_turns(module, name, sharing, more, CHILD_SECONDS) if sharing else ()
    for candidate in candidates:
        if candidate not in sharing:
            yield candidate, in_fresh_process(module, name, candidate, more, CHILD_SECONDS, twice=candidate == START)


def line(name: str, candidate: str, row: dict[str, Any]) -> str:
    head = f"{name:10} {candidate:25}"
    if "failure" in row:
        return f"{head} FAILED {row['failure'].splitlines()[-1][:120] if row['failure'] else ''}"
    if "p50_ms" in row:
        gpu = f"{row['gpu_ms']:8.3f} {row['kernels']:5d}" if "gpu_ms" in row else " " * 14
        return (
            f"{head} {row['p50_ms']:8.3f} {row['stream_ms']:8.3f} {row['host_us']:8.0f} {gpu} {row['gb_per_s']:8.0f} "
            f"{row['of_bandwidth']:4.0%} {row.get('cold_s', float('nan')):7.1f}"
            + (f"  logits {row['logit_error']:.2%} off" if "logit_error" in row else "")
        )
    if "second_token_s" in row:
        cold, warm = (
            f"first token after {r['first_token_s']:.2f} s, second {r['second_token_s']:.2f} s"
            if "failure" not in r
            else f"FAILED {r['failure'][-120:]}"
            for r in (row, row["warm"])
        )
        return f"{head} cold: {cold}; warm: {warm}"
    told = f"{head} {row['seconds']:8.3f} s {row['tokens_per_s']:8.1f} tokens/s"
    told += f", first token {row['first_token_ms']:.1f} ms"
    if "cold_s" not in row:
        return told
    return f"{told}; the first time {row['cold_s']:.1f} s more, its first token after {row['cold_first_token_s']:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(WORK), help="workloads, separated by commas")
    parser.add_argument("--candidates", default=",".join(CANDIDATES))
    parser.add_argument("--layers", type=int, help="so many layers instead of the model's own")
    parser.add_argument("--new", type=int, default=NEW, help="tokens that `generate` makes")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed steps per candidate")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--turns", action="store_true", help="compile side by side, time one after the other")
    parser.add_argument("--top", action="store_true", help="print notes, and the kernels that take most time")
    parser.add_argument("--child", nargs=3, metavar=("WORKLOAD", "CANDIDATE", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    setting = Setting(options.device, options.layers, options.seconds, options.new)
    if options.child:
        name, candidate, out = options.child
        Path(out).write_text(json.dumps(measure(name, candidate, setting)))
        return
    rows: dict[str, dict[str, Any]] = {}
    if options.json and options.json.exists():
        rows = json.loads(options.json.read_text())["rows"]
    heads = ("p50 ms", "stream", "host µs", "gpu ms")
    print(f"{'workload':10} {'candidate':25} " + " ".join(f"{h:>8}" for h in heads) + "     n     GB/s    %  cold s")
    for name in options.only.split(","):
        asked = options.candidates.split(",")
        if options.candidates == ",".join(CANDIDATES):
            asked = [candidate for candidate in asked if candidate not in WORK[name].without]
        for candidate, row in run_children(name, asked, setting, options.turns):
            rows.setdefault(name, {})[candidate] = {**row, **when()}
            print(line(name, candidate, row), flush=True)
            if options.top:
                print_details(row)
            if options.json:
                write(options.json, {"what": "generation", **(facts() if options.device == "cuda" else {})}, rows)


if __name__ == "__main__":
    main()
