"""The sizes of packages and the imports of a run are within the budgets of scripts/budgets.yaml."""

import re
import subprocess
import sys

import pytest
import yaml

from tests.conftest import CHECKOUT


@pytest.mark.slow
def test_sizes_are_within_their_budgets() -> None:
    """If a size exceeds its budget, raise the budget in the same commit, and give the reason."""
    command = [sys.executable, str(CHECKOUT / "scripts/sizes"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def git(*words: str) -> str:
    command = ["git", "-C", str(CHECKOUT), *words]
    return subprocess.run(command, capture_output=True, text=True).stdout


def numbers(commit: str) -> dict[tuple[str, str], int]:
    kinds = yaml.safe_load(git("show", f"{commit}:scripts/budgets.yaml")) or {}
    return {(kind, name): size for kind, rows in kinds.items() for name, size in rows.items()}


def test_commits_that_raise_a_budget_mention_an_issue() -> None:
    """Only commits after the one that added this test are checked."""
    added = git("log", "-Sdef test_commits_that_raise", "--format=%H", "--", "tests/test_sizes.py")
    if not added:
        pytest.skip("no history of this file: not a clone, or a shallow one")
    since = ("--no-merges", "--format=%H", f"{added.split()[-1]}..HEAD")
    for commit in git("log", *since, "--", "scripts/budgets.yaml").split():
        after, before = numbers(commit), numbers(f"{commit}^")
        raised = [row for row, size in after.items() if size > before.get(row, size)]
        message = git("log", "-1", "--format=%B", commit)
        assert not raised or re.search(r"issues? \d+", message), (commit, raised)
