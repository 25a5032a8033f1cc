"""Closed or full standard streams: the run goes on, or one line says that printing failed."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.cli.command import COMMAND
from tests.sources.clips import write_video


def shell(tmp_path, arguments: str, redirection: str) -> subprocess.CompletedProcess[str]:
    line = f'exec "{COMMAND[0]}" -m detector {arguments} {redirection}'
    return subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, text=True, capture_output=True, timeout=240
    )


@pytest.mark.slow
@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_stop_nobody(tmp_path, redirection):
    write_video(tmp_path / "in.mp4", 3)
    process = shell(tmp_path, "in.mp4 --engine null", redirection)
    assert (process.returncode, process.stderr) == (0, "")
    assert {"in-null-detected.mp4", "in-null-detected.jsonl"} <= set(os.listdir(tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    "arguments", ["in.mp4 --engine null", "in.mp4 --engine null --json", "--help", "metrics"]
)
def test_a_full_disk_behind_standard_output(tmp_path, arguments):
    write_video(tmp_path / "in.mp4", 3)
    process = shell(tmp_path, arguments, "> /dev/full")
    assert process.returncode == 6
    [line] = process.stderr.splitlines()
    assert "standard output: No space left on device" in line
