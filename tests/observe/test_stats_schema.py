"""burnish.stats is read by programs: its names are pinned here. Adding one is fine; for a change see stats.SCHEMA."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import burnish
from burnish import stats as stats_function
from burnish.stats import SCHEMA, Fallback, GraphBreak, LatencyStats, MemoryStats, Recompile, Stats
from burnish.trust.jobs import JobStats
from burnish.trust.record import GateStats, SizeClass, VariantStats, WholeCall

# schema 1
PINNED = {
    Stats: "name compiles graphs recompiles graph_breaks aten_calls kernels cache_hits cache_misses cache_reasons "
    "fallbacks fusions seconds timeline latency memory notices variants whole_call jobs events rollbacks schema",
    VariantStats: "id kind signature state engine reason stack gate rollbacks samples samples_dropped classes",
    GateStats: "eager_us compiled_us capture_us modules_us rounds compiled_error eager_error seconds compile_seconds "
    "ratio_median ratio_low ratio_high",
    WholeCall: "inputs served compiled_us eager_us ratio low high rounds note",
    SizeClass: "work engine gate",
    JobStats: "function inputs state reason seconds",
    GraphBreak: "file line reason",
    Recompile: "file line function reason",
    Fallback: "stage reason",
    LatencyStats: "variant engine calls seconds bounds counts",
    MemoryStats: "arena_bytes constant_bytes cuda_pool_bytes",
}


@pytest.mark.parametrize("record", PINNED)
def test_no_name_goes_away(record: type) -> None:
    assert SCHEMA == 1
    assert set(PINNED[record].split()) <= {field.name for field in dataclasses.fields(record)}
    assert record.__dataclass_params__.frozen


def test_a_dict_of_it_is_what_json_holds() -> None:
    compiled = burnish.compile(torch.nn.Linear(4, 4), name="as json", options={"latency": True})
    compiled(torch.randn(2, 4)), compiled(torch.randn(3, 4))
    stats = stats_function(compiled)
    found = stats.to_dict()
    assert json.loads(stats.to_json()) == found
    assert set(found) == {field.name for field in dataclasses.fields(Stats)} | {"compile_seconds"}
    assert found["recompiles"][0]["function"] == "Linear" and found["schema"] == SCHEMA
    assert found["compiles"] == 2 and found["compile_seconds"] == pytest.approx(stats.compile_seconds)


def test_memory_is_what_programs_hold() -> None:
    def two_passes(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x * 2 + 1).values.softmax(-1) + x.flip(0).cumsum(0)

    compiled = burnish.compile(two_passes, name="holds")
    assert stats_function(compiled).memory == MemoryStats()
    compiled(torch.randn(256))
    pools = [program.__globals__["pool"] for program in compiled.burnish.log._programs]
    arenas = [w.arena.nbytes for pool in pools for kept in pool.free.values() for w in kept]
    assert len(arenas) == 1 and stats_function(compiled).memory.arena_bytes == sum(arenas)
