"""Run the tests that a new torch breaks first against several versions of torch, and write down how they went.

    python -m tests.matrix 2.11 2.12 2.13        an environment is made for each, with pip, and kept for the next time
    python -m tests.matrix --here                the torch of this environment; nothing is installed

Rows are added to benchmarks/results/matrix.json, and docs/versions.md is written from it: a version that is not run
keeps the row it has.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from burnish.torch_private.versions import KNOWN, RELEASES, version_pair

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "matrix.json"
TABLE = ROOT / "docs" / "versions.md"
# What the tests import beside torch. burnish itself is taken from the tree, whatever torch it says it needs.
NEEDED = ("rich", "numpy", "setuptools", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "expecttest")

Row = dict[str, Any]


def known_versions() -> list[str]:
    return [f"{major}.{minor}" for major, minor in RELEASES]


def environment(version: str, folder: Path, pip_arguments: list[str]) -> Path:
    """The Python of an environment with that torch, made if there is none yet."""
    place = folder / f"torch-{version}"
    python = place / "bin" / "python"
    done = place / ".done"
    if not done.exists():
        venv.create(place, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *pip_arguments]
        subprocess.run([*install, f"torch=={version}.*", *NEEDED], check=True)
        subprocess.run([*install, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True)
        done.touch()
    return python


def row(python: Path, pytest_arguments: list[str]) -> Row:
    """Run the tests in a process, and with a cache, of their own."""
    with tempfile.TemporaryDirectory(prefix="burnish-matrix-") as folder:
        result = Path(folder) / "row.json"
        env = {**os.environ, "PYTHONPATH": str(ROOT), "BURNISH_CACHE_DIR": str(Path(folder) / "cache")}
        command = [str(python), "-m", "tests.matrix.row", str(result), *pytest_arguments]
        done = subprocess.run(command, cwd=ROOT, env=env, check=False)
        if not result.exists():
            return {"error": f"the tests ended with status {done.returncode} and without a result"}
        found: Row = json.loads(result.read_text())
        return found


def run(version: str, python: Path | None, arguments: argparse.Namespace) -> Row:
    try:
        python = python or environment(version, arguments.environments, shlex.split(arguments.pip))
        return row(python, shlex.split(arguments.pytest))
    except subprocess.CalledProcessError as error:
        return {"error": f"no environment could be made: {shlex.join(map(str, error.cmd[-3:]))} failed"}


def table(rows: dict[str, Row]) -> str:
    lines = [
        "# Versions of torch",
        "",
        "`make matrix` writes this page. It runs the tests of torch's private names and a slice of the others",
        "(`tests/matrix/row.py` lists them) with each version of torch, on a CPU.",
        "",
        "| torch | Python | machine | private names | tests | seconds |",
        "|---|---|---|---|---|---|",
    ]
    versions = sorted({*known_versions(), *rows}, key=lambda each: version_pair(each) or (0, 0))
    lines += [_line(version, rows.get(version, {"error": "not run"})) for version in versions]
    return "\n".join([*lines, ""])


def _line(version: str, found: Row) -> str:
    if "error" in found:
        return f"| {version} | | | | {found['error']} | |"
    counts = ", ".join(f"{number} {outcome}" for outcome, number in found["counts"].items())
    missing = f", without {', '.join(found['missing'])}" if found["missing"] else ""
    names = f"{found['names']}{missing}"
    return f"| {found['torch']} | {found['python']} | {found['machine']} | {names} | {counts} | {found['seconds']} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", help="such as 2.12 (default: all that burnish knows)")
    parser.add_argument("--here", action="store_true", help="run with the torch of this environment only")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "matrix", help="where they are kept")
    parser.add_argument("--pip", default="", help="further arguments for pip, such as an index of CPU-only builds")
    parser.add_argument("--pytest", default="", help="further arguments for pytest")
    arguments = parser.parse_args()
    rows: dict[str, Row] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else {}
    ran: list[Row] = []
    for version in [_version_here()] if arguments.here else arguments.versions or known_versions():
        rows[version] = run(version, Path(sys.executable) if arguments.here else None, arguments)
        ran.append(rows[version])
        RESULTS.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
        TABLE.write_text(table(rows))
        print(_line(version, rows[version]))
    return int(any("error" in each or each["failed"] for each in ran))


def _version_here() -> str:
    import torch

    return ".".join(map(str, version_pair(str(torch.__version__)) or KNOWN[1]))


if __name__ == "__main__":
    sys.exit(main())
