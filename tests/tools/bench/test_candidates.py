"""What may be compared, and what each mistake is answered with."""

from __future__ import annotations

import pytest
import torch

from burnish.errors import UnknownBackend, UnknownMode
from burnish.tools.bench.candidates import Candidate, default_candidates, parse_candidates


def test_a_list_is_parsed_with_eager_first_and_each_once() -> None:
    found = parse_candidates("inductor:max-autotune, burnish,burnish:default,aot_eager,eager")
    assert [candidate.name for candidate in found] == ["eager", "inductor:max-autotune", "burnish", "aot_eager"]
    assert [candidate.title for candidate in found][1] == "Inductor max-autotune"
    assert not found[0].compiles and found[1].compiles


def test_defaults_follow_the_device() -> None:
    assert [one.name for one in default_candidates(on_cuda=False)] == ["eager", "inductor", "burnish"]
    assert [one.name for one in default_candidates(on_cuda=True)][3:] == [
        "inductor:reduce-overhead",
        "burnish:reduce-overhead",
    ]
    assert all(one.dynamic for one in default_candidates(False, dynamic=True) if one.compiles)


def test_mistakes_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownBackend, match=r"unknown backend 'inductr'. Did you mean 'inductor'\?"):
        parse_candidates("inductr")
    with pytest.raises(UnknownMode, match=r"unknown mode 'max-autotun'. Did you mean"):
        parse_candidates("burnish:max-autotun")


def test_a_candidate_is_applied() -> None:
    model = torch.nn.Linear(2, 2)
    assert Candidate("eager").apply(model) is model
    compiled = Candidate("eager_noexcept", fullgraph=True).apply(model)
    assert torch.equal(compiled(torch.ones(1, 2)), model(torch.ones(1, 2)))
