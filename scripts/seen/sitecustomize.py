"""Record which lines of detector/ each test runs, also in the processes that it starts.

``scripts/mutate`` puts this folder on PYTHONPATH, and passes this module to pytest as a plugin.
Python imports this module before pytest, so pytest cannot rewrite it. The word PYTEST_DONT_REWRITE
prevents pytest's warning about that.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = os.environ.get("MUTATE_SEEN", "")  # a folder: gets a file per test, and tests.jsonl
DETECTOR = os.environ.get("MUTATE_DETECTOR", "")  # path of detector/, with a slash at its end
# The environment variable that holds the current test's file in FOLDER. Child processes inherit it,
# and tests/forked.py passes variables that begin with PYTEST_ to its forks.
UNIT = "PYTEST_MUTATE_UNIT"
_noted: set[tuple[str, int]] = set()


def _note(file: str, line: int) -> None:
    """Record a line at once, since a killed process cannot do so at its end."""
    if (file, line) in _noted:
        return
    _noted.add((file, line))
    with suppress(OSError):  # a test may fill the disk; an error here would end the tracing
        name = f"{FOLDER}/{os.environ.get(UNIT, 'none')}"
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{line} {file[len(DETECTOR) :]}\n".encode())
        os.close(descriptor)


def _calls(frame: FrameType, event: str, value: Any) -> Any:
    return _lines if DETECTOR and frame.f_code.co_filename.startswith(DETECTOR) else None


def _lines(frame: FrameType, event: str, value: Any) -> Any:
    _note(frame.f_code.co_filename, frame.f_lineno)
    return _lines


def _enter(unit: str) -> str:
    before = os.environ.get(UNIT, "none")
    os.environ[UNIT] = unit
    _noted.clear()
    _trace()  # again, in case a test has stopped the tracing
    return before


def _trace() -> None:
    sys.settrace(_calls)
    threading.settrace(_calls)


_units: dict[str, str] = {}  # name of a test or a test file -> the file in FOLDER for its lines


def _unit(name: str) -> str:
    return _units.setdefault(name, str(len(_units)))


def pytest_runtest_logreport(report: Any) -> None:
    file = report.nodeid.split("::")[0]
    entry = {"test": report.nodeid, "seconds": report.duration, "failed": report.failed}
    entry["units"] = [_unit(report.nodeid), _unit(file)]
    with Path(FOLDER, "tests.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps(entry) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _enter(_unit(nodeid))


if FOLDER:
    _trace()
    if "-m" in sys.orig_argv and "pytest" in sys.orig_argv:
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
            """Attribute the lines of a shared fixture to the test file, and so to all its tests."""
            if fixturedef.scope == "function":
                return (yield)
            before = _enter(_unit(request.node.nodeid.split("::")[0]))
            try:
                return (yield)
            finally:
                _enter(before)
