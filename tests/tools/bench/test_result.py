"""Results as JSON and as text."""

from __future__ import annotations

import dataclasses
import json

import pytest

from burnish.tools.bench.plain import from_plain, to_plain
from burnish.tools.bench.result import BenchResult
from burnish.tools.bench.table import as_text
from tests.tools.bench.results import full_result, result, row


def test_json_is_read_back_as_it_was() -> None:
    whole = full_result()
    text = whole.to_json()
    assert BenchResult.from_json(text) == whole
    plain = json.loads(text)
    assert plain["schema"] == 1 and plain["candidates"][2]["candidate"]["engine"] == "burnish"
    assert max(map(len, text.splitlines())) > 500, "samples are on one line"


def test_what_json_has_no_number_for_survives() -> None:
    odd = dataclasses.replace(row("burnish"), error=float("inf"))
    assert from_plain(type(odd), json.loads(json.dumps(to_plain(odd), allow_nan=False))).error == float("inf")


def test_another_schema_is_refused() -> None:
    text = full_result().to_json().replace('"schema": 1', '"schema": 99')
    with pytest.raises(ValueError, match="schema 99, this burnish reads 1"):
        BenchResult.from_json(text)
    with pytest.raises(ValueError, match="has no colour"):
        from_plain(BenchResult, {**json.loads(full_result().to_json()), "colour": 1})


def test_the_text_fits_eighty_columns_and_says_everything() -> None:
    text = as_text(full_result())
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    assert "Compile it with burnish: 1.25 ×" in " ".join(text.replace("│", " ").split())
    for words in ("95 % interval", "p99", "mean ± std", "samples/s", "compile", "pays after", "2.50 J", "failed"):
        assert words in text, words
    assert "compiles once" in text and "→ rewrite it" in text
    assert str(full_result()) == text


def test_long_names_fold_instead_of_being_cut() -> None:
    text = as_text(result(row("eager"), row("inductor:max-autotune-no-cudagraphs", 0.05), row("burnish", 0.05)))
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    assert "1.99 ×" in text or "2.00 ×" in text


def test_an_incomplete_result_says_so_first() -> None:
    text = as_text(result(row("eager"), row("burnish", 0.05), incomplete="stopped by Ctrl-C during the race"))
    assert "(incomplete)" in text.splitlines()[0]
    assert "Incomplete: stopped by Ctrl-C during the race" in text


def test_a_failed_candidate_is_a_row_with_its_reason() -> None:
    text = as_text(result(row("eager"), row("burnish", failure="CompileError: [no] compiler")))
    assert "failed" in text and "burnish failed: CompileError: [no] compiler" in text
