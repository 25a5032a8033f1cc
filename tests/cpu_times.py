"""A pytest plugin that measures the CPU seconds of each test, and lists the slow tests at the end.

We count CPU seconds, so that a busy machine does not make a test look slow. Processes that the test
started and waited for are included. No test fails because of its time: the lists show which tests
should be made cheaper or marked ``slow``.
"""

import os
from collections.abc import Generator
from typing import Any

import pytest

from tests import forked

FAST_S = 0.5  # CPU seconds; a test that takes more and is not marked slow is listed
LONGEST_SHOWN = 10
KEY = "cpu_s"


def cpu_seconds() -> float:
    """Return user and system seconds of this process, of its finished children and its forks."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + forked.cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Measure set-up, call and tear-down. The first test to use a module's fixture pays for it."""
    item.stash[STARTED] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        marked = item.get_closest_marker("slow") is not None
        report.user_properties.append((KEY, (cpu_seconds() - item.stash[STARTED], marked)))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            if getattr(report, "when", "") == "teardown" and KEY in properties:
                rows.append((*properties[KEY], report.nodeid))
    rows.sort(key=lambda row: -row[0])
    unmarked = [row for row in rows if not row[1]]
    if config.option.markexpr == "not slow":
        _list(terminalreporter, f"the {LONGEST_SHOWN} slowest tests", unmarked[:LONGEST_SHOWN])
    else:
        above = [row for row in unmarked if row[0] > FAST_S]
        _list(terminalreporter, f"unmarked tests above {FAST_S} s of CPU: mark them slow", above)
    if path := os.environ.get("DETECT_VIDEO_TEST_TIMES"):
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(
                f"{cpu:.3f}\t{'slow' if slow else ''}\t{name}\n" for cpu, slow, name in rows
            )


def _list(terminalreporter: Any, title: str, rows: list[tuple[float, bool, str]]) -> None:
    if rows:
        terminalreporter.write_sep("-", title)
        for cpu, _, name in rows:
            terminalreporter.write_line(f"{cpu:6.2f} s  {name}")


STARTED = pytest.StashKey[float]()
