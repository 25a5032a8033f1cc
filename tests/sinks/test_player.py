"""--save player: one page, with the rows inside, that plays the source's own video."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probing import make_frame, make_info, one_person, write_clip

from detector.core import sinks
from detector.core.types import Detections
from tests.lab.report.browser import Browser, chromium

HOSTILE = "</script><script>document.title='taken'</script><!-- \u2028"


def save(source: Path, page: Path, name: str = "person", frames: int = 3) -> None:
    sink = sinks.open("player", page)
    sink.open(make_info(str(source), width=64, height=48))
    for i in range(frames):
        found = one_person()
        found.names = (name,)
        found.boxes[:] = [[i, 8, i + 24, 40]]
        sink.write(make_frame(i), found)
    sink.close()


def part(page: Path, name: str) -> str:
    found = re.search(rf'id="{name}">(.*?)(</script>|$)', page.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def rows(page: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in part(page, "detections").splitlines() if line]


def test_player_rows_equal_jsonl(tmp_path: Path) -> None:
    save(tmp_path / "in.mp4", tmp_path / "x.html")
    sink = sinks.open("jsonl", tmp_path / "x.jsonl")
    sink.open(make_info(str(tmp_path / "in.mp4"), width=64, height=48))
    for i in range(3):
        found = one_person()
        found.boxes[:] = [[i, 8, i + 24, 40]]
        sink.write(make_frame(i), found)
    sink.close()
    assert rows(tmp_path / "x.html") == [
        json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()
    ]


def test_the_video_is_found_from_where_the_page_lies(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    save(tmp_path / 'a 100% "#?.mp4', tmp_path / "out" / "x.html")
    about = json.loads(part(tmp_path / "out" / "x.html", "about"))
    assert about["video"] == "./../a%20100%25%20%22%23%3F.mp4"
    assert about["name"] == 'a 100% "#?.mp4'


def test_no_name_ends_the_script(tmp_path: Path) -> None:
    save(tmp_path / "in<script>.mp4", tmp_path / "x.html", HOSTILE)
    text = (tmp_path / "x.html").read_text()
    assert text.count("<script") == text.count("</script>") == 3
    assert rows(tmp_path / "x.html")[0]["detections"][0]["class"] == HOSTILE
    assert "default-src 'none'" in text


def test_only_detections_keeps_all_rows(tmp_path: Path) -> None:
    sink = sinks.open("player", tmp_path / "x.html", only_detections=True)
    sink.open(make_info(str(tmp_path / "in.mp4")))
    sink.write(make_frame(0), one_person())
    sink.write(make_frame(1), Detections.empty())
    sink.close()
    assert [len(row["detections"]) for row in rows(tmp_path / "x.html")] == [1, 0]


def test_a_page_of_a_killed_run_has_its_rows(tmp_path: Path) -> None:
    sink = sinks.open("player", tmp_path / "x.html")
    sink.open(make_info(str(tmp_path / "in.mp4")))
    sink.write(make_frame(0), one_person())
    left = sink.abort()
    assert left is not None
    assert len(rows(left)) == 1


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_a_browser_draws_the_boxes_of_the_picture_that_it_shows(tmp_path: Path) -> None:
    save(write_clip(tmp_path / "in.mp4", 30), tmp_path / "x.html", HOSTILE, frames=30)
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(tmp_path / "x.html", 800, 700)
        wait(browser, "document.getElementById('video').readyState >= 2")
        for number in (0, 7, 20):
            browser.run(f"document.getElementById('video').currentTime = {(number + 0.5) / 25}")
            wait(browser, f"now.textContent.startsWith('picture {number} at')")
            drawn = np.array(browser.run(COLUMNS))
            # Labels are as wide as their text; the lowest rows have the box alone.
            assert abs(drawn.min() - number) < 0.6
            assert abs(drawn.max() - number - 24) < 0.6
        browser.click("#on")
        wait(browser, "now.textContent.startsWith('picture 21 at')")
        assert browser.run("document.title").startswith("in.mp4")
        assert [said for said in browser.complaints if "getImageData" not in said] == []
        assert all(url.startswith(("file:", "data:")) for url in browser.requests)
    finally:
        browser.close()


# Which columns of the canvas have ink at the boxes' lower third, in pixels of the picture.
COLUMNS = """(() => {
  const c = document.getElementById('canvas'), v = document.getElementById('video');
  const fit = Math.min(c.width / v.videoWidth, c.height / v.videoHeight);
  const left = (c.width - v.videoWidth * fit) / 2, top = (c.height - v.videoHeight * fit) / 2;
  const line = c.getContext('2d').getImageData(0, Math.round(top + 36 * fit), c.width, 1).data;
  const found = [];
  for (let x = 0; x < c.width; x++) if (line[4 * x + 3] > 128) found.push((x - left) / fit);
  return found;
})()"""


def wait(browser: Browser, condition: str) -> None:
    end = time.monotonic() + 60
    while not browser.run(f"Boolean({condition})"):
        assert time.monotonic() < end, (
            condition,
            browser.complaints,
            browser.run("document.body.innerText"),
        )
        time.sleep(0.05)
