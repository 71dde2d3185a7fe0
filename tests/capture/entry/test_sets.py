"""The order of sets is Python's, wherever somebody sees it; what depends on none is compiled."""
# ruff: noqa: C405, C416 (a set that is made of a list, and a loop over it, are what is tested)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import burnish

pytestmark = pytest.mark.filterwarnings("ignore")

FORCED = {"gate": False, "verify": "off"}
NUMBERS, LETTERS = (33, 1, 8, 64, 7), ("b", "a", "zz", "c")

Use = Callable[[Any], Any]
ORDERS: dict[str, Use] = {
    "list": lambda held: list(set([33, 1, 8])),
    "tuple": lambda held: tuple(set([33, 1, 8])),
    "literal": lambda held: [v for v in {33, 1, 8}],
    "comprehension": lambda held: [v for v in {v + 1 for v in [33, 1, 8]}],
    "pop": lambda held: (several := set([33, 1, 8]), several.pop(), several.pop())[1:],
    "frozenset": lambda held: list(frozenset([33, 1, 8])),
    "text": lambda held: list(set(["x", "yy", "z3", "q"])),
    "several types": lambda held: [str(v) for v in set([33, "a", None, 1.5, (1, 2)])],
    "types": lambda held: [str(v) for v in {torch.float32, torch.int64, torch.bool, int, str}],
    "join": lambda held: "".join(held.letters | {"q"}),
    "repr": lambda held: repr(set([33, 1, 8]) - {1}),
    "unpacked": lambda held: (lambda *several: several)(*set([33, 1, 8])),
    "enumerate": lambda held: list(enumerate(set([33, 1, 8]))),
    "zip": lambda held: list(zip(set([33, 1, 8]), range(3), strict=True)),
    "next": lambda held: next(iter(set([33, 1, 8]))),
    "first of some": lambda held: next((v for v in set([33, 1, 8]) if v > 5), None),
    "map": lambda held: list(map(str, set([33, 1, 8]))),
    "keys of a dictionary": lambda held: dict.fromkeys(set([33, 1, 8])),
    "extended": lambda held: (several := [], several.extend(set([33, 1, 8])))[0],
    "extended in place": lambda held: [0].__iadd__(set([33, 1, 8])),
    "another of it": lambda held: list(set(held.numbers | {5})),
    "ties": lambda held: sorted(set([33, 1, 8]), key=lambda v: 0),
    "sum of numbers": lambda held: sum(set([0.1, 0.2, 0.3, 1e16, -1e16])),
    "from outside": lambda held: (list(held.numbers), list(held.letters)),
    "union": lambda held: list(held.numbers | {5}),
    "intersection": lambda held: list(held.numbers & {8, 33, 1, 99}),
    "difference": lambda held: list(held.numbers - {7}),
    "symmetric difference": lambda held: list(held.numbers ^ {7, 1000}),
    "copy": lambda held: list(held.numbers.copy()),
    "of keys": lambda held: (list({33: 1, 1: 2, 8: 3}.keys() | {8, 64}), list(set({33: 1, 1: 2, 8: 3}))),
    "returned": lambda held: set([33, 1, 8]),
    "union returned": lambda held: held.numbers | {5, 129},
    "one out and in": lambda held: (several := set([33, 1, 8]), several.discard(33), several.add(33))[0],
    "literal that grows": lambda held: (several := {33, 1, 8}, several.add(64), several.add(0))[0],
    "kept": lambda held: setattr(held, "kept", set([33, 1, 8])),
    "across a break": lambda held: (several := {33, 1, 8} | held.numbers, print(end=""), list(several))[2],
}
CHANGES: dict[str, Use] = {
    "add": lambda held: (held.numbers.add(2), held.numbers.add(100), list(held.numbers)),
    "add to both": lambda held: (held.numbers.add(2), held.letters.add("k"), 2 in held.numbers)[2],
    "out and in": lambda held: (held.numbers.discard(33), held.numbers.add(33)),
    "pop": lambda held: held.numbers.pop(),
    "clear": lambda held: (held.numbers.clear(), held.numbers.update([33, 1, 8])),
    "update": lambda held: held.numbers.update({8, 33, 129, 65}),
    "|=": lambda held: held.numbers.__ior__({100, 200}) and None,
    "intersection_update": lambda held: held.numbers.intersection_update({8, 33, 64, 1}),
    "difference_update": lambda held: held.numbers.difference_update({8, 33}),
    "symmetric_difference_update": lambda held: held.numbers.symmetric_difference_update({100, 33}),
}


class Held:
    def __init__(self) -> None:
        self.numbers, self.letters = set(NUMBERS), set(LETTERS)


