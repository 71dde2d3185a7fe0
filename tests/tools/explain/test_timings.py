"""The stages of a compile, as numbers and as bars."""

from __future__ import annotations

import io
import time

import torch
from rich.console import Console

import burnish
from burnish.observe.log import CompileLog
from burnish.stats import Span
from burnish.tools.explain.timings import stage_table


def shown(*args: object) -> list[str]:
    out = io.StringIO()
    Console(width=120, file=out, color_system=None).print(stage_table(*args))  # type: ignore[arg-type]
    return out.getvalue().splitlines()


def test_stages_without_a_timeline_follow_one_another() -> None:
    first, second = (line for line in shown({"dynamo": 3.0, "build": 1.0}) if "█" in line)
    assert first.count("█") == 3 * second.count("█") and "75%" in first and "25%" in second
    assert second.index("█") == first.rindex("█") + 1


def test_bars_lie_where_stages_lay_and_what_ran_beside_is_told_apart() -> None:
    timeline = (
        Span("dynamo", 0.0, 4.0),
        Span("build", 1.0, 3.0, depth=1),
        Span("triton bn_a", 1.0, 2.0, lane=1),
        Span("triton bn_b", 1.0, 3.0, lane=2),
    )
    lines = [line for line in shown({"dynamo": 2.0, "build": 2.0}, timeline) if "█" in line]
    dynamo, build, beside = lines
    assert (
        build.index("build") == dynamo.index("dynamo") + 2
        and "50%" in build
        and build.count("█") * 2 == dynamo.count("█")
    )
    assert build.index("█") - dynamo.index("█") == dynamo.count("█") // 4
    assert "beside: triton, 2 on 2" in beside and "3.000" in beside
    assert (beside.index("█"), beside.count("█")) == (build.index("█"), build.count("█"))


def test_a_charge_is_taken_from_the_open_stage() -> None:
    log = CompileLog()
    with log.stage("dynamo"):
        start = time.perf_counter()
        log.charge("guards", 100.0)
        log.beside("cc", start, start + 1.0)
    stats = log.snapshot()
    assert stats.seconds == {"guards": 100.0, "dynamo": 0.0}
    assert next((span.name, span.depth, span.lane) for span in stats.timeline) == ("guards", 1, 0)


def test_the_front_end_is_in_the_numbers() -> None:
    compiled = burnish.compile(torch.nn.Linear(4, 4))
    compiled(torch.ones(2, 4))
    stats = burnish.stats(compiled)
    assert {"dynamo", "guards", "aot", "import", "build"} <= stats.seconds.keys()
    spans = {span.name: span for span in reversed(stats.timeline) if span.lane == 0}  # the first of each name
    outer = spans["dynamo"]
    for inner in ("aot", "guards"):
        assert outer.begin <= spans[inner].begin <= spans[inner].end <= outer.end and spans[inner].depth > 0
    assert spans["aot"].end <= spans["guards"].begin
    assert outer.end <= spans["build"].begin, "what is left of the C compiler's time is waited for last"
