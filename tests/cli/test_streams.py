"""Closed or full standard streams: the run continues, or prints a one-line error."""

import json
import os
import subprocess

import pytest

from tests.cli.command import COMMAND, assert_one_line_error, detect_video, run_ok
from tests.sources.clips import write_video
from tests.sources.nasty import make


def shell(
    tmp_path, arguments: str, redirection: str, **more: str
) -> subprocess.CompletedProcess[str]:
    line = f'exec "{COMMAND[0]}" -m detector {arguments} {redirection}'
    return subprocess.run(
        ["sh", "-c", line],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=240,
        env={**os.environ, **more},
    )


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND[0], "-c", code], text=True, capture_output=True, timeout=240, check=True
    )


def test_standard_output_that_is_reserved_for_rows_gets_no_other_text():
    done = python(
        "import os\n"
        "from detector.core.cli.printing import take_standard_output\n"
        "taken = take_standard_output()\n"
        "print('ours', flush=True)\n"
        "os.system('echo of a library')\n"
        "os.write(taken, b'rows')\n"
    )
    assert (done.stdout, done.stderr.split()) == ("rows", ["ours", "of", "a", "library"])


def test_signals_are_ignored_while_the_command_ends():
    """When a command ends, all outputs are already closed. It only prints and exits."""
    done = python(
        "import atexit, signal\n"
        "from detector.core import cli\n"
        "def ours():\n"
        "    return [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]\n"
        "cli._run_command = lambda: print(ours().count(signal.SIG_IGN)) or 0\n"
        "atexit.register(lambda: print(ours().count(signal.SIG_IGN)))\n"
        "cli.main()\n"
    )
    before, after = done.stdout.split()
    assert before < after == "2"  # ``before`` is "1" in a background job, which ignores SIGINT


@pytest.mark.slow
@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_run_with_closed_standard_streams_succeeds(tmp_path, redirection):
    write_video(tmp_path / "in.mp4", 3)
    process = shell(tmp_path, "in.mp4 --engine null", redirection)
    assert (process.returncode, process.stderr) == (0, "")
    assert {"in-null-detected.mp4", "in-null-detected.jsonl"} <= set(os.listdir(tmp_path))


@pytest.mark.parametrize(
    "arguments", ["in.mp4 -o -", "in.mp4 -o - --save video", "in.mp4 --json", "models list --json"]
)
def test_result_for_a_closed_standard_output_is_refused(tmp_path, arguments):
    write_video(tmp_path / "in.mp4", 3)
    assert_one_line_error(shell(tmp_path, arguments, ">&-"), 6, "is closed")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    "arguments",
    [
        *("in.mp4 --engine null", "in.mp4 --engine null --json", "--help", "models list"),
        *(f"report run --format {form}" for form in ("html -o -", "table", "json -o -")),
    ],
)
def test_full_disk_on_standard_output_exits_6(tmp_path, arguments):
    write_video(tmp_path / "in.mp4", 3)
    if arguments.startswith("report"):
        run_ok("in.mp4", "--engine", "null", "--run-dir", "run", cwd=tmp_path)
    process = shell(tmp_path, arguments, "> /dev/full")
    assert_one_line_error(process, 6, "standard output: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", ["in.mp4 --engine null", "in.mp4 --engine null --json", "--help", "models list"]
)
def test_closed_pipe_on_standard_output_exits_0(tmp_path, arguments):
    """A reader that closes the pipe wants no more output, so this is not an error."""
    write_video(tmp_path / "in.mp4", 3)
    line = f'"{COMMAND[0]}" -m detector {arguments} | true; exit "${{PIPESTATUS[0]}}"'
    process = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, text=True, capture_output=True, timeout=240
    )
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.slow
def test_json_document_is_alone_on_standard_output(tmp_path):
    """If OPENCV_LOG_LEVEL is set, cv2 logs to standard output. We redirect this to stderr."""
    write_video(tmp_path / "in.mp4", 3)
    arguments = "in.mp4 --engine null --decoder opencv --json"
    process = shell(tmp_path, arguments, "", OPENCV_LOG_LEVEL="DEBUG")
    assert process.returncode == 0
    assert json.loads(process.stdout)["frames"]["written"] == 3
    assert "DEBUG" in process.stderr


@pytest.mark.slow
def test_damaged_source_is_reported_even_with_quiet(tmp_path):
    clip = make(tmp_path, "05")
    process = detect_video(clip, "--engine", "null", "--quiet", "--save", "jsonl", cwd=tmp_path)
    assert process.stdout == ""
    assert_one_line_error(process, 7, clip.name)
