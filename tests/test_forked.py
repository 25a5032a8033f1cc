"""A command gives equal results in a new interpreter and in a fork of the test server."""

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
def test_fork_and_new_interpreter_give_equal_results(tmp_path, arguments):
    results = []
    for command in (detect_video, detect_video_anew):
        place = tmp_path / command.__name__
        place.mkdir()
        write_video(place / "in.mp4", 3)
        done = command(*arguments, cwd=place)
        files = sorted(str(path.relative_to(place)) for path in place.rglob("*"))
        stderr = done.stderr.replace(str(place), "HERE")
        results.append((done.returncode, done.stdout, stderr, files))
    assert results[0] == results[1]


def test_fork_is_used_unless_a_variable_of_the_interpreter_differs():
    """If ``suits`` always returned False, every test would silently start a new interpreter."""
    assert suits(os.environ)
    assert suits({**os.environ, "XDG_CACHE_HOME": "elsewhere", "NVTX_INJECTION64_PATH": "x.so"})
    assert not suits({**os.environ, "PYTHONWARNINGS": "error"})
    assert not suits({**os.environ, "OMP_NUM_THREADS": "7"})
    assert not suits({name: value for name, value in os.environ.items() if name != "PATH"})
