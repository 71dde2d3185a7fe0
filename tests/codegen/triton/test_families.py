"""Every family's decode step as it would run on a GPU: lowered for one, each kernel under Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import functional_call

from burnish.generation.cache import allocate, model_shape
from burnish.generation.programs import Words, decode_step, prefill_step
from burnish.generation.selection import Selection
from burnish.generation.state import State
from burnish.schedule.kernels import AttendSplits, ExternKernel
from tests.codegen.triton.interpreter import Interpreter
from tests.codegen.triton.test_decode import captured, for_gpu, same_under
from tests.generation.tiny import FAMILIES, family, left_padded, prompt
from tests.programs import Capture

TOKENS, CAPACITY = 9, 32
MASKED = ("opt",)  # without a mask it asks the host for a length
LIBRARY = {"aten.mm.default", "aten.bmm.default", "aten.addmm.default"}


class Step(torch.nn.Module):
    """The decode step as a function of all that it reads and writes."""

    def __init__(self, model: Any, state: State, padded: bool) -> None:
        super().__init__()
        self.model, self.state, self.padded = model, state, padded

    def forward(self, *held: torch.Tensor) -> torch.Tensor:
        _put(self.state, held)
        decode_step(self.model, self.state, Words.of(self.model), Selection(), self.padded)()
        return self.state.token + 0


def _slots(state: State) -> list[tuple[Any, str]]:
    return [(o, n) for o in (state, state.knobs) for n, value in vars(o).items() if isinstance(value, torch.Tensor)]


def _held(state: State) -> list[torch.Tensor]:
    return [*(getattr(o, n) for o, n in _slots(state)), *(t for pair in state.memory if pair for t in pair)]


def _put(state: State, held: tuple[torch.Tensor, ...]) -> None:
    slots = _slots(state)
    for (o, name), tensor in zip(slots, held, strict=False):
        setattr(o, name, tensor)
    caches = iter(held[len(slots) :])
    state.memory = tuple(pair and (next(caches), next(caches)) for pair in state.memory)


def step_of(name: str, rows: int) -> Capture:
    """After a prompt, the rows of which are padded to one length."""
    model = family(name).bfloat16()
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("batched_mm")  # as transformers does on a GPU
    shape, padded = model_shape(model), rows > 1 or name in MASKED
    state = State(shape, allocate(shape, rows, CAPACITY), rows, CAPACITY)
    inputs = left_padded(prompt(rows, TOKENS), [TOKENS, 5][:rows])
    state.begin(inputs["input_ids"], inputs["attention_mask"].bool(), 0, rows)
    state.used.fill_(TOKENS)
    with torch.no_grad():
        prefill_step(model, state, Words.of(model), 16, 16, padded)()
        state.take(state.logits, Selection())
    step = Step(model, state, padded)
    named = {n: t.detach() for n, t in (*step.named_parameters(), *step.named_buffers())}
    names, held = list(named), [t.clone() for t in _held(state)]

    def call(*tensors: torch.Tensor) -> Any:
        return functional_call(step, dict(zip(names, tensors, strict=False)), tensors[len(names) :])

    return captured(call, *named.values(), *held)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"),
    [*((name, 1) for name in FAMILIES), *((name, 2) for name in ("llama", "gemma2", "gpt2", "mixtral"))],
)
def test_a_step(name: str, rows: int, interpreter: Interpreter) -> None:
    found = step_of(name, rows)
    schedule = for_gpu(found)
    left = {k.op.name for k in schedule.kernels if isinstance(k, ExternKernel)}
    assert left <= (LIBRARY if rows > 1 or name == "gpt2" else set()), left
    splits = [k for k in schedule.kernels if isinstance(k, AttendSplits)]
    assert len(splits) == family(name).config.num_hidden_layers, "whether attention is a call of torch's or written out"
    same_under(interpreter, found, schedule)
