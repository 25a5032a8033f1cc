"""Signals at any moment of a command: documented exit codes, no tracebacks, no incomplete files, no
processes left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import numpy as np
import pytest

from detector.core.cli.exits import exit_codes
from detector.core.run import signals
from tests.cli.command import COMMAND, handles_signals, interruptible
from tests.cli.small import write_network
from tests.conftest import night
from tests.processes import SESSION, alive_with, children_of, is_alive
from tests.sources.clips import pts_of, write_video
from tests.waiting import wait_for

CODES = {signal.SIGHUP: 129, signal.SIGINT: 130, signal.SIGTERM: 143}
MOMENTS = 12  # runs with one signal each, in nightly tests; other tests and commands get fewer
OUR_FILES = (".lock", ".ses", ".detect-video-session")  # may remain; .ses is onnxruntime's


@pytest.fixture(autouse=True)
def default_sigint() -> Iterator[None]:
    with interruptible():
        yield


def start(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start the command in its own process session, so that its processes can be found."""
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def half_files(folder: Path) -> list[str]:
    """Return the partial, temporary and hidden files that a command left. The file .ses, which
    onnxruntime leaves in the temporary folder, does not count."""
    # os.walk continues if a folder is deleted meanwhile.
    files = (Path(where, name) for where, _, names in os.walk(folder) for name in names)
    paths = (path.relative_to(folder) for path in files if path.is_file())
    return [
        str(path)
        for path in paths
        if "partial" in path.name
        or (path.parts[0] == "tmp" and path.parts[1].startswith("detect-video"))
        or (path.name.startswith(".") and path.name not in OUR_FILES)
    ]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT, signal.SIGTERM])
def test_signal_at_the_start_of_a_command(number: signal.Signals) -> None:
    """SIGUSR1 (``systemctl reload``) is ignored until a live run installs a handler for it."""
    code = (
        "import os, sys, types; from detector.__main__ import main; "
        "sys.modules['detector.core.cli'] = types.SimpleNamespace("
        f"main=lambda: print(os.kill(os.getpid(), {number:d}))); main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    says = "" if number in CODES else "None\n"
    assert (done.returncode, done.stdout) == (CODES.get(number, 0), says), done.stderr


def check_end(process: subprocess.Popen[str], folder: Path, number: int, handled: bool) -> None:
    stdout, stderr = process.communicate(timeout=240)
    if not handled and process.returncode not in (0, CODES[signal.Signals(number)]):
        return  # the interpreter turns SIGINT into a traceback and exit code 1
    if not handled and "Error processing line 1 of " in stderr:
        return  # Python was reading .pth files: it prints an error and continues
    assert process.returncode in (0, CODES[signal.Signals(number)]), stderr
    assert "Traceback" not in stderr + stdout, stderr
    assert "Exception" not in stderr, stderr
    assert len(stderr.splitlines()) <= 1, stderr
    wait_for(lambda: not alive_with(SESSION, process.pid))
    assert half_files(folder) == []


def sweep(folder: Path, number: signal.Signals, *arguments: object, moments: int) -> list[int]:
    """Send the signal at moments from the start to the end of the command. Return the exit codes.

    The fastest run so far gives the time of the end, since the first run may have been slow.
    """
    began = time.monotonic()
    process = start(folder, *arguments)
    assert process.wait(timeout=240) == 0, process.communicate()
    process.communicate()
    whole_s = time.monotonic() - began
    codes = []
    for share in np.linspace(0, 1, moments):
        began, moment = time.monotonic(), max(0.02, share * whole_s)
        process = start(folder, *arguments)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=moment)
            whole_s = min(whole_s, time.monotonic() - began)
        handled = process.poll() is None and handles_signals(process.pid)
        process.send_signal(number)
        check_end(process, folder, number, handled)
        codes.append(process.returncode)
    return codes


SIGNAL_DURING_IMPORT = """
import os, signal, time
from detector.core.run import signals

class ExtensionFileLoader:  # named like Python's own, whose frames ``signals`` finds by name
    exec(compile(
        "def exec_module(self, body): body()", "<frozen importlib._bootstrap_external>", "exec"
    ))

def initialise():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.05)  # here Python calls the handler, which has to wait
    print("initialised")

signals.leave_on_signals()
try:
    with signals.raise_on_signals():
        ExtensionFileLoader().exec_module(initialise)
        time.sleep(60)
except signals.Stopped as stopped:
    print(stopped.exit_code)
"""


