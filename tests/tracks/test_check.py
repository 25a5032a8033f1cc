"""``zones check``: the page on which a person judges crossings, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detector.core.sinks._rows import csv_lines
from detector.tracks.sinks.counts import CountsSink
from detector.tracks.sinks.events import EventsSink
from tests.cli.command import assert_one_line_error, detect_video
from tests.lab.report.browser import Browser, chromium
from tests.sources.clips import WIDTH, write_video
from tests.waiting import wait_for

Z = 1.959964  # of the normal distribution, for 95%
TIMES_S = [round(0.3 * number, 1) for number in range(1, 10)]
CHECK = ("zones", "check", "in.counts.csv", "in.mp4")


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """A folder with a clip of 4 s, and what --zones would leave of it: nine crossings."""
    write_video(tmp_path / "in.mp4", 100)
    (tmp_path / "in-zones.yaml").write_text("lines: {door: {points: [[0, 1], [1, 1]], out: gone}}")
    happened = [
        (one, "in.mp4", "door", "crosses", "out", "<b>cat", 7, 20.5, 9, "", "", "gone")
        for one in TIMES_S
    ]
    sums = (0, 4, "", "", "in.mp4", "door", "<b>cat", 0, 9)
    (tmp_path / "in.events.csv").write_text(csv_lines([EventsSink.columns, *happened]))
    (tmp_path / "in.counts.csv").write_text(csv_lines([CountsSink.columns[: len(sums)], sums]))
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_the_page_gives_the_rate_of_a_sample_and_saves_the_verdicts(counted: Path) -> None:
    for _ in range(2):
        done = detect_video(*CHECK, "--sample", 6, "--stretch", 1, cwd=counted)
        assert done.returncode == 0, done.stderr
    again = (counted / "in-check-2.html").read_text().replace("in-check-2", "in-check")
    assert again == (counted / "in-check.html").read_text(), "the same ones are drawn"
    (saved := counted / "saved/in-check.json").parent.mkdir()
    browser = Browser(counted / "profile")
    try:
        browser.open(counted / "in-check.html", 390)
        browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(saved.parent))
        for key in "rwrmru2":
            browser.run(f"dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))")
        browser.click("#save")
        wait_for(saved.exists)
        assert browser.run("document.documentElement.scrollWidth") == 390
        assert browser.run("document.querySelectorAll('#strip img').length") == 9
        assert browser.run("document.images[1].naturalWidth") > 0
        assert browser.complaints == []
        assert all(not url.startswith("http") for url in browser.requests)
    finally:
        browser.close()
    found = json.loads(saved.read_text())
    judged = ["right", "wrong", "right", "right", "unsure", ""]
    assert [one["judged"] for one in found["crossings"]] == judged
    assert {one["time_s"] for one in found["crossings"]} < set(TIMES_S)
    assert found["seen"] == {"door in": 0, "door gone": 1}
    wrong = found["wrong"]
    assert (wrong["k"], wrong["n"], found["unsure"], found["beside"]) == (1, 4, 1, 1)
    for end in (wrong["low"], wrong["high"]):  # where Wilson's interval ends, by its definition
        assert abs(end - 0.25) == pytest.approx(Z * (end * (1 - end) / 4) ** 0.5)


def assert_refused(folder: Path, code: int, *more: str) -> None:
    before = sorted(folder.iterdir())
    assert_one_line_error(detect_video(*CHECK, *more, cwd=folder), code)
    assert sorted(folder.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("in.events.csv", "in.mp4", "other.mp4"),
        ("in.events.csv", "20.5", f"{WIDTH + 1}"),
        ("in.events.csv", "crosses", "stays"),
        ("in.events.csv", "0.9", "nan"),
        ("in.events.csv", "time_s", "time_utc"),
        ("in.counts.csv", ",9", ",8"),
        ("in-zones.yaml", "door", "gate"),
    ],
)
def test_crossings_of_something_else_are_refused(
    counted: Path, name: str, old: str, new: str
) -> None:
    text = (counted / name).read_text()
    (counted / name).write_text(text.replace(old, new))
    assert_refused(counted, 2)
    (counted / name).write_text(text)
    assert detect_video(*CHECK, "--stretch", 1, cwd=counted).returncode == 0
    (counted / name).unlink()
    assert_refused(counted, 2)
    assert_refused(counted, 6, "-o", "in-check.html")


def test_counts_of_a_camera_lead_to_a_recording(counted: Path) -> None:
    said = detect_video(*CHECK[:2], "zone-counts-2026-11-27.csv", "in.mp4", cwd=counted)
    assert_one_line_error(said, 2)
    assert "recording" in said.stderr


def test_a_video_that_ends_before_a_crossing_is_refused(counted: Path) -> None:
    whole = (counted / "in.mp4").read_bytes()
    write_video(counted / "in.mp4", 60)
    assert_refused(counted, 3)
    (counted / "in.mp4").write_bytes(whole[: len(whole) * 2 // 3])
    assert_refused(counted, 3)
