"""`shapes=` as the user writes it."""

from __future__ import annotations

import pytest

from burnish.errors import BadShapes
from burnish.shapes.strategy import Axis, parse


def test_words() -> None:
    assert parse(None) is None
    assert parse("static").kind == "static" and not parse("static").learns
    assert parse("dynamic").kind == "dynamic"
    assert parse("auto").learns and {axis.name for axis in parse("auto").axes} >= {"batch", "sequence"}
    assert all(axis.most == 1 for axis in parse("pad").axes)
    assert parse(parse("auto")) == parse("auto")


def test_dimensions() -> None:
    found = parse({"batch": [4, 1, 2], "sequence": "auto", "fills": {"labels": -100}, "variants": 6})
    assert found.axes == (Axis("batch", 0, None, (1, 2, 4)), Axis("sequence", 1))
    assert found.fills == {"labels": -100} and found.variants == 6 and found.learns
    assert parse({"sequence": 512}).axes == (Axis("sequence", 1, None, (512,)),)
    assert parse({"input_ids": {1: [64, 128]}}).axes == (Axis("input_ids.1", 1, "input_ids", (64, 128)),)
    assert parse({"strategy": "auto", "variants": 3}).variants == 3
    assert parse({"batch": list(range(1, 13))}).variants == 12  # as many as were listed


def test_which_tensors_have_a_dimension() -> None:
    batch, sequence, height = Axis("batch", 0), Axis("sequence", 1), Axis("height", 2)
    assert batch.is_of("x", 1) and sequence.is_of("x", 2) and not sequence.is_of("x", 1)
    assert height.is_of("x", 4) and not height.is_of("x", 3)
    assert Axis("x.1", 1, "x").is_of("x", 2) and not Axis("x.1", 1, "x").is_of("y", 2)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ("sttic", "Did you mean 'static'"),
        (3, "must be one of"),
        ({}, "names no dimension"),
        ({"sequnce": [1]}, "Did you mean 'sequence'"),
        ({"sequence": []}, "a size, a list of sizes"),
        ({"sequence": [0]}, "at least 1"),
        ({"sequence": [True]}, "at least 1"),
        ({"batch": "auto", "variants": 0}, "variants"),
        ({"batch": [1, 2, 4], "variants": 2}, "make 3 variants"),
        ({"x": {-1: [3]}}, "counted from 0"),
        ({"x": {}}, "names no dimension"),
        ({"batch": "auto", "fills": {"labels": "x"}}, "fills"),
        ({"batch": "auto", "strategy": "static"}, "has no buckets"),
        ({1: [2]}, "named by text"),
    ],
)
def test_mistakes_say_what_to_write(shapes, said) -> None:
    with pytest.raises(BadShapes, match=said):
        parse(shapes)
