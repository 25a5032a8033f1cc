"""Counting events with perf, and reading the output of perf and cProfile."""

from pathlib import Path

import pytest

import detector
from detector.core.config.levels import resolve_config
from detector.core.errors.machine import NotHereError
from detector.core.session.store import Session
from detector.lab.profile.base import Occasion
from detector.lab.profile.counters import count_events, read_perf
from detector.lab.profile.python import fold_by_owner, label, owner, shorten_path
from detector.lab.session.read import read_session
from tests.lab.report.sessions import CLIP, ran

PERF = """# started on Sat
1234.56;msec;task-clock;1234560000;100.00;1.2;CPUs utilized
2000000;;cycles:u;1;100.00;;
<not supported>;;cache-misses;0;0.00;;
5000000;;instructions;1;100.00;2.5;insn per cycle
7;;page-faults;1;100.00;;
"""


def test_perf_output_is_parsed():
    assert read_perf(PERF) == {"task-clock": 1234.56, "cycles": 2e6, "instructions": 5e6}


# A fake perf, which runs the given command and records its own arguments.
COUNTING = """#!/bin/sh
report=$5
echo "$*" >> {folder}/calls
while [ "$1" != -- ]; do shift; done
shift
"$@" || exit
echo "{cycles};;cycles;1;100.00;;" > "$report"
echo "5000000;;instructions;1;100.00;;" >> "$report"
"""


def occasion_with_perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cycles: str) -> Occasion:
    """Prepare a run of two frames. The fake perf always reports ``cycles`` cycles."""
    perf = tmp_path / "bin/perf"
    perf.parent.mkdir()
    perf.write_text(COUNTING.format(folder=tmp_path, cycles=cycles))
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", str(perf.parent), prepend=":")
    plain = read_session(ran(tmp_path, frames=2))
    config = resolve_config(None, {"engine": "null", "frames": 2, "no_video": True})
    return Occasion(str(CLIP), config, Session(tmp_path / "run"), plain)


@pytest.mark.slow
def test_hardware_counters_are_read_from_the_run(tmp_path, monkeypatch):
    facts = count_events(occasion_with_perf(tmp_path, monkeypatch, "2000000"))
    assert facts.counts == {"cycles": 2e6, "instructions": 5e6}
    assert (facts.ipc, facts.instructions_per_frame) == (2.5, 2.5e6)
    assert facts.slowdown > 0
    trial, of_the_run = (tmp_path / "calls").read_text().splitlines()
    assert f" detect {CLIP} " in of_the_run
    assert " detect " not in trial


@pytest.mark.slow
def test_no_run_is_started_if_the_cycle_counter_is_missing(tmp_path, monkeypatch):
    occasion = occasion_with_perf(tmp_path, monkeypatch, "<not supported>")
    with pytest.raises(NotHereError, match="no cycle counter"):
        count_events(occasion)
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


PACKAGE = Path(detector.__file__).parent


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        (str(PACKAGE / "core/stages/nms.py"), "nms", "detector.core.stages"),
        (str(PACKAGE / "core/run/detect.py"), "detect", "detector.core.run"),
        ("/x/lib/python3.11/site-packages/numpy/core/a.py", "f", "numpy"),
        ("/x/lib/python3.11/site-packages/click.py", "f", "click"),
        ("/usr/lib/python3.11/json/encoder.py", "f", "python"),
        ("~", "<built-in method time.sleep>", "built-in: time.sleep"),
        ("~", "<method 'encode' of 'av.Codec' objects>", "built-in: 'encode'"),
    ],
)
def test_function_is_counted_for_its_package(file, name, expected):
    assert owner(file, name) == expected


def test_self_times_are_summed_by_owner():
    stats = {
        (str(PACKAGE / "core/stages/nms.py"), 1, "a"): (1, 1, 0.25, 1.0, {}),
        (str(PACKAGE / "core/stages/heads/darknet.py"), 2, "b"): (1, 1, 0.5, 0.5, {}),
        ("~", 0, "<built-in method time.sleep>"): (1, 1, 4.0, 4.0, {}),
    }
    assert fold_by_owner(stats) == {"built-in: time.sleep": 4.0, "detector.core.stages": 0.75}


def test_paths_of_functions_are_shortened():
    assert shorten_path(str(PACKAGE / "core/run/detect.py")) == "detector/core/run/detect.py"
    assert shorten_path("/x/site-packages/av/video.py") == "av/video.py"
    assert shorten_path("/usr/lib/python3.11/json/encoder.py") == "encoder.py"
    assert (
        label(str(PACKAGE / "core/run/detect.py"), 12, "detect")
        == "detector/core/run/detect.py:12(detect)"
    )
    assert label("~", 0, "<built-in method time.sleep>") == "built-in method time.sleep"
