"""One number of a result as the text of a table's cell: shared by the terminal and the report."""

from __future__ import annotations

from burnish.tools.bench.measured import CandidateResult, Measured
from burnish.tools.bench.statistics import Estimate
from burnish.tools.bench.verdict import is_wrong
from burnish.tools.bench.warmup import LEAST
from burnish.tools.bench.words import count
from burnish.tools.measure import duration

NONE = "–"


def speedup(row: CandidateResult) -> str:
    if row.speedup is not None:
        return f"{row.speedup.value:.2f} ×"
    return NONE if row.candidate.compiles or row.latency is None else "1 ×"


def interval(estimate: Estimate) -> str:
    """Both ends, in the unit of the value: 12.1–12.9."""
    scale, digits = _unit(estimate.value)[:2]
    return f"{estimate.low * scale:.{digits}f}–{estimate.high * scale:.{digits}f}"


def mean_and_std(row: CandidateResult) -> str:
    if row.latency is None:
        return NONE
    scale, digits, unit = _unit(row.latency.mean.value)
    return f"{row.latency.mean.value * scale:.{digits}f} ± {row.latency.std * scale:.{digits}f} {unit}"


def _unit(seconds: float) -> tuple[float, int, str]:
    """As `duration` chooses it: scale, digits, name."""
    if seconds < 1e-3:
        return 1e6, 1, "µs"
    if seconds < 2.0:
        return (1e3, 2, "ms") if seconds < 0.1 else (1e3, 0, "ms")
    return 1.0, 2, "s"


def calls_per_second(row: CandidateResult) -> str:
    return NONE if row.calls_per_second is None else _rate(row.calls_per_second)


def samples_per_second(row: CandidateResult, result: Measured) -> str:
    if row.calls_per_second is None or result.batch_size is None:
        return NONE
    return _rate(row.calls_per_second * result.batch_size)


def shows_samples(result: Measured) -> bool:
    """With one sample in a call, samples per second are calls per second."""
    return result.batch_size is not None and result.batch_size > 1


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"


def error(row: CandidateResult, result: Measured) -> str:
    if row.error is None:
        return "not compared" if row.uncompared else NONE
    return f"{row.error:.1e}" + (" WRONG" if row.candidate.compiles and is_wrong(row, result.eager) else "")


def seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f} s"


def cold(row: CandidateResult) -> str:
    return seconds(row.compile.cold_seconds if row.compile else None)


def warm(row: CandidateResult) -> str:
    return seconds(row.compile.warm_seconds if row.compile else None)


def pays_after(row: CandidateResult) -> str:
    if not row.candidate.compiles or row.speedup is None:
        return NONE
    return "never" if row.break_even_calls is None else f"{count(row.break_even_calls)} calls"


def compile_peak(row: CandidateResult, result: Measured) -> str:
    if row.memory is None:
        return NONE
    return size(row.memory.device_compile_peak if result.device == "cuda" else row.memory.compile_peak)


def call_memory(row: CandidateResult, result: Measured) -> str:
    """What a call adds to the resident set; on a GPU the allocator's peak during steady calls."""
    if row.memory is None:
        return NONE
    return size(row.memory.device_steady_peak if result.device == "cuda" else row.memory.call_rise)


def steady_memory(row: CandidateResult) -> str:
    return NONE if row.memory is None else size(row.memory.steady)


def size(count_of_bytes: int | None) -> str:
    if count_of_bytes is None:
        return NONE
    mebibytes = count_of_bytes / 2**20
    return f"{mebibytes:.1f} MiB" if mebibytes < 100 else f"{mebibytes:,.0f} MiB"


def warm_up(row: CandidateResult) -> str:
    """Calls until it was steady."""
    if row.warm_up is None or len(row.warm_up.samples) < LEAST:
        return NONE  # too slow for its time to tell
    if not row.warm_up.settled:
        return "drifts"
    return count(row.warm_up.calls) if row.warm_up.calls else "0"


def operations(row: CandidateResult) -> str:
    """What a call runs: a GPU's kernels. On a CPU: the operators it calls, or the distinct kernels burnish made."""
    if row.profile is not None and row.profile.device_kernels is not None:
        return f"{row.profile.device_kernels:.0f}"
    if row.kernels is not None:
        return f"{row.kernels} kind{'s' * (row.kernels != 1)}"
    if row.candidate.compiles or row.profile is None or row.profile.aten_calls is None:
        return NONE  # an engine that generates kernels without saying how many
    return f"{row.profile.aten_calls:.0f}"


def host(row: CandidateResult) -> str:
    return NONE if row.host is None else duration(row.host.value)


def on_device(row: CandidateResult) -> str:
    busy = row.profile.device_seconds if row.profile else None
    return NONE if busy is None else duration(busy)


def energy(row: CandidateResult) -> str:
    joules = row.energy.joules if row.energy else None
    if joules is None:
        return NONE
    return f"{joules * 1e3:.1f} mJ" if joules < 1 else f"{joules:.2f} J"


def shows_energy(result: Measured) -> bool:
    return any(row.energy and row.energy.joules is not None for row in result.candidates)