def test_signal_waits_for_the_import_of_an_extension() -> None:
    """onnx calls Python during its import, and an exception there would crash the process."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL_DURING_IMPORT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "initialised\n143\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES)
def test_signal_at_any_moment_of_a_run(tmp_path, number, pytestconfig):
    moments = MOMENTS if pytestconfig.getoption("--nightly") else MOMENTS // 3
    write_video(tmp_path / "in.mp4", 60)
    model = ("--model", write_network(tmp_path), "--engines-dir", tmp_path / "engines")
    run = ("in.mp4", "--engine", "ort", "--run-dir", "run", *model)
    codes = sweep(tmp_path, number, *run, moments=moments)
    assert CODES[number] in codes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "command"),
    [
        (signal.SIGTERM, "compare in.mp4 --model x.cfg --engine ort,null --rounds 1 --frames 6"),
        (signal.SIGHUP, "build x.cfg --precision int8 --calibrate in.mp4 --calibrate-frames 4"),
        night(
            signal.SIGINT,
            "profile in.mp4 --model x.cfg --engine ort --only loop,what_if --what-if-seconds 1 "
            "--run-dir run --json",
        ),
        (signal.SIGTERM, "report run --format html"),
    ],
)
def test_signal_at_any_moment_of_other_commands(tmp_path, number, command, pytestconfig):
    moments = MOMENTS // 2 if pytestconfig.getoption("--nightly") else MOMENTS // 4
    write_video(tmp_path / "in.mp4", 12)
    write_network(tmp_path)
    if command.startswith("report"):
        start(tmp_path, "in.mp4", "--engine", "null", "--run-dir", "run").communicate()
    engines_dir = () if command.startswith("report") else ("--engines-dir", "engines")
    sweep(tmp_path, number, *command.split(), *engines_dir, moments=moments)


@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [0.1, 2.0])
@pytest.mark.parametrize("command", ["compare in.mp4 --engine ort,null --rounds 50", "doctor"])
def test_kill_9_leaves_no_process(tmp_path, command, pause_s):
    """Kill the command when its child processes have just started, or after a while."""
    write_video(tmp_path / "in.mp4", 12)
    process = start(tmp_path, *command.split())
    wait_for(lambda: children_of(process.pid))
    time.sleep(pause_s)
    children = children_of(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(is_alive, children)))
    wait_for(lambda: half_files(tmp_path) == [])


@pytest.mark.slow
def test_kill_9_while_doctor_times_encoders_leaves_no_file(tmp_path):
    """doctor tries all engines, and then times encoders with a file that exists for two seconds."""
    process = start(tmp_path, "doctor")
    while not [*tmp_path.glob("tmp/detect-video-doctor-*/drawn*")]:
        if process.poll() is not None:  # doctor ended before we saw the file, so try again
            process.communicate()
            process = start(tmp_path, "doctor")
        time.sleep(0.005)
    process.kill()
    process.communicate()
    wait_for(lambda: half_files(tmp_path) == [])


@pytest.mark.slow
@pytest.mark.parametrize("apart_s", [0.0, 0.3])
def test_second_signal_ends_the_run_immediately(tmp_path, apart_s):
    """Two simultaneous signals count as one, since `timeout` sends two. If the second signal comes
    later, it ends the run immediately. Files under a final name are complete."""
    options = ("--engine", "ort", "--engines-dir", "engines", "--run-dir", "run")
    options += ("--batch", 48, "--size", "320x192")  # a batch takes longer than ``apart_s``
    write_video(tmp_path / "in.mp4", 800, codec="mpeg4")  # most frames are never read
    process = start(tmp_path, "in.mp4", *options, "-o", "out.mp4")
    wait_for(lambda: (tmp_path / "out.partial.mp4").exists())
    process.terminate()
    time.sleep(apart_s)
    process.terminate()
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 143, stderr
    assert "Traceback" not in stderr
    wait_for(lambda: not alive_with(SESSION, process.pid))
    if (tmp_path / "out.mp4").exists():
        assert len(pts_of(tmp_path / "out.mp4")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_ignored_signal_stays_ignored(tmp_path, number):
    """nohup ignores SIGHUP; sh ignores SIGINT for its background jobs."""
    write_video(tmp_path / "in.mp4", 30)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        process = start(tmp_path, "in.mp4", "--engine", "null", "--engines-dir", "engines")
    finally:
        signal.signal(number, before)
    while process.poll() is None:
        process.send_signal(number)
        time.sleep(0.02)
    _, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, "")


def test_error_caused_by_a_signal_exits_with_the_code_of_the_signal(monkeypatch):
    history = signals._SignalHistory()  # a separate history, so that later tests see no signal
    monkeypatch.setattr(signals, "_history", history)

    def library() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException:
            raise RuntimeError("the library failed") from None

    with pytest.raises(signals.Stopped) as stopped, exit_codes("nothing was lost"):
        library()
    assert stopped.value.exit_code == CODES[signal.SIGTERM]
    for error in (signals.Stopped(143), click.UsageError("x"), click.exceptions.Exit(2)):
        with pytest.raises(type(error)), exit_codes("nothing was lost"):
            raise error
