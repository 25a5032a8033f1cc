"""Fixtures of all tests."""

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
    # Importing readline tells child processes that the terminal has 80 columns. Import readline
    # and undo this effect now, so that no result depends on which test imports readline first.
    import readline  # noqa: F401
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

pytest_plugins = ["tests.cpu_times"]

CHECKOUT = Path(__file__).parents[1]
# These folders come last, so that their modules do not hide other modules.
sys.path += [str(CHECKOUT / "scripts"), str(CHECKOUT / "training")]
# In tests, runs choose an engine without timing the engines. The timing takes seconds, and depends
# on the machine. The tests of this self-timing turn it on.
os.environ["DETECT_VIDEO_SELF_TIMING"] = "0"
# OpenVINO's converter would send telemetry for each conversion, from a fork of this process. With
# None in sys.modules, the converter's import of the telemetry module fails.
sys.modules["openvino_telemetry"] = None

PARTS = 5  # processes of scripts/test
# Tests that start one of these programs are skipped if it is not installed.
PROGRAMS = ("ffmpeg", "ffprobe", "gcc", "git", "openssl", "node", "systemd-analyze", "zsh", "fish")
REASONS = 8  # print this many reasons for skips at the end
# The scheduler at the start of the tests.
ORDINARY = os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else 0


def load_program(path: str) -> ModuleType:
    """Load a program of scripts/ or training/, whose name has no suffix, as a module."""
    loader = SourceFileLoader(Path(path).name, str(CHECKOUT / path))
    module = ModuleType(loader.name)
    sys.modules[loader.name] = module  # dataclasses look up their module there
    module.__file__ = loader.path
    loader.exec_module(module)
    return module


def night(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the tests marked nightly, too")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect nightly tests. Mark tests that start a browser as slow, since this takes seconds."""
    if not config.getoption("--nightly"):
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    _deal(items)


def _deal(items: list[pytest.Item]) -> None:
    """Order files so that no xdist process runs long tests alone at the end. Each process starts
    with one part of the list, and later takes tests from the ends of the other parts."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    long = [any(one.get_closest_marker("slow") for one in tests) for tests in files.values()]
    parts: list[list[list[pytest.Item]]] = [[] for _ in range(PARTS)]
    for is_slow in (True, False):
        selected = [
            tests for tests, found in zip(files.values(), long, strict=True) if found == is_slow
        ]
        for part, dealt in enumerate(parts):
            dealt += selected[part::PARTS]
    items[:] = [item for part in parts for tests in part for item in tests]


def pytest_collection_finish() -> None:
    """Keep garbage collection short: exclude the thousands of tests, which live to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_secrets() -> Iterator[None]:
    """Forget the secrets that a test registers, since the output of later tests would hide them."""
    before = secrets._secrets, secrets._pattern
    secrets._secrets, secrets._pattern = set(), None
    yield
    secrets._secrets, secrets._pattern = before


@pytest.fixture(scope="module", autouse=True)
def own_environment() -> Iterator[None]:
    """After each module, restore the variables that imports set: with the variables of ray, a fork
    would differ from a new interpreter. Fail if torch turned off this thread's subnormal numbers.

    Keep the variables that our import of cv2 sets. Without them, we would assume that the user
    requested cv2's log. Then we would not read the log, and miss the damage that it reports."""
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
    """Return a function that mounts a disk of the given kilobytes."""
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
    """The folder of real weights, photos and clips next to the checkout. Users do not have it."""
    folder = Path(os.environ.get("DETECT_VIDEO_SHARED", CHECKOUT.parent / "shared"))
    if not (folder / "data" / "weights").is_dir():
        pytest.skip("need the shared test data (DETECT_VIDEO_SHARED names its folder)")
    return folder


def _never_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With DETECT_VIDEO_NO_SKIP=1 (as in CI, where everything is installed), fail skipped tests.

    Reasons that begin with "machine:" (no GPU, no right to mount) are exempt.
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
        report.longrepr = f"skipped, but DETECT_VIDEO_NO_SKIP forbids skipping tests: {reason}"


def _skipped_for_a_program(report: pytest.TestReport, error: BaseException | None) -> None:
    """Skip a test that tried to start a program that is not installed on this machine."""
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
        shown = [f"{count} {reason}" for reason, count in reasons.most_common(REASONS)]
        others = reasons.total() - sum(count for _, count in reasons.most_common(REASONS))
        shown += [f"{others} for other reasons (-rs lists all)"] if others else []
        terminalreporter.write_line(f"{reasons.total()} tests were skipped: {'; '.join(shown)}")


def pytest_sessionfinish() -> None:
    """Save coverage for scripts/branches now, since an xdist process may be killed at its end."""
    coverage = sys.modules.get("coverage")
    if coverage is not None and (running := coverage.Coverage.current()) is not None:
        running.save()


def pytest_runtest_setup() -> None:
    """Reset the scheduler. Under root, SVT-AV1 gives the process and its children real-time
    priority. Two such processes would block a machine with two cores."""
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) != ORDINARY:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # the thread has just ended
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
    """Return a function that sets the time zone. The zone is UTC when the test begins."""

    def use(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    use("UTC")
    yield use
    monkeypatch.undo()
    time.tzset()
