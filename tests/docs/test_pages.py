"""The guides' code runs, the site builds without a warning, and no link of the README leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, Block, blocks, run_page

PAGES = sorted(DOCS.glob("*.md"))
RUN = [page for page in PAGES if any(block.reason is None for block in blocks(page.read_text()))]
GUIDES = ["quickstart", "training", "serving", "shipping"]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(page) > 0


@pytest.mark.parametrize("name", GUIDES)
def test_the_guides_have_code_that_runs(name: str) -> None:
    assert DOCS / f"{name}.md" in RUN


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_every_block_is_python(page: Path) -> None:
    for block in blocks(page.read_text()):
        compile(block.source, f"{page}:{block.line}", "exec")


def test_a_block_is_found_with_its_line_and_its_reason() -> None:
    text = "# A page\n\n```python\na = 1\n```\n\n<!-- not run: no reason -->\n```python\nb\n```\n\n```c\nint c;\n```\n"
    assert blocks(text) == [Block(4, "a = 1\n", None), Block(9, "b\n", "no reason")]


def test_what_a_block_raises_names_the_line_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\na = 1\na / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run_page(page)
    assert caught.traceback[-1].lineno + 1 == 5


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
