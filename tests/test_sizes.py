"""Rooms keep to their budgets (scripts/budgets.yaml), and a run imports what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT


def check(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECKOUT / "scripts/sizes"), "--check", *words]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_nothing_is_above_its_budget() -> None:
    """Where it is: raise the budget in the commit that needs it, and say there why."""
    done = check()
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for wing in ("lab", "live", "batch", "tracks"):
        (tmp_path / "detector" / wing).mkdir(parents=True)
    room = tmp_path / "detector/core/errors"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text("one = 1\ntwo = 2\n")
    (tmp_path / "detector/live/page.py").write_text("from detector.core.errors import one\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("three words here\n")
    (tmp_path / "scripts").mkdir()
    return tmp_path


def budgets(tree: Path, *, errors: int = 2, docs: int = 3, modules: int = 1) -> None:
    (tree / "scripts/budgets.yaml").write_text(
        f"lines: {{detector/core/errors: {errors}, detector/live: 1}}\n"
        f"words: {{README.md: 0, ARCHITECTURE.md: 0, CONTRIBUTING.md: 0, docs: {docs}}}\n"
        f"modules of the core: {{lab: 0, live: {modules}, batch: 0, tracks: 0}}\n"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, []),
        ({"errors": 1}, ["detector/core/errors: 2 lines, budget 1"]),
        ({"docs": 2}, ["docs: 3 words, budget 2"]),
        ({"modules": 0}, ["live: 1 modules of the core, budget 0"]),
    ],
)
def test_what_is_above_its_budget_is_named(
    tree: Path, given: dict[str, int], said: list[str]
) -> None:
    budgets(tree, **given)
    done = check("--root", str(tree), "--no-run")
    assert [line.split(";")[0] for line in done.stderr.splitlines()] == said
    assert done.returncode == bool(said)


def test_a_new_room_has_no_budget_yet(tree: Path) -> None:
    budgets(tree)
    (tree / "detector/lab/new.py").write_text("x = 1\n")
    done = check("--root", str(tree), "--no-run")
    assert "without a budget" in done.stderr
    assert done.returncode == 1
