"""What the verdict says of winners, losers, ties, wrong numbers, and steps that the model is a small part of."""

from __future__ import annotations

import dataclasses

import pytest

from burnish.tools.bench.around import StepShare
from burnish.tools.bench.measured import CompileCost
from burnish.tools.bench.words import count, seconds_words
from tests.tools.bench.results import result, row


def test_a_winner_is_named_with_its_price() -> None:
    verdict = result(row("eager", 0.15), row("burnish", 0.125, eager_seconds=0.15, cold=7.5)).verdict
    assert verdict.kind == "compile" and verdict.winner == "burnish"
    assert verdict.headline.startswith("Compile it with burnish: 1.20 × faster than eager (150 ms → 125 ms per call).")
    assert "Its 7.5 s of compiling are paid back after 300 calls (3" in verdict.headline


def test_the_winner_may_be_someone_else() -> None:
    verdict = result(
        row("eager"), row("inductor:max-autotune", 0.05, cold=60.0), row("burnish", 0.08, cold=5.0)
    ).verdict
    assert verdict.winner == "inductor:max-autotune"
    assert verdict.headline.startswith("Compile it with Inductor max-autotune: 2.00 ×")
    assert any("burnish is 1.25 × faster than eager but compiles 12.0 × sooner" in reason for reason in verdict.reasons)


def test_of_two_about_as_fast_the_quicker_compile_wins() -> None:
    verdict = result(row("eager"), row("inductor", 0.0795, cold=30.0), row("burnish", 0.08, cold=6.0)).verdict
    assert verdict.winner == "burnish"
    assert any("Inductor is 1.26 × faster than eager and takes 5.0 × as long" in reason for reason in verdict.reasons)


def test_the_fastest_is_not_passed_over_because_its_rounds_spread() -> None:
    spread = row("burnish", 0.08, cold=5.0)
    assert spread.speedup is not None
    spread = dataclasses.replace(spread, speedup=dataclasses.replace(spread.speedup, low=0.97))
    verdict = result(row("eager"), row("inductor", 0.093, cold=40.0), spread).verdict
    assert verdict.winner == "burnish" and verdict.headline.startswith("Compile it with burnish: 1.25 ×")
    assert result(row("eager"), spread).verdict.kind == "no difference"  # nobody is surely faster


def test_a_loser_is_left_in_eager() -> None:
    verdict = result(row("eager"), row("inductor", 0.2), row("burnish", 0.11)).verdict
    assert verdict.kind == "eager" and verdict.winner == "eager"
    assert verdict.headline == ("Leave it in eager: the fastest compiled candidate, burnish, is 10 % slower.")


def test_no_difference_beyond_noise_is_said_as_that() -> None:
    verdict = result(row("eager", noise=0.05), row("burnish", 0.1, noise=0.05)).verdict
    assert verdict.kind == "no difference"
    assert verdict.headline.startswith("No difference beyond noise: leave it in eager.")


def test_wrong_numbers_never_win() -> None:
    verdict = result(row("eager"), row("burnish", 0.05, error=1e-2)).verdict
    assert verdict.kind == "eager"
    assert verdict.headline == "Leave it in eager: no compiled candidate gives the right numbers."
    assert any("burnish gives wrong numbers: its error against float64 is 1.0e-02" in r for r in verdict.reasons)


def test_nan_is_wrong_and_eager_exact_by_luck_is_no_trap() -> None:
    assert result(row("eager"), row("burnish", 0.05, error=float("nan"))).verdict.kind == "eager"
    assert result(row("eager", error=0.0), row("burnish", 0.05, error=1e-7)).verdict.kind == "compile"


def test_a_step_that_is_mostly_data_says_so() -> None:
    share = StepShare(steps=20, total=1.0, data=0.8, model=0.12, has_data=True)
    verdict = result(row("eager"), row("burnish", 0.05), share=share).verdict
    assert verdict.kind == "look elsewhere" and verdict.winner == "burnish"
    assert verdict.headline == (
        "Speed up the data pipeline first: 88 % of a step is spent outside the model (80 % in the data pipeline), so "
        "no compiler can make a step more than 1.14 × faster; the best, burnish, makes it 1.06 ×."
    )


def test_a_step_that_is_mostly_python_says_so_even_without_a_winner() -> None:
    share = StepShare(steps=20, total=1.0, data=0.1, model=0.2, has_data=True)
    verdict = result(row("eager"), row("burnish", 0.2), share=share).verdict
    assert verdict.headline.startswith("Speed up the Python around the model first: 80 %")
    assert verdict.headline.endswith("none of these makes the model faster.")


def test_a_step_that_is_mostly_the_model_is_compiled() -> None:
    share = StepShare(steps=20, total=1.0, data=0.05, model=0.9, has_data=True)
    verdict = result(row("eager"), row("burnish", 0.05), share=share).verdict
    assert verdict.kind == "compile"
    assert "90 % is inside the model, 5 % is fetching data, 5 % is Python around it" in verdict.reasons[0]
    assert "with burnish it is 1.82 × faster" in verdict.reasons[0]


def test_failures_and_incompleteness_are_reasons() -> None:
    verdict = result(
        row("eager"), row("inductor", failure="InvalidCxxCompiler: none"), row("burnish", 0.05), incomplete="Ctrl-C"
    ).verdict
    assert verdict.reasons[0] == "Incomplete: Ctrl-C"
    assert "Inductor failed: InvalidCxxCompiler: none" in verdict.reasons


def test_a_cache_that_does_not_help_is_not_praised() -> None:
    helped = result(row("eager"), row("burnish", 0.05, cold=9.0)).verdict
    assert "Its first start compiles for 9.0 s; later ones, with a filled cache, for 3.0 s." in helped.reasons
    same = CompileCost(9.0, 9.5)
    did_not = result(row("eager"), dataclasses.replace(row("burnish", 0.05), compile=same)).verdict
    assert any(reason.startswith("A filled cache made no difference") for reason in did_not.reasons)


def test_nothing_compiled_at_all() -> None:
    assert result(row("eager"), row("burnish", failure="no")).verdict.headline == (
        "Leave it in eager: no candidate could compile it."
    )
    stopped = result(row("eager", failure="stopped"), incomplete="stopped by Ctrl-C").verdict
    assert stopped.kind == "unknown" and "stopped before the candidates were compared" in stopped.headline


def test_noise_is_said_with_its_cause() -> None:
    verdict = result(
        row("eager", noise=0.1), row("burnish", 0.03, noise=0.1), causes=("a noisy neighbour", "8 threads on 2 cores")
    ).verdict
    (words,) = (reason for reason in verdict.reasons if reason.startswith("Times are noisy"))
    assert "Likely cause: a noisy neighbour; also 8 threads on 2 cores." in words


def test_break_even_counts_calls_until_the_compile_is_paid() -> None:
    found = result(row("eager", 0.1), row("inductor", 0.2), row("burnish", 0.05, cold=10.0))
    assert found["burnish"].break_even_calls == pytest.approx(10.0 / 0.05, rel=0.02)
    assert found["inductor"].break_even_calls is None, "never"
    assert found["eager"].break_even_calls is None


def test_numbers_as_words() -> None:
    assert [count(n) for n in (0.3, 47.2, 1234, 98_765, 3.2e6, 4e9)] == [
        "1", "47", "1,200", "99,000", "3.2 million", "4.0 billion",
    ]  # fmt: skip
    assert [seconds_words(s) for s in (0.02, 4.4, 37, 600, 9000, 400_000)] == [
        "20 ms", "4.4 s", "37 s", "10 min", "2 h", "5 days",
    ]  # fmt: skip
