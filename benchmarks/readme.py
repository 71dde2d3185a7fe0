"""`python -m benchmarks.readme`: write docs/benchmarks.md and the README's picture from the committed results, so that
they cannot differ.

`--check` writes nothing and fails when either is not what the results say.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import compile_table, generation_table, trust_table
from benchmarks.cuda import GOALS, OWN
from benchmarks.picture import speedups_svg
from burnish.tools.measure import duration
from burnish.tools.workloads import WORKLOADS

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PICTURE = DOCS / "benchmarks.md", DOCS / "speedups.svg"
RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- numbers: written by `make readme` -->", "<!-- end of numbers -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether both are up to date")
    arguments = parser.parse_args()
    stale = [path for path, text in fresh().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if arguments.check:
            print(f"docs/{path.name} does not match benchmarks/results; run: make readme", file=sys.stderr)
        else:
            path.write_text(fresh()[path])
    return int(arguments.check and bool(stale))


def fresh() -> dict[Path, str]:
    """What each file must hold."""
    results = committed()
    return {PAGE: with_numbers(PAGE.read_text(), results), PICTURE: speedups_svg(results)}


def committed() -> list[dict[str, Any]]:
    """Every machine's results: CPUs with what was promised of them, GPUs, GPUs' decoding, compile times."""
    cpus, gpus, decoding = (sorted(RESULTS.glob(f"{kind}-*.json")) for kind in ("core", "cuda", "generation"))
    compiling = sorted(RESULTS.glob("compile-*.json"))
    return [*map(_read, cpus), *trust_table.promises(RESULTS), *map(_read, [*gpus, *decoding, *compiling])]


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def with_numbers(text: str, results: list[dict[str, Any]]) -> str:
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"docs/benchmarks.md has lost its markers {BEGIN} … {END}")
    body = "\n".join(section(result) for result in results) or "Not measured yet.\n"
    return f"{head}{begin}\n{body}{end}{tail}"


def section(result: dict[str, Any]) -> str:
    if result.get("what") == "generation":
        return generation_table.section(result)
    if result.get("what") == "compile":
        return compile_table.section(result)
    if result.get("what") == "promises":
        return trust_table.section(result)
    if "gpu" in result:
        return _gpu_section(result)
    machine, rows = result["machine"], result["rows"]
    names = [name for name in WORKLOADS if name in rows] + [name for name in rows if name not in WORKLOADS]
    ordered = {name: rows[name] for name in names}
    return "\n".join(
        [
            f"**{machine['cpu']}, {machine['cores']} cores, {machine['system']}** ({_provenance(ordered)})",
            "",
            *_table(
                ["workload", "eager p50", "Inductor p50", "burnish p50", "vs eager", "vs Inductor", "error / eager's"],
                [_speed_row(name, row) for name, row in ordered.items()],
            ),
            "",
            *_table(
                ["workload", "Inductor cold", "burnish cold", "ratio", "memory: eager", "Inductor", "burnish"],
                [_cost_row(name, row) for name, row in ordered.items()],
            ),
            "",
        ]
    )


def _gpu_section(result: dict[str, Any]) -> str:
    rows = [row for candidates in result["rows"].values() for row in candidates.values()]
    facts = [" / ".join(sorted({row[field] for row in rows})) for field in ("date", "commit")]
    headings = (
        "workload|candidate|p50|goal|back to back|kernels' sum|host|kernels|cold|peak memory|error / eager's".split("|")
    )
    shown = [_gpu_row(name, *item) for name, candidates in result["rows"].items() for item in candidates.items()]
    versions = f"torch {result['torch']}, Triton {result['triton']}"
    return "\n".join(
        [f"**{result['gpu']}** ({facts[0]}, commit {facts[1]}, {versions})", "", *_table(headings, shown), ""]
    )


def _gpu_row(workload: str, candidate: str, row: dict[str, Any]) -> list[str]:
    p50, stream, gpu = (f"{row[field]:.3f} ms" if field in row else "–" for field in ("p50_ms", "stream_ms", "gpu_ms"))
    goal = f"≤ {GOALS[workload]} ms" if candidate in OWN and workload in GOALS else "–"
    error = f"{row['error'] / row['eager_error']:.2f}" if row.get("eager_error") else "–"
    rest = [
        f"{row['host_us']:.0f} µs",
        str(row.get("kernels", "–")),
        f"{row['cold_s']:.1f} s" if "cold_s" in row else "–",
        f"{row['peak_gb']:.2f} GB",
    ]
    return [workload, candidate, p50, goal, stream, gpu, *rest, error]


def _provenance(rows: dict[str, Any]) -> str:
    """What the rows have in common; rows of several commits or days show all of them."""
    found = []
    for label, field in (("", "measured"), ("commit ", "commit"), ("torch ", "torch"), ("threads ", "threads")):
        values = list(dict.fromkeys(str(row[field]) for row in rows.values()))
        found.append(label + " / ".join(values))
    return ", ".join(found)


def _speed_row(name: str, row: dict[str, Any]) -> list[str]:
    engines = row["engines"]
    times = [duration(one["timing"]["p50"]) if (one := engines[engine])["timing"] else "failed" for engine in engines]
    ratios = [_ratio(row["speedup"].get(other)) for other in ("eager", "inductor")]
    ours, eager = engines["burnish"]["error"], engines["eager"]["error"]
    return [name, *times, *ratios, f"{ours / eager:.2f}" if ours is not None and eager else "–"]


def _ratio(ratio: dict[str, Any] | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio['value']:.2f} ×" + (f" ({ratio['low']:.2f}–{ratio['high']:.2f})" if ratio["noisy"] else "")


def _cost_row(name: str, row: dict[str, Any]) -> list[str]:
    inductor, ours = (row["cold_seconds"][engine] for engine in ("inductor", "burnish"))
    colds = [f"{cold['p50']:.1f} s" if cold else "failed" for cold in (inductor, ours)]
    ratio = f"1/{inductor['p50'] / ours['p50']:.1f}" if inductor and ours else "–"
    memory = [_memory(row["memory"].get(engine)) for engine in ("eager", "inductor", "burnish")]
    return [name, *colds, ratio, *memory]


def _memory(found: dict[str, int] | None) -> str:
    if found is None:
        return "–"
    held = f" + {found['held'] / 2**20:.1f} held" if found["held"] >= 2**16 else ""
    return f"{found['call'] / 2**20:.1f} MiB{held}"


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    words = 2 if headings[1] == "candidate" else 1
    rule = [*["---"] * words, *["---:"] * (len(headings) - words)]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows)]


if __name__ == "__main__":
    sys.exit(main())
