"""The report: what is in it, that nothing is fetched or run, its colours, and how a real browser sees it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from burnish.tools.bench.operators import CallProfile, Operator
from burnish.tools.bench.result import BenchResult
from burnish.tools.report.compiling import _stages
from burnish.tools.report.markup import Markup, join, tag
from burnish.tools.report.page import page
from burnish.tools.report.plot import Scale
from burnish.tools.report.work import _operators
from tests.tools.bench.browser import Browser, find_browser, open_browser
from tests.tools.bench.results import full_result, result, row

_VOID = {"meta", "link", "br", "rect", "line", "path", "circle", "polyline", "stop"}


class Structure(HTMLParser):
    """Notes elements, and complains about those that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((name, dict(attrs)))
        if name not in _VOID:
            self.open.append(name)

    def handle_startendtag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((name, dict(attrs)))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def parsed(text: str) -> Structure:
    structure = Structure()
    structure.feed(text)
    assert structure.open == []
    return structure


def words_of(found: BenchResult) -> str:
    return " ".join(" ".join(parsed(page(found)).text).replace("\u00a0", " ").split())


def test_every_section_is_there_and_the_verdict_is_first() -> None:
    words = words_of(full_result())
    sections = [
        "Compile it with burnish", "The numbers", "What failed", "Speed against eager", "Latency distributions",
        "Calls done within a time", "Compile time", "Where burnish's cold compile goes", "A whole step",
        "Where the time goes", "Peak memory while compiling", "Memory over time", "Exactness", "Warm-up",
        "Energy per call", "Graph breaks (1)", "Production checklist", "How quiet was the machine?",
        "How it was measured",
    ]  # fmt: skip
    places = [words.find(section) for section in sections]
    assert -1 not in places, [section for section, place in zip(sections, places, strict=True) if place < 0]
    assert places == sorted(places)


def test_the_figures_are_those_of_the_result() -> None:
    words = words_of(full_result())
    assert "1.25 × burnish against eager" in words
    assert "100 ms → 80.05 ms median call" in words or re.search(r"100 ms → 80\.\d\d ms median call", words)
    assert "inside the model 50 %" in words and "fetching data 30 %" in words
    assert "aten::addmm 12 × 30.00 ms" in words
    assert "2.50 J" in words and "RAPL" in words
    assert "a noisy neighbour" in words
    assert "no graph breaks 1: model.py:12 → rewrite it" in words


def test_code_and_errors_are_text_not_markup() -> None:
    text = page(full_result())
    assert 'print("&lt;layer&gt;", x)' in text
    assert "RuntimeError: &lt;no&gt; &amp; never" in text and "aten::&lt;b&gt;" in text
    assert "<layer>" not in text and "<no>" not in text


def test_nothing_is_loaded_and_nothing_runs() -> None:
    text = page(full_result())
    structure = parsed(text)
    assert not [name for name, _ in structure.seen if name in ("script", "img", "iframe", "object", "video")]
    for name, attributes in structure.seen:
        for key, value in attributes.items():
            assert not key.startswith("on"), (name, key)
            if key in ("src", "href"):
                assert (value or "").startswith("data:"), (name, value)
    style = resources.files("burnish.tools.report").joinpath("page.css").read_text()
    assert "url(" not in style and "@import" not in style
    assert "default-src 'none'" in text and 'name="viewport"' in text


def test_pictures_and_tables_have_names_for_those_who_do_not_see_them() -> None:
    structure = parsed(page(full_result()))
    plots = [attributes for name, attributes in structure.seen if name == "svg"]
    assert len(plots) == 4 and all(plot["role"] == "img" and plot["aria-label"] for plot in plots)
    assert sum(name == "caption" for name, _ in structure.seen) == sum(name == "table" for name, _ in structure.seen)


@pytest.mark.parametrize(
    "found",
    [
        result(row("eager")),
        result(row("eager"), row("burnish", failure="no")),
        result(row("eager", failure="stopped"), row("burnish", failure="stopped"), incomplete="stopped by Ctrl-C"),
        result(row("eager", error=None), row("burnish", 0.05, error=None)),
        result(row("eager", error=0.0), row("burnish", 0.05, error=float("inf"))),
        result(row("eager", noise=0.0), row("burnish", 0.1, noise=0.0)),
    ],
    ids=["eager alone", "failed", "nothing", "no error", "infinite error", "no noise at all"],
)
def test_a_result_with_gaps_makes_a_page_too(found: BenchResult) -> None:
    words = words_of(found)
    assert found.verdict.headline in words
    assert "nan" not in words.lower() and "None:" not in words.replace("None: the model is one graph", "")
    assert ("incomplete" in words) == (found.incomplete is not None)


