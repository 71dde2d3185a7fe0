"""Weights in 8 and 4 bits: what they lose, that a compiled model says what the quantised one says, round trips."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf

import burnish
from burnish import generation
from burnish.errors import UsageError
from burnish.generation.quantize import EightBitLinear, FourBitLinear
from tests.generation.tiny import CHUNKS, prompt, same_tokens, sizes

MOST_LOST = {8: 0.012, 4: 0.12}  # of a matrix of normally distributed numbers


def model(tied: bool = True) -> Any:
    torch.manual_seed(0)
    config = hf.LlamaConfig(**{**sizes(num_key_value_heads=2), "hidden_size": 64, "intermediate_size": 96})
    config.tie_word_embeddings = tied
    return hf.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("bits", [8, 4])
def test_a_compiled_model_says_what_the_quantised_one_does(bits: int) -> None:
    original = model()
    small = copy.deepcopy(original)
    report = generation.quantize(small, bits=bits, group=32)
    assert len(report.errors) == 8 and report.left == () and 0 < report.error < MOST_LOST[bits], report
    assert report.bytes_after < report.bytes_before * (bits + 4) / 32
    error = generation.quantization_error(small, original, input_ids=prompt(2, 9))
    assert 0 < error.relative < 4 * MOST_LOST[bits]
    llm = generation.compile(small, max_length=32, max_batch=1, chunk_sizes=CHUNKS, eager_first=False)
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    inputs = prompt(1, 7)
    ours, theirs = llm.generate(inputs, **settings), small.generate(inputs, **settings)
    same_tokens(small, ours, theirs)
    stats = llm.stats()
    assert stats.fallbacks == () and stats.compiles == 2 and stats.aten_calls == {}


@pytest.mark.parametrize("bits", [8, 4])
def test_a_tied_head_gets_its_own_matrix_and_a_state_dict_goes_round(bits: int) -> None:
    first, second = model(), model()
    table = first.get_input_embeddings().weight
    for each in (first, second):
        generation.quantize(each, bits=bits)
    assert isinstance(first.lm_head, EightBitLinear | FourBitLinear) and first.get_input_embeddings().weight is table
    assert not first.config.tie_word_embeddings and table.is_floating_point()
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.zero_()
    second.load_state_dict(first.state_dict())
    inputs = prompt(1, 5)
    with torch.no_grad():
        assert torch.equal(first(inputs).logits, second(inputs).logits)


def test_four_bits_are_packed_by_halves() -> None:
    linear = torch.nn.Linear(64, 3)
    small = FourBitLinear.of(linear, 16)
    matrix = small.dequantized()
    steps = small.scale.detach().repeat_interleave(16, 1)
    assert ((matrix - linear.weight).abs() <= steps / 2 * 1.001).all(), "no element is further off than half a step"
    low = (small.packed[:, 5] & 15) * small.scale[:, 0] + small.least[:, 0]
    high = (small.packed[:, 5] >> 4) * small.scale[:, 2] + small.least[:, 2]
    torch.testing.assert_close(matrix[:, 5], low)
    torch.testing.assert_close(matrix[:, 32 + 5], high)


def test_what_stays_is_named() -> None:
    odd = torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.Linear(64, 8), torch.nn.Linear(64, 8))
    report = generation.quantize(odd, bits=4, skip=["2"])
    assert report.left == ("0", "2") and list(report.errors) == ["1"]
    assert odd[1].group == 32, "groups shrink until they fit"


@pytest.mark.parametrize("settings", [{"bits": 3}, {"group": 100}, {"group": 8}])
def test_what_there_is_not(settings: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="quantize"):
        generation.quantize(torch.nn.Linear(64, 8), **settings)


class WeightOnly(torch.Tensor):
    """A tensor as torchao's are: plain ones inside, which `linear` takes apart."""

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor) -> WeightOnly:
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)

    def __init__(self, values: torch.Tensor, scale: torch.Tensor) -> None:
        self.values_, self.scale_ = values, scale

    def __repr__(self) -> str:
        return f"WeightOnly{tuple(self.shape)}"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values_", "scale_"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], meta: None, size: Any, stride: Any) -> WeightOnly:
        return cls(inner["values_"], inner["scale_"])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight = args[:2]
            return F.linear(x, weight.values_.to(x.dtype)) * weight.scale_
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].values_, args[0].scale_)
        raise NotImplementedError(func)


def test_a_model_of_tensors_in_the_style_of_torchao() -> None:
    small = model(tied=False)
    for layer in small.modules():
        if isinstance(layer, torch.nn.Linear):
            taken = EightBitLinear.of(layer)
            layer.weight = torch.nn.Parameter(WeightOnly(taken.values.data, taken.scale.data), requires_grad=False)
    llm = generation.compile(small, max_length=32, max_batch=1, chunk_sizes=CHUNKS, eager_first=False)
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    ours, theirs = llm.generate(prompt(1, 7), **settings), small.generate(prompt(1, 7), **settings)
    same_tokens(small, ours, theirs)
    stats = llm.stats()
    assert stats.fallbacks == () and stats.compiles == 2 and stats.aten_calls == {}, stats
    assert all([v.engine for v in program.variants] == ["burnish"] for program in stats.programs), stats


def test_tensors_of_torchao_run() -> None:
    """Whatever their tensors do inside, a compiled layer says what the layer says."""
    quantization = pytest.importorskip("torchao.quantization")
    layer = torch.nn.Sequential(torch.nn.Linear(64, 32)).eval()
    quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
    x = torch.randn(1, 64)
    with torch.no_grad():
        torch.testing.assert_close(burnish.compile(layer)(x), layer(x), rtol=1e-3, atol=1e-3)