def _ordered(value: Any) -> Any:
    return [type(value), *value] if isinstance(value, (set, frozenset)) else repr(value)


def _outcomes(way: Callable[[Any], Any], use: Use) -> list[Any]:
    held = Held()
    call = way(lambda x, held: (x + 1, use(held)))
    found = []
    for k in range(3):
        answer = call(torch.full((2,), float(k)), held)[1]
        found.append((_ordered(answer), {name: _ordered(each) for name, each in vars(held).items()}))
    return found


@pytest.mark.parametrize("name", [*ORDERS, *CHANGES])
def test_order_is_pythons(name: str) -> None:
    for uses in (ORDERS, CHANGES):
        if name in uses:
            assert _outcomes(lambda f: burnish.compile(f, **FORCED), uses[name]) == _outcomes(lambda f: f, uses[name])


def test_a_loop_over_a_set() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for factor in set([33, 1, 8]):
            x = x * factor + 1
        return x

    compiled = burnish.compile(function, **FORCED)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), function(torch.ones(2)))


def test_another_order_of_a_set_from_outside_is_noticed() -> None:
    def function(x: torch.Tensor, several: set[int]) -> tuple[torch.Tensor, list[int]]:
        return x + 1, list(several)

    compiled = burnish.compile(function, **FORCED)
    for order in ([0, 8, 16], [16, 8, 0], [0, 8, 16], [8, 0]):
        several = set(order)
        assert compiled(torch.ones(2), several)[1] == list(several)
    assert burnish.stats(compiled).compiles == 3


class Named(torch.nn.Module):
    """Does something else in layers of some names."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear, self.name, self.targets = torch.nn.Linear(4, 4), f"layers.{number}", {"layers.0", "layers.2"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return x * 2 if any(self.name.endswith(target) for target in self.targets) else x


def test_layers_that_look_for_their_names_in_a_set_are_compiled_whole() -> None:
    model = torch.nn.Sequential(*(Named(number) for number in range(4)))
    compiled, x = burnish.compile(model, fullgraph=True, **FORCED), torch.randn(2, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))
    assert burnish.stats(compiled).compiles == 1


def test_a_set_of_text_is_not_stored_in_its_order(tmp_path: Path) -> None:
    """Another process has another."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        return x + 1, [v for v in set(["x", "yy", "z3"])]

    for _ in range(2):
        torch.compiler.reset()
        compiled = burnish.compile(function, options={"cache_dir": tmp_path, "warm_start": True}, **FORCED)
        with torch.no_grad():
            assert compiled(torch.ones(2))[1] == function(torch.ones(2))[1]
        assert burnish.stats(compiled).graph_breaks == ()
    assert burnish.stats(compiled).seconds.get("dynamo", 0.0) > 0.0, "traced again"


WITHOUT: dict[str, Use] = {
    "in": lambda held: (33 in (held.numbers | {5}), 4 in held.numbers, "b" in {"a", "b"}),
    "len": lambda held: len(set([33, 1, 8]) | held.numbers),
    "sorted": lambda held: (sorted(set([33, 1, 8])), sorted(held.numbers | {5}), sorted({"b", "a"} - {"c"})),
    "least and most": lambda held: (max(set([33, 1, 8])), min(held.numbers | {5})),
    "comparisons": lambda held: ({1, 8} <= held.numbers, set([8, 1]) == {1, 8}, {2}.isdisjoint(held.numbers)),
    "of one": lambda held: [*set(["a"]), *({1, 2} - {1})],
    "add": lambda held: held.numbers.add(2),
    "discard of nothing": lambda held: held.numbers.discard(1000),
    "kept": lambda held: setattr(held, "kept", {"b", "a", "c"}),
    "constants one by one": lambda held: (list({33, 1, 8}), [v for v in {"b", "a", "c"}], list(set(["a", "b"]))),
    "grown": lambda held: (several := set(), several.add("b"), several.update(["a", "c"]))[0],
    "from outside": lambda held: (list(held.numbers), [v for v in held.letters], dict.fromkeys(held.letters)),
    "any": lambda held: (any(v.startswith("z") for v in held.letters), all(v > 0 for v in held.numbers)),
    "global": lambda held: [v for v in SEVERAL],
}
SEVERAL = frozenset(["b", "a", "zz", "c"])


@pytest.mark.parametrize("name", WITHOUT)
def test_what_depends_on_no_order_is_compiled_whole(name: str) -> None:
    ways = (lambda f: burnish.compile(f, fullgraph=True, **FORCED), lambda f: f)
    ours, eagers = (_outcomes(way, WITHOUT[name]) for way in ways)
    assert ours == eagers
