"""Environments of other programs, and of other versions of this one, each in its own folder.

They are cached in ``~/.cache/detect-video/compare``. This module imports only the standard library,
because other Pythons run it, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "detect-video", "compare")
COMPLETE = "complete"  # a marker file that is missing if the installation was interrupted


class MissingError(Exception):
    """A program cannot be installed or run here; the text says why."""


def environment(name: str, *steps: Sequence[str], check: Sequence[str] = ()) -> Path:
    """Return the Python of an environment. The first call creates the environment.

    ``steps``: the packages of each call of pip. ``check``: arguments for a call of the new Python
    that must succeed. If that call fails, the environment is removed, and not created again. Raises
    MissingError.
    """
    folder, failed = CACHE / name, CACHE / f"{name}.failed"
    python = folder / "bin" / "python"
    if failed.exists():
        raise MissingError(f"{failed.read_text().strip()} (remove {failed} to try again)")
    if not (folder / COMPLETE).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _succeed([sys.executable, "-m", "venv", "--clear", str(folder)], f"{name}: venv failed")
        for step in steps:
            install = [str(python), "-m", "pip", "install", "--quiet", *step]
            _succeed(install, f"{' '.join(step)} cannot be installed")
        if check:
            try:
                _succeed([str(python), *check], f"{name} does not run")
            except MissingError as error:
                shutil.rmtree(folder)  # the environment may take up gigabytes
                failed.write_text(f"{error}\n")
                raise
        (folder / COMPLETE).touch()
    return python


def _succeed(command: Sequence[str], problem: str) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        lines = completed.stderr.splitlines()
        errors = [line for line in lines if "ERROR" in line or "Error" in line]
        raise MissingError(f"{problem}: {(errors or lines or ['no reason was given'])[-1]}")


def versions(python: Path, names: Sequence[str]) -> Mapping[str, str]:
    """Return name -> version of installed packages."""
    code = (
        "import sys\n"
        "from importlib.metadata import PackageNotFoundError, version\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, version(name))\n"
        "    except PackageNotFoundError: pass"
    )
    completed = subprocess.run(
        [python, "-c", code, *names], capture_output=True, text=True, check=True
    )
    return dict(line.split() for line in completed.stdout.splitlines())


def checkout(root: Path, commit: str) -> Path:
    """Return a folder with the files of a commit of the repository at ``root``. Raises
    MissingError."""
    completed = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--verify", "-q", f"{commit}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode:
        raise MissingError(f"{root} has no commit {commit}: give another, or fetch it")
    digest = completed.stdout.strip()
    folder = CACHE / f"commit-{digest[:12]}"
    if not (folder / COMPLETE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = subprocess.Popen(
            ["git", "-C", str(root), "archive", digest], stdout=subprocess.PIPE
        )
        unpacked = subprocess.run(
            ["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=False
        )
        assert archive.stdout is not None
        archive.stdout.close()
        if archive.wait() or unpacked.returncode:
            raise MissingError(f"the files of {commit} could not be unpacked into {folder}")
        (folder / COMPLETE).touch()
    return folder
