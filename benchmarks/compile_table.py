"""The README's table of compile times: what `compile_time` measured, each beside its goal."""

from __future__ import annotations

from typing import Any

from benchmarks.compile_time import ROWS, ratio_of

STEADY_GOAL = 1.02


def section(result: dict[str, Any]) -> str:
    machine, rows, growth = result["machine"], result["rows"], result.get("growth", {})
    device = "cuda" if "gpu" in machine else "cpu"
    goals = ROWS[device]
    names = [*(name for name in goals if name in rows), *(name for name in rows if name not in goals)]
    measured = [*rows.values(), *growth.values()]
    facts = [sorted({str(row[name]) for row in measured}) for name in ("measured", "commit", "torch")]
    when, commit, torch = (" / ".join(values) for values in facts)
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    head = ["workload", "cold: Inductor", "burnish", "of it the gate", "ratio (goal)", "warm: Inductor", "burnish"]
    head += ["ratio (goal)", "memory: Inductor", "burnish", "regions / whole (goal 1.02)"]
    shown = [_row(name, rows[name], device) for name in names]
    lines = [f"**Compile time, {where}** ({when}, commit {commit}, torch {torch})", "", *_table(head, shown), ""]
    if growth:
        depths = sorted(growth, key=int)
        engines = list(dict.fromkeys(engine for row in growth.values() for engine in row["engines"]))
        seconds = [[_titled(e), *(_seconds(growth[d]["engines"].get(e, {}), "cold") for d in depths)] for e in engines]
        lines += [*_table(["cold, by layers of a Llama", *depths], seconds), ""]
    return "\n".join(lines)


def _row(name: str, row: dict[str, Any], device: str) -> list[str]:
    inductor, ours = (row["engines"].get(engine, {}) for engine in ("inductor", "burnish"))
    goal = ROWS[device].get(name)
    cells = [f"{name}, {row['mode']}" if row.get("mode") else name]
    for start, wanted in (("cold", goal and goal.cold), ("warm", goal and goal.warm)):
        cells += [_seconds(inductor, start), _seconds(ours, start)]
        if start == "cold":
            cells.append(f"{ours[start]['gate_seconds']:.1f} s" if "gate_seconds" in ours.get(start, {}) else "–")
        cells.append(_ratio(ratio_of(row, start), wanted))
    steady = row.get("steady", {}).get("ratio")
    return [*cells, *(_memory(found.get("cold", {})) for found in (inductor, ours)), _steady(steady)]


def _seconds(found: dict[str, Any], start: str) -> str:
    if start not in found:
        return "–"
    return f"{found[start]['seconds']:.1f} s" if "seconds" in found[start] else "failed"


def _ratio(ratio: float | None, goal: float | None) -> str:
    if ratio is None:
        return "–"
    return f"1/{1 / ratio:.1f}" + (f" (1/{1 / goal:.0f})" if goal else "")


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
