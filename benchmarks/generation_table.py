"""The page's tables of decoding, from what `benchmarks.generation` wrote, with the goals beside the figures."""

from __future__ import annotations

from typing import Any

from benchmarks.generation import GOAL_FIRST_TOKEN_S, GOAL_INT4, START, WHOLE, WORK

Rows = dict[str, dict[str, Any]]


def section(result: dict[str, Any]) -> str:
    rows: Rows = {name: _measured(candidates) for name, candidates in result["rows"].items()}
    every = [row for candidates in rows.values() for row in candidates.values()]
    facts = [" / ".join(sorted({row[field] for row in every})) for field in ("date", "commit")]
    head = f"**Decoding, {result['gpu']}** ({facts[0]}, commit {facts[1]}, torch {result['torch']}, bf16)"
    step = ["model", "candidate", "p50", "back to back", "goal", "GB/s", "of bandwidth", "cold", "logits' error"]
    whole = ["model", "`generate`", "seconds", "tokens/s", "first token", "first time, more"]
    start = ["model", "from `generation.compile`", "first token", "goal", "second token"]
    tables = [(step, _steps(rows)), (whole, _wholes(rows)), (start, _starts(rows))]
    return "\n".join([head, "", *(line for head, body in tables if body for line in [*_table(head, body), ""])])


def _measured(candidates: dict[str, Any]) -> dict[str, Any]:
    return {name: row for name, row in candidates.items() if "failure" not in row}


def _steps(rows: Rows) -> list[list[str]]:
    return [
        [
            name,
            candidate,
            f"{row['p50_ms']:.3f} ms",
            f"{row['stream_ms']:.3f} ms",
            _goal(name, candidate, candidates),
            f"{row['gb_per_s']:.0f}",
            f"{row['of_bandwidth']:.0%}" if "of_bandwidth" in row else "–",
            f"{row['cold_s']:.1f} s" if "cold_s" in row else "–",
            f"{row['logit_error']:.1%}" if "logit_error" in row else "–",
        ]
        for name, candidates in rows.items()
        for candidate, row in candidates.items()
        if "p50_ms" in row
    ]


def _goal(name: str, candidate: str, candidates: dict[str, Any]) -> str:
    if candidate == "burnish" and name in WORK:
        return f"≤ {WORK[name].goal_ms} ms"
    if candidate == "burnish:int4" and "burnish" in candidates:
        return f"≤ {candidates['burnish']['stream_ms'] / GOAL_INT4:.3f} ms"
    return "–"


def _wholes(rows: Rows) -> list[list[str]]:
    return [
        [
            name,
            candidate,
            f"{row['seconds']:.3f}",
            f"{row['tokens_per_s']:.0f}",
            f"{row['first_token_ms']:.1f} ms" if row["first_token_ms"] else "–",
            f"{row['cold_s']:.1f} s" if "cold_s" in row else "–",
        ]
        for name, candidates in rows.items()
        for candidate, row in candidates.items()
        if candidate in WHOLE
    ]


def _starts(rows: Rows) -> list[list[str]]:
    found = []
    for name, candidates in rows.items():
        cold = candidates.get(START)
        for caches, row in (("cold", cold), ("warm", cold and cold.get("warm"))):
            if row and "failure" not in row:
                goal = f"≤ {GOAL_FIRST_TOKEN_S[caches]:.0f} s"
                found.append([name, caches, f"{row['first_token_s']:.2f} s", goal, f"{row['second_token_s']:.2f} s"])
    return found


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    rule = ["---", "---", *["---:"] * (len(headings) - 2)]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows)]
