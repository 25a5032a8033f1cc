"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from detector.core.errors import secrets

with suppress(ImportError):
    # readline tells every child process that a terminal has 80 columns, but does not change
    # os.environ, so a test's result would depend on earlier tests.
    import readline  # noqa: F401
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

pytest_plugins = ["tests.cpu_times"]

CHECKOUT = Path(__file__).parents[1]
# Last: the parts of programs have names of their own.
sys.path += [str(CHECKOUT / "scripts"), str(CHECKOUT / "training")]
# Runs of the default model would take seconds at first, and another engine on another machine. The
# tests of the timing itself turn it on.
os.environ["DETECT_VIDEO_SELF_TIMING"] = "0"
# Tests convert models with openvino's own converter, which would send an event of each conversion,
# from a fork of this process. Python has None in place of what cannot be imported.
sys.modules["openvino_telemetry"] = None


PARTS = 5  # processes of scripts/test
# From elsewhere: a test that starts one skips where it is not installed.
PROGRAMS = ("ffmpeg", "ffprobe", "gcc", "git", "openssl", "node", "systemd-analyze", "zsh", "fish")
REASONS = 8  # of skips, in the last lines
# The scheduler at the start of the tests.
ORDINARY = os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else 0


def load_program(path: str) -> ModuleType:
    """A program of scripts/ or training/ as a module: their names have no ending."""
    loader = SourceFileLoader(Path(path).name, str(CHECKOUT / path))
    module = ModuleType(loader.name)
    sys.modules[loader.name] = module  # its dataclasses look their module up
    module.__file__ = loader.path
    loader.exec_module(module)
    return module


def night(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the tests marked nightly, too")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A browser takes seconds to start, which count for the first test that needs it."""
    if not config.getoption("--nightly"):
        late = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=late)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    _deal(items)


def _deal(items: list[pytest.Item]) -> None:
    """Order files so that no xdist process is left alone with long tests at the end: each begins
    with a part of the list, and takes from the ends of the others' parts."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    long = [any(one.get_closest_marker("slow") for one in tests) for tests in files.values()]
    parts: list[list[list[pytest.Item]]] = [[] for _ in range(PARTS)]
    for wanted in (True, False):
        some = [tests for tests, found in zip(files.values(), long, strict=True) if found == wanted]
        for part, dealt in enumerate(parts):
            dealt += some[part::PARTS]
    items[:] = [item for part in parts for tests in part for item in tests]


def pytest_collection_finish() -> None:
    """Freeze the thousands of tests, which live to the end, to keep garbage collection short."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_secrets() -> Iterator[None]:
    """What one test registers as a secret ("/etc/passwd") is not hidden in the next."""
    before = secrets._secrets, secrets._pattern
    secrets._secrets, secrets._pattern = set(), None
    yield
    secrets._secrets, secrets._pattern = before


@pytest.fixture(scope="module", autouse=True)
def own_environment() -> Iterator[None]:
    """Undo what imports change: ray and mlflow set variables, after which a fork differs from a new
    interpreter, and torch can turn off a thread's subnormal numbers, after which other tests fail.

    Keep the variables that our import of cv2 sets: without them cv2's log counts as wanted by the
    user, and we cannot detect damage from it."""
    before = dict(os.environ)
    yield
    set_once = {"OPENCV_FFMPEG_LOGLEVEL", "OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT"}
    for name in {*before, *os.environ} - {"PYTEST_CURRENT_TEST"} - set_once:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert sys.float_info.min / 2, "a test left the thread without subnormal numbers"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a disk of so many kilobytes, which fills up."""
    mounted: list[Path] = []

    def make(kilobytes: int) -> Path:
        folder = tmp_path / "small"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("machine: needs the right to mount a small tmpfs (root, CAP_SYS_ADMIN)")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real weights, photos and clips beside the checkout; absent at a user's."""
    folder = Path(os.environ.get("DETECT_VIDEO_SHARED", CHECKOUT.parent / "shared"))
    if not (folder / "data" / "weights").is_dir():
        pytest.skip("need the shared test data (DETECT_VIDEO_SHARED names its folder)")
    return folder


def _never_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Where everything is installed (DETECT_VIDEO_NO_SKIP=1, as CI sets it), a skip is a failure.

    Reasons that begin with "machine:" (an absent GPU, mounting that is not allowed) are exempt.
    """
    if (
        not report.skipped
        or hasattr(report, "wasxfail")
        or not os.environ.get("DETECT_VIDEO_NO_SKIP")
    ):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith("machine:"):
        report.outcome = "failed"
        report.longrepr = f"skipped, where DETECT_VIDEO_NO_SKIP says that nothing may be: {reason}"


def _skipped_for_a_program(report: pytest.TestReport, error: BaseException | None) -> None:
    """Skip a test that started a program which is not installed on this machine."""
    name = Path(str(getattr(error, "filename", None) or "")).name
    absent = isinstance(error, FileNotFoundError) and name in PROGRAMS and not shutil.which(name)
    if report.failed and absent:
        report.outcome = "skipped"
        why = f"Skipped: machine: {name} is not installed (scripts/test installs it on Debian)"
        report.longrepr = (*report.location[:2], why)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        for start in ("Skipped: ", "machine: "):
            reason = reason.removeprefix(start)
        reason = re.sub(r"^engine \w+: ", "", reason)
        reasons[re.split(r"[;:(]", reason)[0].strip()] += 1
    if reasons:
        told = [f"{count} {reason}" for reason, count in reasons.most_common(REASONS)]
        others = reasons.total() - sum(count for _, count in reasons.most_common(REASONS))
        told += [f"{others} for other reasons (-rs lists all)"] if others else []
        terminalreporter.write_line(f"{reasons.total()} tests were skipped: {'; '.join(told)}")


def pytest_sessionfinish() -> None:
    """What a process of xdist ran is kept for scripts/branches: it may be killed before its end."""
    coverage = sys.modules.get("coverage")
    if coverage is not None and (running := coverage.Coverage.current()) is not None:
        running.save()


def pytest_runtest_setup() -> None:
    """Tests that encode AV1 clips themselves: opened by root, SVT-AV1 makes the process a real-time
    one of the highest priority, and whatever it starts. Two of them stop a machine of two cores.
    """
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) != ORDINARY:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has just ended
                os.sched_setscheduler(int(thread), ORDINARY, os.sched_param(0))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _skipped_for_a_program(report, call.excinfo.value if call.excinfo else None)
    _never_skipped(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _never_skipped(report)
    return report


@pytest.fixture
def local_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the time zone; it is UTC as the test begins."""

    def use(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    use("UTC")
    yield use
    monkeypatch.undo()
    time.tzset()
