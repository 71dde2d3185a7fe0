"""The project's own files agree: what is checked before a commit, in CI and in a release."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import burnish

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def recipe(target: str) -> str:
    return re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]


@pytest.mark.parametrize("tool", ["ruff check", "ruff format", "mypy"])
def test_a_commit_is_checked_as_ci_checks_it(tool: str) -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = " ".join(hook["entry"] for hook in repository["hooks"])
    assert tool in entries and tool in recipe("lint")


def test_a_release_is_tested_before_it_is_published() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert set(jobs["publish"]["needs"]) == {"test", "build", "install"}


def test_a_release_needs_no_token() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "secrets." not in text and "id-token: write" in text


def test_the_version_is_written_once_and_again() -> None:
    assert PROJECT["version"] == burnish.__version__


def packages(extra: str) -> set[str]:
    listed = PROJECT["dependencies"] if extra == "" else PROJECT["optional-dependencies"][extra]
    return {re.match(r"[\w-]+", line)[0] for line in listed}


@pytest.mark.parametrize("extra", ["", *PROJECT["optional-dependencies"]])
def test_every_dependency_has_its_reason(extra: str) -> None:
    told = set(re.findall(r"[\w-]+", (ROOT / "docs" / "dependencies.md").read_text()))
    assert packages(extra) - told == set()


@pytest.mark.parametrize("extra", ["", *PROJECT["optional-dependencies"]])
def test_every_dependency_is_pinned_for_the_tests(extra: str) -> None:
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.M))
    assert packages(extra) - pinned <= {"triton"}  # torch for CUDA brings its own
