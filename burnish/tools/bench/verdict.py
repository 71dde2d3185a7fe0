"""The verdict in words: a recommendation and its reasons, with noise, failures and limits."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.tools.bench.around import StepShare
from burnish.tools.bench.candidates import EAGER
from burnish.tools.bench.measured import BenchVerdict, CandidateResult, VerdictKind
from burnish.tools.bench.words import count, percent, seconds_words, times
from burnish.tools.measure import duration
from burnish.trust.strictness import BENCH

_LEAST_ERROR = 1e-6  # eager may be exact by chance (integers, one product); an error below this never counts
DOMINATED = 0.5  # of a step spent outside the model: compiling is not the first thing to do
CLOSE = 0.97  # as fast as the fastest, give or take noise: the cheaper compile wins


def decide(
    candidates: Sequence[CandidateResult],
    *,
    share: StepShare | None = None,
    causes: Sequence[str] = (),
    incomplete: str | None = None,
) -> BenchVerdict:
    """The verdict on a bench."""
    eager = next((result for result in candidates if result.name == EAGER and result.latency), None)
    rivals = [result for result in candidates if result.speedup is not None]
    if eager is None or not rivals:
        return _nothing_to_say(candidates, incomplete)
    right = [result for result in rivals if not is_wrong(result, eager)]
    winner = best_of(right)
    reasons = [
        *_about_the_step(share, winner),
        *_about_the_winner(winner, eager, rivals),
        *_about_the_losers(rivals, winner, eager),
        *_about_what_was_not_compared(rivals),
        *_about_failures(candidates),
        *_about_noise(candidates, causes),
    ]
    if incomplete:
        reasons.insert(0, f"Incomplete: {incomplete}")
    kind, headline = _headline(eager, right, winner, share)
    return BenchVerdict(kind, headline, tuple(reasons), winner.name if winner else EAGER)


def is_wrong(result: CandidateResult, eager: CandidateResult) -> bool:
    """Its results are further from float64 than rounding explains."""
    if result.error is None or eager.error is None:
        return False
    return not result.error <= most_error(eager.error)


def most_error(eagers: float) -> float:
    """Beyond it a result is wrong."""
    return BENCH.times_eager * max(eagers, _LEAST_ERROR)


def best_of(rivals: Sequence[CandidateResult]) -> CandidateResult | None:
    """The fastest, where one beats eager beyond noise; of those about as fast, the one that compiles soonest. One that
    was measured faster still is not passed over because its own rounds spread."""
    sure = [result for result in rivals if result.speedup and result.speedup.is_faster]
    if not sure:
        return None
    surely = max(_speed(result) for result in sure)
    faster = [*sure, *(r for r in rivals if r not in sure and r.speedup and CLOSE * _speed(r) > surely)]
    top = max(_speed(result) for result in faster)
    close = [result for result in faster if _speed(result) >= CLOSE * top]
    return min(close, key=lambda result: (_cold(result), -_speed(result)))


def break_even(result: CandidateResult, eager: CandidateResult) -> float | None:
    """Calls after which the cold compile has paid for itself; None: never."""
    if not (result.latency and eager.latency and result.speedup and result.compile):
        return None
    cold = result.compile.cold_seconds
    if cold is None or not result.speedup.is_faster:
        return None
    saved = eager.latency.p50.value * (1 - 1 / result.speedup.value)
    return cold / saved


# -- the headline -------------------------------------------------------------------------------------------------


def _headline(
    eager: CandidateResult,
    right: Sequence[CandidateResult],
    winner: CandidateResult | None,
    share: StepShare | None,
) -> tuple[VerdictKind, str]:
    if share is not None and 1 - share.model_fraction > DOMINATED:
        return "look elsewhere", _look_elsewhere(share, winner)
    if winner is not None:
        return "compile", _compile_it(winner, eager)
    if not right:
        return "eager", "Leave it in eager: no compiled candidate gives the right numbers."
    fastest = max(right, key=_speed)
    if fastest.speedup and fastest.speedup.is_slower:
        slower = (1 / fastest.speedup.value - 1) * 100
        return "eager", f"Leave it in eager: the fastest compiled candidate, {fastest.title}, is {slower:.0f} % slower."
    return "no difference", _no_difference(fastest)


def _compile_it(winner: CandidateResult, eager: CandidateResult) -> str:
    assert winner.speedup and winner.latency and eager.latency
    text = (
        f"Compile it with {winner.title}: {winner.speedup.value:.2f} × faster than eager "
        f"({duration(eager.latency.p50.value)} → {duration(winner.latency.p50.value)} per call)"
    )
    calls = winner.break_even_calls
    cold = winner.compile.cold_seconds if winner.compile else None
    if calls is None or cold is None:
        return text + "."
    spent = calls * winner.latency.p50.value
    cost = f"Its {seconds_words(cold)} of compiling are paid back after {count(calls)} calls ({seconds_words(spent)})"
    return f"{text}. {cost}."


def _no_difference(fastest: CandidateResult) -> str:
    assert fastest.speedup
    low, high = fastest.speedup.low, fastest.speedup.high
    return (
        f"No difference beyond noise: leave it in eager. The best candidate, {fastest.title}, is somewhere between "
        f"{low:.2f} × and {high:.2f} × as fast."
    )


def _look_elsewhere(share: StepShare, winner: CandidateResult | None) -> str:
    outside = 1 - share.model_fraction
    where = "the data pipeline" if share.data >= share.other else "the Python around the model"
    part = max(share.data, share.other) / share.total
    text = (
        f"Speed up {where} first: {percent(outside)} of a step is spent outside the model ({percent(part)} in "
        f"{where}), so no compiler can make a step more than {share.best_gain:.2f} × faster"
    )
    if winner is None or winner.speedup is None:
        return f"{text}, and none of these makes the model faster."
    return f"{text}; the best, {winner.title}, makes it {share.gain(winner.speedup.value):.2f} ×."


def _nothing_to_say(candidates: Sequence[CandidateResult], incomplete: str | None) -> BenchVerdict:
    reasons = [f"Incomplete: {incomplete}"] if incomplete else []
    if incomplete:
        headline = "No verdict: it was stopped before the candidates were compared."
    elif any(result.candidate.compiles and result.failure is None for result in candidates):
        headline = "No verdict: eager itself was not measured."
    elif any(result.candidate.compiles for result in candidates):
        headline = "Leave it in eager: no candidate could compile it."
    else:
        headline = "No verdict: there is nothing to compare eager with."
    return BenchVerdict("unknown", headline, (*reasons, *_about_failures(candidates)), None)


# -- what it rests on ---------------------------------------------------------------------------------------------


def _about_the_step(share: StepShare | None, winner: CandidateResult | None) -> list[str]:
    if share is None:
        return []
    text = (
        f"Of a step's {duration(share.total)}, {percent(share.model_fraction)} is inside the model, "
        + (f"{percent(share.data / share.total)} is fetching data, " if share.has_data else "")
        + f"{percent(share.other / share.total)} is Python around it. "
        + f"A step can get at most {_gain(share.best_gain)} faster"
    )
    if winner is not None and winner.speedup is not None:
        text += f"; with {winner.title} it is {share.gain(winner.speedup.value):.2f} × faster"
    return [text + "."]


def _gain(value: float) -> str:
    return "any number of times" if value > 1000 else f"{value:.2f} ×"


def _about_the_winner(
    winner: CandidateResult | None, eager: CandidateResult, rivals: Sequence[CandidateResult]
) -> list[str]:
    if winner is None or winner.speedup is None:
        return []
    found = [
        f"{winner.title}'s advantage over eager lies between {winner.speedup.low:.2f} × and "
        f"{winner.speedup.high:.2f} × (95 % interval, {winner.speedup.rounds} rounds in turns)."
    ]
    cost = winner.compile
    if cost and cost.cold_seconds is not None and cost.warm_seconds is not None and cost.isolated:
        found.append(_starts(cost.cold_seconds, cost.warm_seconds))
    if winner.error is not None and eager.error is not None:
        found.append(_accuracy(winner, eager))
    if winner.breaks:
        mending = "mending it" if len(winner.breaks) == 1 else "mending them"
        found.append(f"Its graph is broken in {times(len(winner.breaks), 'place')}; {mending} may gain more.")
    found += [f"{winner.title}: {note}." for note in winner.notes]
    return found


def _starts(cold: float, warm: float) -> str:
    first, later = seconds_words(cold), seconds_words(warm)
    if warm > 0.9 * cold:
        return f"A filled cache made no difference: it compiled for {first} without and for {later} with one."
    return f"Its first start compiles for {first}; later ones, with a filled cache, for {later}."


def _accuracy(result: CandidateResult, eager: CandidateResult) -> str:
    assert result.error is not None and eager.error is not None
    if result.error <= eager.error:
        return (
            f"{result.title} is at least as close to float64 as eager ({result.error:.1e} against {eager.error:.1e})."
        )
    ratio = result.error / max(eager.error, 1e-30)
    both = f"{result.error:.1e} against {eager.error:.1e}"
    return f"{result.title}'s error against float64 is {ratio:.1f} × eager's ({both})."


def _about_what_was_not_compared(rivals: Sequence[CandidateResult]) -> list[str]:
    reasons = dict.fromkeys(result.uncompared for result in rivals if result.uncompared)
    found = []
    for reason in reasons:
        titles = [result.title for result in rivals if result.uncompared == reason]
        found.append(f"Whether the numbers are right is not known of {' and '.join(titles)}: {reason}.")
    return found


def _about_the_losers(
    rivals: Sequence[CandidateResult], winner: CandidateResult | None, eager: CandidateResult
) -> list[str]:
    found = []
    for result in rivals:
        if result is winner or result.speedup is None:
            continue
        if is_wrong(result, eager):
            found.append(
                f"{result.title} gives wrong numbers: its error against float64 is {result.error:.1e}, "
                f"eager's {eager.error:.1e}."
            )
            continue
        words = f"{result.title} is {_compared(result)}"
        if winner is not None and winner.speedup is not None:
            words += _beside_the_winner(result, winner)
        found.append(words + ".")
    return found


def _compared(result: CandidateResult) -> str:
    assert result.speedup
    value = result.speedup.value
    if result.speedup.is_faster:
        return f"{value:.2f} × faster than eager"
    if result.speedup.is_slower:
        return f"{(1 / value - 1) * 100:.0f} % slower than eager"
    return "as fast as eager within noise"


def _beside_the_winner(result: CandidateResult, winner: CandidateResult) -> str:
    cold, best = _cold(result), _cold(winner)
    if not (0 < best < float("inf") and 0 < cold < float("inf")):
        return ""
    if cold > 1.15 * best:
        return f" and takes {cold / best:.1f} × as long to compile as {winner.title}"
    if cold < best / 1.15:
        return f" but compiles {best / cold:.1f} × sooner than {winner.title}"
    return ""


def _about_failures(candidates: Sequence[CandidateResult]) -> list[str]:
    return [f"{result.title} failed: {result.failure}" for result in candidates if result.failure]


def _about_noise(candidates: Sequence[CandidateResult], causes: Sequence[str]) -> list[str]:
    noisy = [result for result in candidates if result.latency and result.latency.noisy]
    if not noisy:
        return []
    worst = max(noisy, key=lambda result: result.latency.spread if result.latency else 0.0)
    assert worst.latency
    why = f"Likely cause: {causes[0]}" if causes else "Nothing on this machine explains it"
    also = f"; also {'; '.join(causes[1:3])}" if len(causes) > 1 else ""
    return [
        f"Times are noisy: {worst.title}'s rounds spread over {percent(worst.latency.spread)}. {why}{also}. Ratios are "
        "taken round by round, so they suffer less than the times."
    ]


# -- what is compared ------------------------------------------------------------------------------------------


def _speed(result: CandidateResult) -> float:
    return result.speedup.value if result.speedup else 0.0


def _cold(result: CandidateResult) -> float:
    cold = result.compile.cold_seconds if result.compile else None
    return float("inf") if cold is None else cold
