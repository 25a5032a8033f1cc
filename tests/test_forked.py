"""A fork of the server is as good as a new interpreter (tests/forked.py)."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from detector.core.errors import EXIT_INTERRUPTED
from detector.core.sources import _cv2  # noqa: F401  # importing sets variables of the environment
from tests.cli.command import detect_video, detect_video_anew, start
from tests.conftest import CHECKOUT
from tests.forked import suits
from tests.sources.clips import write_video
from tests.sources.test_pipe import fed
from tests.waiting import wait_for

STREET = CHECKOUT / "videos/street.mp4"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        (),
        ("profle",),
        ("eval", "--help"),
        ("nothing.mp4", "--engine", "null"),
        (os.fsdecode(b"bad\xff name.mp4"), "--engine", "null"),
        ("in.mp4", "--engine", "null", "--frames", 2, "--save", "jsonl", "-q"),
    ],
)
def test_both_end_alike(tmp_path, arguments):
    ends = []
    for way in (detect_video, detect_video_anew):
        place = tmp_path / way.__name__
        place.mkdir()
        write_video(place / "in.mp4", 3)
        done = way(*arguments, cwd=place)
        files = sorted(str(path.relative_to(place)) for path in place.rglob("*"))
        said = done.stderr.replace(str(place), "HERE")
        ends.append((done.returncode, done.stdout, said, files))
    assert ends[0] == ends[1]


def test_this_environment_suits_and_that_of_an_interpreter_does_not():
    """Otherwise every test would start an interpreter, and nobody would notice."""
    assert suits(os.environ)
    assert suits({**os.environ, "XDG_CACHE_HOME": "elsewhere", "NVTX_INJECTION64_PATH": "x.so"})
    assert not suits({**os.environ, "PYTHONWARNINGS": "error"})
    assert not suits({**os.environ, "OMP_NUM_THREADS": "7"})
    assert not suits({name: value for name, value in os.environ.items() if name != "PATH"})


@pytest.mark.slow
def test_the_environment_is_the_forks_own(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more/sitecustomize.py").write_text(
        "import os, sys\nprint(sorted(os.environ), os.getcwd(), sys.argv[1:])\n"
    )
    given = {"PYTHONPATH": str(tmp_path / "more"), "DETECT_VIDEO_TEST": "1"}
    fork = detect_video("--version", cwd=tmp_path, env=given).stdout
    assert "'DETECT_VIDEO_TEST'" in fork
    assert fork.splitlines()[0].endswith(f"{tmp_path} ['--version']")
    assert "DETECT_VIDEO_TEST" not in os.environ
    assert "DETECT_VIDEO_TEST" not in detect_video("--version", cwd=tmp_path).stdout


@pytest.mark.slow
def test_signals_reach_it_where_pytest_ignores_them(tmp_path):
    """As under nohup, or in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with fed(STREET.read_bytes(), silent=True) as stdin:  # it does not end by itself
            process = start(
                "-", "--engine", "null", "--sync", "-o", "x.mp4", cwd=tmp_path, stdin=stdin
            )
            wait_for(lambda: list(tmp_path.glob("*.partial*")))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=240)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.returncode == EXIT_INTERRUPTED


@pytest.mark.slow
def test_one_that_takes_too_long_is_ended(tmp_path):
    with fed(b"", silent=True) as stdin, pytest.raises(subprocess.TimeoutExpired):
        detect_video("-", "--engine", "null", cwd=tmp_path, timeout=0.05, stdin=stdin)
    assert detect_video("--version", cwd=tmp_path).returncode == 0, "the server goes on"
