"""The page's table of compile times: what `compile_time` measured, each beside its goal."""

from __future__ import annotations

from typing import Any

from benchmarks.compile_time import ROWS, ratio_of

WHOLE_GOAL = 1 / 2.5  # without regions


def section(result: dict[str, Any]) -> str:
    machine, rows, growth = result["machine"], result["rows"], result.get("growth", {})
    device = "cuda" if "gpu" in machine else "cpu"
    goals = ROWS[device]
    names = [*(name for name in goals if name in rows), *(name for name in rows if name not in goals)]
    measured = [*rows.values(), *growth.values()]
    facts = [sorted({str(row[name]) for row in measured}) for name in ("measured", "commit", "torch")]
    when, commit, torch = (" / ".join(values) for values in facts)
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    shown = [_row(name, rows[name], device) for name in names]
    told = [title for title in shown[0] if any(row[title] != "–" for row in shown)] if shown else []
    table = _table([title.rpartition(":")[2].strip() for title in told], [[row[t] for t in told] for row in shown])
    lines = [f"**Compile time, {where}** ({when}, commit {commit}, torch {torch})", "", *table, ""]
    if growth:
        depths = sorted(growth, key=int)
        engines = list(dict.fromkeys(engine for row in growth.values() for engine in row["engines"]))
        seconds = [[_titled(e), *(_seconds(growth[d]["engines"].get(e, {}), "cold") for d in depths)] for e in engines]
        lines += [*_table(["cold, by layers of a Llama", *depths], seconds), ""]
    return "\n".join(lines)


def _row(name: str, row: dict[str, Any], device: str) -> dict[str, str]:
    """Cells by title; what is before a colon only tells equal ones apart. A column that says nothing is left out."""
    inductor, ours, whole = (row["engines"].get(engine, {}) for engine in ("inductor", "burnish", "burnish-whole"))
    goal = ROWS[device].get(name)
    cold, warm = ours.get("cold", {}), ratio_of(row, "warm")
    return {
        "workload": f"{name}, {row['mode']}" if row.get("mode") else name,
        "cold, Inductor": _seconds(inductor, "cold"),
        "cold: burnish": _seconds(ours, "cold"),
        "of it the gate": f"{cold['gate_seconds']:.1f} s" if "gate_seconds" in cold else "–",
        "cold: ratio (goal)": _ratio(ratio_of(row, "cold"), goal and goal.cold),
        "without regions": _seconds(whole, "cold"),
        "whole: ratio (goal)": _ratio(ratio_of(row, "cold", "burnish-whole"), WHOLE_GOAL),
        "warm, Inductor": _seconds(inductor, "warm"),
        "warm: burnish": _seconds(ours, "warm"),
        "warm: ratio (goal)": _ratio(warm, goal and goal.warm),
        "memory, Inductor": _memory(inductor.get("cold", {})),
        "memory: burnish": _memory(cold),
        "regions / whole (goal 1.02)": _steady(row.get("steady", {}).get("ratio")),
    }


def _seconds(found: dict[str, Any], start: str) -> str:
    if start not in found:
        return "–"
    return f"{found[start]['seconds']:.1f} s" if "seconds" in found[start] else "failed"


def _ratio(ratio: float | None, goal: float | None) -> str:
    if ratio is None:
        return "–"
    return f"1/{1 / ratio:.1f}" + (f" (1/{1 / goal:g})" if goal else "")


def _memory(found: dict[str, Any]) -> str:
    parts = [f"{found[key] / 2**20:.0f} MiB{where}" for key, where in _PLACES.items() if key in found]
    return " + ".join(parts) or "–"


_PLACES = {"host_bytes": "", "device_bytes": " on the GPU"}


def _steady(ratio: dict[str, Any] | None) -> str:
    if ratio is None:
        return "–"
    noisy = (ratio["high"] - ratio["low"]) / ratio["value"] > 0.05
    return f"{ratio['value']:.3f}" + (f" ({ratio['low']:.3f}–{ratio['high']:.3f})" if noisy else "")


def _titled(engine: str) -> str:
    return {"inductor": "Inductor", "burnish-whole": "burnish without regions"}.get(engine, engine)


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows)]