def test_elements_escape_and_tie_numbers_to_units() -> None:
    assert tag("p", "a < b", title='"') == '<p title="&quot;">a &lt; b</p>'
    assert join("3 ms, 5 % of 2 × 7 mice") == "3\u00a0ms, 5\u00a0% of 2\u00a0× 7 mice"
    assert join(Markup("<b>"), None, ["x"]) == "<b>x"
    assert tag("rect", x=1.50, hidden=False, class_="a") == '<rect x="1.5" class="a"/>'


def test_scales_and_their_ticks() -> None:
    scale = Scale(0.0, 10.0, 100.0, 200.0)
    assert (scale(0), scale(5), scale(99)) == (100.0, 150.0, 200.0)
    assert scale.ticks(5) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    log = Scale(1e-5, 1e-2, 0.0, 300.0, log=True)
    assert log(1e-4) == pytest.approx(100.0)
    assert log.ticks() == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2])
    assert Scale(3.0, 3.0, 0.0, 10.0)(3.0) == 5.0


# -- sums and columns ---------------------------------------------------------------------------------------------


def _figures(markup: str) -> list[float]:
    """The figures of the bars."""
    return [float(text.replace("\u00a0", " ").split()[0]) for text in re.findall(r"<b>([^<]+)</b>", markup)]


def _heading(markup: str) -> str:
    return re.sub(r"<[^>]+>", "", re.search(r"<h3>.*?</h3>", markup)[0]).replace("\u00a0", " ")


@pytest.mark.parametrize(
    "stages",
    [
        {"dynamo": 3.333, "aot": 1.111, "cc": 0.777, "fuse": 0.004, "codegen": 0.003},
        {"dynamo": 7.994},
        {"dynamo": 0.001, "aot": 0.002},
        {f"stage {n}": 0.3333 for n in range(20)},
    ],
    ids=["usual", "nearly all", "next to nothing", "many"],
)
def test_the_stages_of_a_compile_add_up_to_it(stages: dict[str, float]) -> None:
    burnish = row("burnish", 0.05, cold=8.0)
    timed = dataclasses.replace(burnish, compile=dataclasses.replace(burnish.compile, stages=stages))
    shown = "".join(_stages(timed, 2))
    assert sum(_figures(shown)) == pytest.approx(8.0, abs=1e-6) and _heading(shown).endswith(": 8.00 s")


def test_stages_side_by_side_add_up_to_more_than_the_compile() -> None:
    burnish = row("burnish", 0.05, cold=2.0)
    timed = dataclasses.replace(burnish, compile=dataclasses.replace(burnish.compile, stages={"cc": 1.5, "aot": 1.0}))
    shown = "".join(_stages(timed, 2))
    assert sum(_figures(shown)) == 2.5 and _heading(shown).endswith(": 2.50 s in 2.00 s, some side by side")


def test_the_parts_of_a_call_add_up_to_the_profiled_one() -> None:
    profile = CallProfile(0.05, tuple(Operator(f"aten::{n}", 0.005, 1.0) for n in range(8)), 0.0402, 8.0)
    shown = "".join(_operators(row("eager", 0.03, profile=profile), 0, on_gpu=False))
    assert sum(_figures(shown)) == pytest.approx(50.0, abs=0.02)
    assert re.fullmatch(r"eager: 50\.00 ms under the profiler, 30\.\d+ ms without", _heading(shown))


def _tables(found: BenchResult) -> list[list[list[str]]]:
    """Rows of cells, the headings first."""
    rows = [re.findall(r"<tr.*?</tr>", table, re.S) for table in re.findall(r"<table>.*?</table>", page(found), re.S)]
    cells = r"<t[hd][^>]*>(.*?)</t[hd]>"
    return [
        [[re.sub(r"<[^>]+>", "", cell) for cell in re.findall(cells, one, re.S)] for one in table] for table in rows
    ]


