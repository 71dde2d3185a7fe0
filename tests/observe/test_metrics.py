"""burnish.metrics(): valid Prometheus text that says what burnish.stats says."""

from __future__ import annotations

import gc
import json
import threading
import urllib.error
import urllib.request

import pytest
import torch

import burnish
from burnish.observe import serve
from burnish.observe.log import CompileLog
from burnish.observe.prometheus import Family, exposition
from tests.observe.exposition_parser import parse


def compiled_model(name: str, **options: object) -> torch.nn.Module:
    return burnish.compile(torch.nn.Linear(4, 4), name=name, options=options or None)


def test_metrics_say_what_stats_say() -> None:
    model = compiled_model("served", latency=True)
    with torch.no_grad():
        for rows in (2, 2, 2, 3):
            model(torch.randn(rows, 4))
    stats, families = burnish.stats(model), parse(burnish.metrics())

    def value(name: str, suffix: str = "", **labels: str) -> float:
        return families[name].value(suffix, object="served", **labels)

    assert stats.compiles == 2 == value("burnish_compiles_total")
    assert value("burnish_recompiles_total") == len(stats.recompiles) == 1
    assert value("burnish_graphs_total", kind="inference") == stats.graphs["inference"] == 2
    assert value("burnish_cache_misses_total") == stats.cache_misses
    assert value("burnish_cache_hits_total") == stats.cache_hits
    assert value("burnish_graph_breaks") == 0
    for stage, seconds in stats.seconds.items():
        assert value("burnish_compile_seconds_total", stage=stage) == pytest.approx(seconds)
    entry = max(stats.latency, key=lambda each: each.calls)
    assert value("burnish_call_seconds", "_count", variant=entry.variant, engine=entry.engine) == entry.calls >= 2
    assert families["burnish_info"].value(version=burnish.__version__, torch=str(torch.__version__)) == 1


def test_objects_of_one_name_are_told_apart_and_go_with_their_objects() -> None:
    first, second = compiled_model("twin"), compiled_model("twin")
    first(torch.randn(2, 4))
    second(torch.randn(2, 4)), second(torch.randn(3, 4))
    compiles = parse(burnish.metrics())["burnish_compiles_total"]
    assert compiles.value(object="twin") == 1 and compiles.value(object="twin#2") == 2
    del first
    gc.collect()
    left = {dict(labels)["object"] for _, labels in parse(burnish.metrics())["burnish_compiles_total"].samples}
    assert "twin#2" in left and "twin" not in left
    third = compiled_model("twin")
    assert third.burnish.log.label == "twin"


@pytest.mark.parametrize("name", ['quo"ted', "back\\slash", "two\nlines", "{a=b}", "ü × 2", 'end\\"'])
def test_names_are_escaped(name: str) -> None:
    model = compiled_model(name)
    assert parse(burnish.metrics())["burnish_compiles_total"].value(object=name) == 0
    del model


def test_fallbacks_are_counted_by_stage() -> None:
    log = CompileLog(name="faulty")
    burnish.observe.registry.register(log)
    log.fallback("build", ValueError("a"))
    log.fallback("build", ValueError("b"))
    log.fallback("dynamo", ValueError("c"))
    fallbacks = parse(burnish.metrics())["burnish_fallbacks_total"]
    assert fallbacks.value(object="faulty", stage="build") == 2
    assert fallbacks.value(object="faulty", stage="dynamo") == 1


def test_notices_are_counted_without_their_particulars() -> None:
    log = CompileLog(name="noticing")
    burnish.observe.registry.register(log)
    for reason in ("size 3", "size 4"):
        log.noticed(f"no CUDA graph: {reason}")
    assert parse(burnish.metrics())["burnish_notices_total"].value(object="noticing", what="no CUDA graph") == 2


def test_numbers_are_written_as_the_format_wants_them() -> None:
    gauge = Family("g", "gauge", 'help with "quotes", \\ and\nlines')
    for number in (0, 1.5, float("inf"), float("-inf"), float("nan"), 1e300, 12345678901234567890):
        gauge.add(number, n=str(number))
    histogram = Family("h", "histogram", "empty and full")
    histogram.add_histogram((0.1, 1.0), (0, 0, 0), 0.0, kind="empty")
    histogram.add_histogram((0.1, 1.0), (1, 2, 3), 9.0, kind="full")
    families = parse(exposition([gauge, Family("nothing", "gauge", "left out"), histogram]))
    assert set(families) == {"g", "h"}
    assert families["g"].value(n="inf") == float("inf")
    assert families["h"].value("_bucket", kind="full", le="1") == 3
    assert families["h"].value("_count", kind="full") == 6


def test_metrics_can_be_taken_while_threads_compile() -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def scrape() -> None:
        try:
            while not done.is_set():
                parse(burnish.metrics())
        except BaseException as error:
            failures.append(error)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    models = [compiled_model(f"model {n}") for n in range(4)]
    for model in models:
        model(torch.randn(2, 4))
    done.set()
    scraper.join()
    if failures:
        raise failures[0]


def test_the_endpoint_serves_metrics_and_stats() -> None:
    model = compiled_model("behind http")
    model(torch.randn(2, 4))
    with serve(port=0) as endpoint:
        with urllib.request.urlopen(endpoint.url) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert parse(answer.read().decode())["burnish_compiles_total"].value(object="behind http") == 1
        with urllib.request.urlopen(endpoint.url.replace("/metrics", "/stats")) as answer:
            assert json.load(answer)["behind http"]["compiles"] == 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(endpoint.url + "/other")
        url = endpoint.url
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url)
