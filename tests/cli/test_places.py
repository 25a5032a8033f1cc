"""Unusual folders, devices, limits: exits are as documented, with at most one line on stderr."""

import os
import shutil
import signal
import subprocess
import time

import pytest

from tests.cli.command import COMMAND, assert_one_line_error, handles_signals
from tests.conftest import CHECKOUT
from tests.sources.clips import write_video
from tests.waiting import wait_for

RUN = "in.mp4 --engine null --engines-dir engines --quiet"


def shell(tmp_path, before: str, arguments: str, *wrapper: str, python: str = ""):
    """Run the shell line ``before``, then the command. ``python``: options of the interpreter."""
    line = f'{before}\nexec "{COMMAND[0]}" {python} -m detector {arguments}'
    return subprocess.run(
        [*wrapper, "bash", "-c", line],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "code"), [("--names", 4), ("--config", 2), ("--model", 4), ("--weights", 4)]
)
def test_endless_device_as_input_is_refused(tmp_path, option, code):
    write_video(tmp_path / "in.mp4", 3)
    model = "--model yolov4-tiny" if option == "--weights" else ""
    process = shell(tmp_path, "", f"{RUN} {model} {option} /dev/zero")
    assert_one_line_error(process, code, "/dev/zero")


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--names", "--config"])
def test_pipe_is_read_and_a_silent_one_can_be_interrupted(tmp_path, option):
    write_video(tmp_path / "in.mp4", 3)
    text = "conf: 0.4" if option == "--config" else "person\\nvehicle"
    process = shell(tmp_path, "", f"{RUN} {option} <(printf '{text}\\n')")
    assert (process.returncode, process.stderr) == (0, "")
    os.mkfifo(tmp_path / "pipe")
    process_at_pipe = subprocess.Popen(
        [*COMMAND, *RUN.split(), option, "pipe"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: handles_signals(process_at_pipe.pid))
    time.sleep(1)  # by now, the command usually waits for the pipe
    assert process_at_pipe.poll() is None
    process_at_pipe.send_signal(signal.SIGTERM)
    _, stderr = process_at_pipe.communicate(timeout=240)
    assert process_at_pipe.returncode == 143
    assert len(stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "arguments", "code"),
    [
        ("ulimit -v 250000", RUN, 5),
        ("ulimit -v 400000", RUN.replace("null", "ort"), 5),
        ("ulimit -f 8", RUN, 6),
        ("ulimit -n 5", RUN, 5),
        ("ulimit -n 16", RUN, 0),
        ("export TMPDIR=/nowhere", RUN, 0),
        ("unset HOME", RUN, 0),
        ("mkdir gone; cd gone; rmdir ../gone", f"{RUN.replace('in.mp4', '$OLDPWD/in.mp4')}", 6),
        ("mkdir gone; cd gone; rmdir ../gone", "report runs/x", 2),
        ("cd /proc/self", f"{RUN.replace('in.mp4', '$OLDPWD/in.mp4')}", 6),
    ],
)
def test_tight_limit_or_unusual_folder_gives_the_documented_exit(tmp_path, before, arguments, code):
    write_video(tmp_path / "in.mp4", 60)
    process = shell(tmp_path, before, arguments)
    if code == 0:
        assert (process.returncode, process.stderr) == (0, "")
    else:
        assert_one_line_error(process, code)


def test_low_limit_on_open_files_is_reported(tmp_path):
    """The standard streams leave one of the four files. ``-S`` skips `site`, which may open two."""
    process = shell(
        tmp_path, f"export PYTHONPATH={CHECKOUT}; ulimit -n 4", "--version", python="-S"
    )
    assert_one_line_error(process, 5, "ulimit -n is 4")


# Root has no limit on threads, so use another account, which keeps only root's access to files.
CAPABILITIES = "-all,+dac_override,+dac_read_search"
ANOTHER_ACCOUNT = (
    *("setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"),
    *(f"--{kind}={CAPABILITIES}" for kind in ("inh-caps", "ambient-caps", "bounding-set")),
)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_run_with_too_few_threads_exits_5_and_not_130(tmp_path, threads):
    """OpenBLAS raises SIGINT if its threads cannot start."""
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("machine: only root can become another account")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("machine: OpenBLAS starts no threads on one core")
    write_video(tmp_path / "in.mp4", 3)
    tmp_path.chmod(0o777)  # so that the other account can write there
    process = shell(tmp_path, f"ulimit -u {threads}", RUN, *ANOTHER_ACCOUNT)
    if "ermission denied" in process.stderr:
        pytest.skip("machine: another account cannot read the checkout")
    assert_one_line_error(process, 5)
