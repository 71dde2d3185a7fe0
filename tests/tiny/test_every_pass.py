"""Each pass over graphs and over schedules has a file of tests: what it does, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.passes import ON_GPU, PASSES
from burnish.schedule.passes import SCHEDULE_PASSES

TESTS = Path(__file__).parent.parent
GRAPH = {
    "attention": "test_attention",
    "fold": "test_fold",
    "identities": "test_identities",
    "gathers": "test_gathers",
    "onto": "test_onto",
    "sink": "test_sink",
}
SCHEDULE = {
    "epilogues": "test_epilogues",
    "split attention": "test_split_attention",
    "vector products": "test_vector_products",
    "products": "test_backend_choice",
    "fuse": "test_fuse",
    "columns": "test_column_sums",
    "inline products": "test_inline_products",
    "split reductions": "test_split_reductions",
    "rotary": "test_rotary",
    "rows": "test_rows",
    "factors": "test_factor_sums",
    "siblings": "test_siblings",
    "group products": "test_group_products",
    "group loops": "test_loop_groups",
}


def test_every_graph_pass_is_in_the_table() -> None:
    assert {name for name, _ in (*ON_GPU, *PASSES)} == GRAPH.keys()


def test_every_schedule_pass_is_in_the_table() -> None:
    assert {step.name for step in SCHEDULE_PASSES} == SCHEDULE.keys()


@pytest.mark.parametrize(
    "file", [*(f"passes/{f}.py" for f in GRAPH.values()), *(f"schedule/{f}.py" for f in SCHEDULE.values())]
)
def test_the_file_has_tests(file: str) -> None:
    assert (TESTS / file).read_text().count("\ndef test_") >= 2
