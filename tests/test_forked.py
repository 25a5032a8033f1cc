"""A fork of the server is as good as a new interpreter (tests/forked.py)."""

from __future__ import annotations

import os

import pytest

from detector.core.sources import _cv2  # noqa: F401  # importing sets variables of the environment
from tests.cli.command import detect_video, detect_video_anew
from tests.conftest import CHECKOUT
from tests.forked import suits
from tests.sources.clips import write_video

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
    """Otherwise every test would start an interpreter unnoticed."""
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
