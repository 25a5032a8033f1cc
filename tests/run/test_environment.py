"""The commit of the program's checkout, as a session records it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from detector.core.run import environment

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="machine: no git")


@pytest.mark.parametrize(
    ("changed", "suffix"),
    [
        (None, ""),
        ("docs/page.md", ""),  # not code
        ("detector/core/run/environment.py", "-dirty"),
        ("detector/new.py", "-dirty"),
    ],
)
def test_commit_is_dirty_only_if_the_code_is_changed(tmp_path, monkeypatch, changed, suffix):
    file = tmp_path / "detector/core/run/environment.py"
    for each in (file, tmp_path / "docs/page.md", tmp_path / "cfg/default.yaml"):
        each.parent.mkdir(parents=True, exist_ok=True)
        each.write_text("x\n")
    monkeypatch.setattr(environment, "__file__", str(file))
    assert find_anew() is None  # not a checkout
    run_git(tmp_path, "init", "--quiet")
    assert find_anew() == "(initial)-dirty"
    run_git(tmp_path, "add", "--all")
    author = ("-c", "user.name=x", "-c", "user.email=x@x")
    run_git(tmp_path, *author, "commit", "--quiet", "--message", "x")
    if changed:
        (tmp_path / changed).write_text("y\n")
    commit = run_git(tmp_path, "rev-parse", "--short=12", "HEAD").strip()
    assert find_anew() == f"{commit}{suffix}"


def find_anew() -> str | None:
    environment.find_commit.cache_clear()
    found = environment.find_commit()
    environment.find_commit.cache_clear()
    return found


def run_git(folder: Path, *words: str) -> str:
    return subprocess.check_output(("git", "-C", str(folder), *words), text=True)
