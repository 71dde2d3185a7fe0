"""The Python in a page of the docs, as a reader would type it: all blocks of a page in order, in one session.

A block that cannot run by itself has `<!-- not run: why -->` on the line above it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```python\n(?P<source>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    line: int  # of its first line of code
    source: str
    reason: str | None  # why it is not run


def blocks(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, match.start("source")) + 1, match["source"], match["reason"])
        for match in _BLOCK.finditer(text)
    ]


def run_page(path: Path) -> int:
    """How many blocks were run. What is raised names the page and its line."""
    session: dict[str, object] = {"__name__": path.stem}
    runnable = [block for block in blocks(path.read_text()) if block.reason is None]
    for block in runnable:
        padded = "\n" * (block.line - 1) + block.source
        exec(compile(padded, str(path), "exec", dont_inherit=True), session)
    return len(runnable)
