"""--save player: a single page that contains the rows and plays the source's own video."""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probing import make_frame, one_person, open_sink, write_clip

from detector.core.types import Detections
from tests.lab.report.browser import Browser, chromium

HOSTILE = "</script><script>document.title='taken'</script><!-- \u2028"


def save(
    source: Path, target: Path, name: str = "person", frames: int = 3, kind: str = "player"
) -> None:
    sink = open_sink(kind, target, path=str(source))
    for i in range(frames):
        detections = one_person()
        detections.names = (name,)
        detections.boxes[:] = [[i, 8, i + 24, 40]]
        sink.write(make_frame(i), detections)
    sink.close()


def part(page: Path, name: str) -> str:
    element = re.search(rf'id="{name}">(.*?)(</script>|$)', page.read_text(), re.DOTALL)
    assert element is not None
    return element[1]


def rows(page: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in part(page, "detections").splitlines() if line]


def test_player_rows_equal_jsonl(tmp_path: Path) -> None:
    save(tmp_path / "in.mp4", tmp_path / "x.html")
    save(tmp_path / "in.mp4", tmp_path / "x.jsonl", kind="jsonl")
    assert rows(tmp_path / "x.html") == [
        json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()
    ]


def test_page_has_a_relative_link_to_the_video(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    save(tmp_path / 'a 100% "#?.mp4', tmp_path / "out" / "x.html")
    about = json.loads(part(tmp_path / "out" / "x.html", "about"))
    assert about["video"] == "./../a%20100%25%20%22%23%3F.mp4"
    assert about["name"] == 'a 100% "#?.mp4'


def test_names_cannot_close_the_script_element(tmp_path: Path) -> None:
    save(tmp_path / "in<script>.mp4", tmp_path / "x.html", HOSTILE)
    text = (tmp_path / "x.html").read_text()
    assert text.count("<script") == text.count("</script>") == 3
    assert rows(tmp_path / "x.html")[0]["detections"][0]["class"] == HOSTILE
    assert "default-src 'none'" in text


def test_option_only_detections_keeps_rows_of_empty_frames(tmp_path: Path) -> None:
    sink = open_sink(
        "player", tmp_path / "x.html", {"only_detections": True}, path=str(tmp_path / "in.mp4")
    )
    sink.write(make_frame(0), one_person())
    sink.write(make_frame(1), Detections.empty())
    sink.close()
    assert [len(row["detections"]) for row in rows(tmp_path / "x.html")] == [1, 0]


def test_page_of_an_aborted_run_has_its_rows(tmp_path: Path) -> None:
    sink = open_sink("player", tmp_path / "x.html", path=str(tmp_path / "in.mp4"))
    sink.write(make_frame(0), one_person())
    partial = sink.abort()
    assert partial is not None
    assert len(rows(partial)) == 1


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_browser_draws_the_boxes_of_the_displayed_picture(tmp_path: Path) -> None:
    save(write_clip(tmp_path / "in.mp4", 30), tmp_path / "x.html", HOSTILE, frames=30)
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(tmp_path / "x.html", 800, 700)
        wait(browser, "document.getElementById('video').readyState >= 2")
        for number in (0, 7, 20):
            browser.run(f"document.getElementById('video').currentTime = {(number + 0.5) / 25}")
            wait(browser, f"now.textContent.startsWith('picture {number} at')")
            drawn = np.array(browser.run(DRAWN_COLUMNS))
            assert abs(drawn.min() - number) < 0.6
            assert abs(drawn.max() - number - 24) < 0.6
        browser.click("#on")
        wait(browser, "now.textContent.startsWith('picture 21 at')")
        assert browser.run("document.title").startswith("in.mp4")
        assert [text for text in browser.complaints if "getImageData" not in text] == []
        assert all(url.startswith(("file:", "data:")) for url in browser.requests)
    finally:
        browser.close()


# Evaluates to the x of each drawn pixel in row 36 of the picture. This row is below the labels.
DRAWN_COLUMNS = """(() => {
  const c = document.getElementById('canvas'), v = document.getElementById('video');
  const fit = Math.min(c.width / v.videoWidth, c.height / v.videoHeight);
  const left = (c.width - v.videoWidth * fit) / 2, top = (c.height - v.videoHeight * fit) / 2;
  const line = c.getContext('2d').getImageData(0, Math.round(top + 36 * fit), c.width, 1).data;
  const columns = [];
  for (let x = 0; x < c.width; x++) if (line[4 * x + 3] > 128) columns.push((x - left) / fit);
  return columns;
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
