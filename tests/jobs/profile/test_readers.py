"""perf's lines and cProfile's rows, read."""

from __future__ import annotations

from pathlib import Path

import pytest

import detector
from detector.jobs.profile.counters import read_perf
from detector.jobs.profile.python import fold_by_owner, label, owner, shorten_path

PERF = """# started on Sat
1234.56;msec;task-clock;1234560000;100.00;1.2;CPUs utilized
2000000;;cycles:u;1;100.00;;
<not supported>;;cache-misses;0;0.00;;
5000000;;instructions;1;100.00;2.5;insn per cycle
7;;page-faults;1;100.00;;
"""


def test_perf_lines():
    assert read_perf(PERF) == {"task-clock": 1234.56, "cycles": 2e6, "instructions": 5e6}


ROOM = Path(detector.__file__).parent


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        (str(ROOM / "stages/nms.py"), "nms", "detector.stages"),
        (str(ROOM / "run/detect.py"), "detect", "detector.run.detect"),
        ("/x/lib/python3.11/site-packages/numpy/core/a.py", "f", "numpy"),
        ("/x/lib/python3.11/site-packages/click.py", "f", "click"),
        ("/usr/lib/python3.11/json/encoder.py", "f", "python"),
        ("~", "<built-in method time.sleep>", "built-in: time.sleep"),
        ("~", "<method 'encode' of 'av.Codec' objects>", "built-in: 'encode'"),
    ],
)
def test_owners(file, name, expected):
    assert owner(file, name) == expected


def test_self_times_fold_without_loss():
    stats = {
        (str(ROOM / "stages/nms.py"), 1, "a"): (1, 1, 0.25, 1.0, {}),
        (str(ROOM / "stages/heads/darknet.py"), 2, "b"): (1, 1, 0.5, 0.5, {}),
        ("~", 0, "<built-in method time.sleep>"): (1, 1, 4.0, 4.0, {}),
    }
    assert fold_by_owner(stats) == {"built-in: time.sleep": 4.0, "detector.stages": 0.75}


def test_places_are_short():
    assert shorten_path(str(ROOM / "run/detect.py")) == "detector/run/detect.py"
    assert shorten_path("/x/site-packages/av/video.py") == "av/video.py"
    assert shorten_path("/usr/lib/python3.11/json/encoder.py") == "encoder.py"
    assert label(str(ROOM / "run/detect.py"), 12, "detect") == "detector/run/detect.py:12(detect)"
    assert label("~", 0, "<built-in method time.sleep>") == "built-in method time.sleep"
