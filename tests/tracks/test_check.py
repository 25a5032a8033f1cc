"""Test ``zones check``: the page on which a person judges crossings, and refused files."""

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

Z = 1.959964  # 95% of a normal distribution is within this many standard deviations of the mean
TIMES_S = [round(0.3 * number, 1) for number in range(1, 10)]
CHECK = ("zones", "check", "in.counts.csv", "in.mp4")


@pytest.fixture
def zones_run(tmp_path: Path) -> Path:
    """Return a folder with a clip of 4 s and the files of a --zones run with nine crossings."""
    write_video(tmp_path / "in.mp4", 100)
    (tmp_path / "in-zones.yaml").write_text("lines: {door: {points: [[0, 1], [1, 1]], out: gone}}")
    rows = [
        (time_s, "in.mp4", "door", "crosses", "out", "<b>cat", 7, 20.5, 9, "", "", "gone")
        for time_s in TIMES_S
    ]
    sums = (0, 4, "", "", "in.mp4", "door", "<b>cat", 0, 9)
    (tmp_path / "in.events.csv").write_text(csv_lines([EventsSink.columns, *rows]))
    (tmp_path / "in.counts.csv").write_text(csv_lines([CountsSink.columns[: len(sums)], sums]))
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_page_shows_error_rate_of_sample_and_saves_verdicts(zones_run: Path) -> None:
    for _ in range(2):
        done = detect_video(*CHECK, "--sample", 6, "--stretch", 1, cwd=zones_run)
        assert done.returncode == 0, done.stderr
    again = (zones_run / "in-check-2.html").read_text().replace("in-check-2", "in-check")
    assert again == (zones_run / "in-check.html").read_text(), "the sample is reproducible"
    (saved := zones_run / "saved/in-check.json").parent.mkdir()
    browser = Browser(zones_run / "profile")
    try:
        browser.open(zones_run / "in-check.html", 390)
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
    verdicts = json.loads(saved.read_text())
    judged = ["right", "wrong", "right", "right", "unsure", ""]
    assert [crossing["judged"] for crossing in verdicts["crossings"]] == judged
    assert {crossing["time_s"] for crossing in verdicts["crossings"]} < set(TIMES_S)
    assert verdicts["seen"] == {"door in": 0, "door gone": 1}
    wrong = verdicts["wrong"]
    assert (wrong["k"], wrong["n"], verdicts["unsure"], verdicts["beside"]) == (1, 4, 1, 1)
    for end in (wrong["low"], wrong["high"]):  # they solve the equation of Wilson's interval
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
def test_files_that_do_not_match_are_refused(
    zones_run: Path, name: str, old: str, new: str
) -> None:
    text = (zones_run / name).read_text()
    (zones_run / name).write_text(text.replace(old, new))
    assert_refused(zones_run, 2)
    (zones_run / name).write_text(text)
    assert detect_video(*CHECK, "--stretch", 1, cwd=zones_run).returncode == 0
    (zones_run / name).unlink()
    assert_refused(zones_run, 2)
    assert_refused(zones_run, 6, "-o", "in-check.html")


def test_error_for_counts_of_a_camera_asks_for_a_recording(zones_run: Path) -> None:
    result = detect_video(*CHECK[:2], "zone-counts-2026-11-27.csv", "in.mp4", cwd=zones_run)
    assert_one_line_error(result, 2)
    assert "recording" in result.stderr


def test_video_that_ends_before_a_crossing_is_refused(zones_run: Path) -> None:
    whole = (zones_run / "in.mp4").read_bytes()
    write_video(zones_run / "in.mp4", 60)
    assert_refused(zones_run, 3)
    (zones_run / "in.mp4").write_bytes(whole[: len(whole) * 2 // 3])
    assert_refused(zones_run, 3)