@pytest.mark.parametrize(
    "found", [full_result(), result(row("eager"), row("burnish", failure="no"))], ids=["full", "failed"]
)
def test_every_column_has_a_heading_and_says_something(found: BenchResult) -> None:
    columns = [column for table in _tables(found) for column in zip(*table, strict=True)]
    assert [column for column in columns if not column[0] or set(column[1:]) <= {"", "–"}] == []


def test_every_table_scrolls_in_a_box_of_its_own() -> None:
    text = page(full_result())
    assert text.count("<table>") == len(re.findall(r'<div class="scroll"[^>]*><table>', text)) == 3


def test_a_box_with_a_table_scrolls_sideways() -> None:
    style = resources.files("burnish.tools.report").joinpath("page.css").read_text()
    assert re.search(r"^\.scroll \{[^}]*overflow-x: auto", style, re.M)


# -- colours ------------------------------------------------------------------------------------------------------


def _palettes() -> dict[str, dict[str, str]]:
    style = resources.files("burnish.tools.report").joinpath("page.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.S)[:2]
    light_colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return {"light": light_colours, "dark": {**light_colours, **dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark))}}


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_enough_contrast(scheme: str) -> None:
    """WCAG AA: 4.5 for text, 3 for graphics."""
    colour = _palettes()[scheme]
    for text, ground in (
        ("ink", "card"), ("ink", "page"), ("ink", "code"), ("soft", "card"), ("soft", "page"), ("soft", "code"),
        ("good", "good-bg"), ("warn", "warn-bg"), ("bad", "bad-bg"), ("s2", "page"),
    ):  # fmt: skip
        assert _contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
    for number in range(8):
        assert _contrast(colour[f"s{number}"], colour["card"]) >= 3.0, number


# -- in a real browser --------------------------------------------------------------------------------------------

MEASURE = """({
  page: document.documentElement.scrollWidth,
  view: window.innerWidth,
  cards: [...document.querySelectorAll('.card')].map(card => card.getBoundingClientRect()).map(
    box => [Math.round(box.left), Math.round(box.right), Math.round(box.height)]),
  smallest: Math.min(...[...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect().height)),
  outside: [...document.querySelectorAll('svg text')].filter(text => {
    const own = text.getBoundingClientRect(), plot = text.closest('svg').getBoundingClientRect();
    return own.left < plot.left - 2 || own.right > plot.right + 2 || own.bottom > plot.bottom + 2;
  }).map(text => text.textContent),
  background: getComputedStyle(document.body).backgroundColor,
  checks: Math.min(...[...document.querySelectorAll('.checks td:last-child')].map(
    cell => cell.getBoundingClientRect().width)),
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip("no browser: neither Chromium on the PATH nor Playwright's")
    with open_browser(path) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "dark"),
    [(1280, False), (1280, True), (390, False), (360, True)],
    ids=["desktop", "desktop dark", "phone", "small phone dark"],
)
def test_a_browser_shows_it(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    path = full_result().write_html(tmp_path / "report.html")
    visit = browser.visit(path, width=width, height=900, dark=dark, measure=MEASURE)
    assert visit.complaints == []
    assert [url for url in visit.requests if not url.startswith("data:")] == [path.as_uri()]
    seen = visit.measured
    assert seen["view"] == width and seen["page"] <= width, "the page itself must not scroll sideways"
    assert all(left >= 0 and right <= width and height > 40 for left, right, height in seen["cards"])
    assert seen["smallest"] >= 9.0, "text in plots stays readable"
    assert seen["outside"] == [], "no label is cut off"
    assert seen["checks"] > 0.6 * width, "what the checklist found is no column of single words"
    assert seen["background"] == ("rgb(20, 19, 18)" if dark else "rgb(246, 245, 242)")
    assert visit.picture.startswith(b"\x89PNG") and len(visit.picture) > 50_000


@pytest.mark.slow
def test_a_sheet_of_paper_holds_it(browser: Browser, tmp_path: Path) -> None:
    path = full_result().write_html(tmp_path / "report.html")
    visit = browser.visit(path, width=720, height=1000, dark=True, measure=MEASURE, media="print")
    assert visit.measured["page"] <= 720, "tables do not scroll on paper: they have to fit"
    assert visit.measured["background"] == "rgb(255, 255, 255)", "also where the screen is dark"
