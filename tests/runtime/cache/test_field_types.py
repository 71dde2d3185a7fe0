"""Values of other types than a dataclass's annotations state are found, in fields and inside containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pytest

from burnish.ir.expr import Div, Sym, sym
from burnish.runtime.cache.data import Codec, NotData
from burnish.runtime.cache.field_types import check_of


class Sized(Protocol):
    width: int


@dataclass
class Box:
    width: int


class Other:
    pass


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        (int, [0, True], [0.0, "0", None]),
        (float, [0.5, 1], ["0.5", None, (1.0,)]),
        (bool, [True], [1, None]),
        (str | None, ["a", None], [0, b"a"]),
        (tuple[int, ...], [(), (1, 2)], [[1], (1, "2"), None]),
        (tuple[str, int], [("a", 1)], [("a",), ("a", 1, 2), (1, "a")]),
        (dict[str, list[int]], [{}, {"a": [1]}], [{"a": [None]}, {1: [1]}, [("a", 1)]]),
        (frozenset[str], [frozenset({"a"})], [frozenset({1}), {"a"}]),
        (Literal["a", 1], ["a", 1], ["b", True, 1.0]),
        (Sized, [Box(1)], [Other(), 1]),
        (Any, [None, object()], []),
    ],
)
def test_annotations(annotation: Any, right: list[Any], wrong: list[Any]) -> None:
    fits = check_of(annotation)
    assert [fits(value) for value in right] == [True] * len(right)
    assert [fits(value) for value in wrong] == [False] * len(wrong)


def test_a_stand_in() -> None:
    assert check_of(list[Box], ((Other, Box),))([Other(), Box(1)])
    assert not check_of(list[Box])([Other()])


def test_a_codec_neither_reads_nor_writes_other_types() -> None:
    codec = Codec([Sym, Div])
    data = codec.dumps(Div(sym("n"), 2))
    assert codec.loads(data) == Div(sym("n"), 2)
    with pytest.raises(NotData, match="a Div whose den is of another type"):
        codec.loads(data.replace(b",2]", b',"2"]'))
    with pytest.raises(NotData, match="a Sym whose name is of another type"):
        codec.dumps(Sym(7))  # type: ignore[arg-type]


@pytest.mark.parametrize("terms", ['[["x"],1]', '[[["object","Sym","n",0,null]],"1"]', "[[null],1]"])
def test_an_expression_of_other_parts(terms: str) -> None:
    with pytest.raises(NotData, match="an expression of other parts"):
        Codec([Sym]).loads(f'["expr",{terms}]'.encode())
