"""Decisions by what Python sees of a tensor: noticed when it is another after compiling."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch

import burnish

TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.ones(3),
    "leaf": lambda: torch.ones(3, requires_grad=True),
    "result": lambda: torch.ones(3, requires_grad=True) * 1,
    "view": lambda: torch.ones(5)[:3],
    "view of its middle": lambda: torch.ones(5)[1:4],
}
FACTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad_fn": lambda x: x.grad_fn is None,
    "_base": lambda x: x._base is None,
    "storage": lambda x: x.untyped_storage().size(),
    "is_leaf": lambda x: x.is_leaf,
    "offset": lambda x: x.storage_offset(),
}


@pytest.mark.parametrize("place", ["argument", "closure"])
@pytest.mark.parametrize(("first", "second"), permutations(TENSORS, 2), ids=str)
@pytest.mark.parametrize("fact", FACTS)
def test_another_fact_is_noticed(fact: str, first: str, second: str, place: str) -> None:
    asked, held = FACTS[fact], TENSORS[first]()

    def of_argument(x: torch.Tensor) -> Any:
        return x * 2, asked(x)

    def of_closure(x: torch.Tensor) -> Any:
        return x * 2, asked(held)

    function = of_argument if place == "argument" else of_closure
    compiled = burnish.compile(function, gate=False)
    assert compiled(held)[1] == function(held)[1]
    held = TENSORS[second]()
    assert compiled(held)[1] == function(held)[1]
