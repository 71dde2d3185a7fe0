"""The page's table of promises: what `never_slower`, `trust` and `background` measured, each beside its goal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KINDS = ("never_slower", "trust", "background")
LIMITS = (
    "What limits calls beside a compile: the guards are checked, and Dynamo's own code runs, in this process's "
    "interpreter, which runs one thread at a time; where Dynamo can pause it gives way, in between a call waits. The "
    "first call of a small model pays once for leaving its arguments and its thread's state behind."
)


def promises(results: Path) -> list[dict[str, Any]]:
    """Of each machine, what the benchmarks have left there: by their names, and the machine."""
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        for path in sorted(results.glob(f"{kind}-*.json")):
            measured = json.loads(path.read_text())
            of_machine = found.setdefault(path.stem.removeprefix(kind), {"what": "promises", "promises": {}})
            of_machine["machine"] = measured["machine"]
            of_machine["promises"][kind] = measured["rows"]
    return [found[name] for name in sorted(found)]


def section(result: dict[str, Any]) -> str:
    machine, found = result["machine"], result["promises"]
    rows = [row for kind in found.values() for row in kind.values()]
    facts = [sorted({str(row[name]) for row in rows}) for name in ("measured", "commit", "torch")]
    when, commit, torch = (" / ".join(values) for values in facts)
    trust = found.get("trust", {})
    shown = [
        ["promise", "measured", "goal"],
        ["---", "---", "---"],
        *_never_slower(found.get("never_slower", {})),
        *([text.format(**trust[name]) for text in texts] for name, texts in _TRUST.items() if name in trust),
        *_background(found.get("background", {})),
    ]
    head = f"**Promises, {machine['cpu']}, {machine['cores']} cores** ({when}, commit {commit}, torch {torch})"
    limits = [LIMITS, ""] if "background" in found else []
    return "\n".join([head, "", *("| " + " | ".join(cells) + " |" for cells in shown), "", *limits])


def _never_slower(rows: dict[str, Any]) -> list[list[str]]:
    if not rows:
        return []
    worst = sorted(rows, key=lambda name: -rows[name]["ratio"]["value"])[:3]
    told = ", ".join(f"{name} {rows[name]['ratio']['value']:.2f}" for name in worst)
    of = f"the worst of {len(rows)}: " if len(rows) > len(worst) else ""
    return [["small workloads after the gate, time over eager's", f"{of}{told}", "≤ 1.05"]]


_TRUST = {
    "gate": ("the gate's share of a cold compile, {target}", "{value:.1%}", "≤ {goal:.0%}"),
    "budget": (
        "first call with `budget={budget_seconds:.1f}`, less a steady call of eager's, {target}",
        "{value:.2f} × it (eager takes over at {eager_takes_over:.2f})",
        "≤ {goal:.2f} ×",
    ),
    "doctor": ("`burnish doctor`, the whole process", "{value:.1f} s", "≤ {goal:.0f} s"),
    "bench": ("`burnish bench {target}`: eager, Inductor, burnish", "{value:.0f} s", "≤ {goal:.0f} s"),
}


def _background(rows: dict[str, Any]) -> list[list[str]]:
    if not rows:
        return []
    first = [
        f"{name} {r['first_call_over_eager']:.2f}, {r['first_call_over_warm_eager']:.2f}" for name, r in rows.items()
    ]
    shown = []
    for name, row in rows.items():
        tails = " / ".join(f"{row[f'during_{tail}_over_eager']:.2f}" for tail in ("p50", "p95"))
        alone = " / ".join(f"{row[f'before_{tail}_over_eager']:.2f}" for tail in ("p50", "p95"))
        longest = f"{row['during_max_ms']:.0f} ms (of {row['calls_during_compile']:,})"
        took = (
            f"calls beside the compile of {name} ({row['compile_seconds']:.1f} s): p50 / p95 over eager's p50; longest"
        )
        shown.append([took, f"{tails} (eager alone {alone}); {longest}", "no call waits"])
    return [
        ["`background=True`: first call over eager's, caches cold, then warm", "; ".join(first), "≤ 1.2"],
        *shown,
    ]
