"""Test --zones in whole runs (files, summary, session, pictures) and the `zones` template."""

import csv
import json
import pickle
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from detector import Detector
from detector.core.config.schema import Config
from detector.core.run.detect import detect
from detector.core.stages.annotate import annotate
from detector.core.types import Detections, Outline
from detector.lab.report.parts.zones import PARTS
from detector.lab.session.read import read_session
from detector.tracks import cuts
from detector.tracks.book import Scene, arrow_of
from detector.tracks.counting import ZoneCount
from detector.tracks.sinks.counts import CountsSink
from detector.tracks.zones_file import read_zones
from tests.cli.command import detect_video
from tests.conftest import CHECKOUT
from tests.lab.report.browser import Browser, chromium
from tests.live.servers import need_rtsp, rtsp
from tests.sources.clips import write_video
from tests.waiting import wait_for

STREET = str(CHECKOUT / "videos/street.mp4")
ZONES = """\
every: 1
lines: {mid: [[0.5, 0], [0.5, 1]]}
zones: {right: {points: [[0.5, 0.2], [1, 0.2], [1, 1], [0.5, 1]], stays: 1, classes: [person]}}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counted")
    (folder / "zones.yaml").write_text(ZONES)
    done = detect_video(
        *(STREET, "--zones", "zones.yaml", "--engine", "ort", "--precision", "fp32"),
        *("--frames", "60", "--no-video", "-o", "out/", "--run-dir", "run", "--json"),
        *("--decoder", "opencv"),  # gives the same pixels as the Python API
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    (folder / "summary.json").write_text(done.stdout)
    return folder


def rows(folder: Path, kind: str) -> list[dict[str, str]]:
    with (folder / f"out/street-ort.{kind}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_files_and_summary_agree(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert {"events", "counts", "jsonl"} == set(summary["outputs"])
    names = {Path(path).name for path in summary["outputs"].values()}
    assert {path.name for path in (run / "out").iterdir()} == names, "no other file is left"
    by_name = {entry["name"]: entry for entry in summary["zones"]}
    assert (by_name["mid"]["kind"], by_name["right"]["kind"]) == ("line", "zone")
    events, counts = rows(run, "events"), rows(run, "counts")
    assert len(events) > 5
    times = [float(entry["time_s"]) for entry in events]
    assert times == sorted(times)
    totals = Counter((entry["zone"], entry["class"], entry["event"]) for entry in events)
    kinds = {"enters": "entered", "leaves": "left", "appears": "appeared", "ends": "ended"}
    person = by_name["right"]["counts"]["person"]
    for event, kind in kinds.items():
        assert totals["right", "person", event] == person[kind]
        assert sum(int(row[kind] or 0) for row in counts if row["zone"] == "right") == person[kind]
    assert person["entered"] + person["appeared"] == person["left"] + person["ended"] > 0
    assert set(by_name["right"]["counts"]) == {"person"}
    assert by_name["right"]["dwell_s"]["visits"] == person["left"] + person["ended"]
    assert {float(row["to_s"]) for row in counts} >= {1.0, 2.0}


@pytest.mark.slow
def test_python_api_gives_the_events_of_the_command(run: Path) -> None:
    options = {"engine": "ort", "precision": "fp32", "zones": str(run / "zones.yaml")}
    with Detector("street", frames=60, **options) as detector:
        results = [detections for _, detections in detector.stream(STREET)]
    scenes = [detections.scene for detections in results]
    assert all(scenes)
    ends = scenes[-1].book.finish().events
    events = [event for scene in scenes for event in scene.events] + list(ends)
    assert events
    assert [(event.zone, event.event, str(event.track)) for event in events] == [
        (row["zone"], row["event"], row["track"]) for row in rows(run, "events")
    ]
    copied = pickle.loads(pickle.dumps(results[-1]))
    assert copied == results[-1]
    assert copied.scene.events == scenes[-1].events
    assert copied.scene.book is None


@pytest.mark.slow
def test_events_use_the_track_ids_of_the_detections(run: Path) -> None:
    lines = (run / "out/street-ort-detected.jsonl").read_text().splitlines()
    detected = [json.loads(line) for line in lines]
    known = {(d["track"], d["class"]) for row in detected for d in row["detections"]}
    assert {(int(event["track"]), event["class"]) for event in rows(run, "events")} <= known


@pytest.mark.slow
def test_session_and_report_show_zones(run: Path) -> None:
    session = read_session(run / "run")
    assert "zones" in session.document.stages
    (scene,) = session.document.scenes or []
    assert len(scene.heat_s) == scene.heat_columns * scene.heat_rows
    assert sum(scene.heat_s) > 10
    (part,) = PARTS
    drawn = part.draw(session)
    assert "mid" in drawn
    assert "<svg" in drawn
    assert scene.clock == [], "the start time of street.mp4 is unknown"
    local_s = datetime(2026, 10, 25, 2, 59, 58, tzinfo=UTC).timestamp()
    dated = replace(scene, clock=[(0.0, local_s), (2.0, local_s + 2 - 3600)])
    drawn = part.draw(replace(session, document=replace(session.document, scenes=[dated])))
    clock = re.findall(r">(\d\d:\d\d:\d\d)<", drawn)
    assert clock[:3] == ["02:59:58", "02:59:59", "02:00:00"], "summer time ends"


def test_lines_are_drawn_in_frames_without_objects() -> None:
    stroke = np.array([[20, 100], [180, 100]], np.float32)
    scene = Scene((Outline((stroke,), "door: in 1, out 0", 20, 100),), (), (), None)
    detections = Detections.empty()
    detections.scene = scene
    image = np.zeros((200, 200, 3), np.uint8)
    annotate(image, detections)
    assert image[100, 170].any(), "the line is drawn"
    assert image[90:99, 25:60].any(), "its text is drawn"
    assert not image[120:].any()


@pytest.mark.slow
def test_zones_template_has_no_shapes_and_replaces_no_file(tmp_path: Path) -> None:
    for _ in range(2):
        assert detect_video("zones", STREET, cwd=tmp_path).returncode == 0
    expected = {f"street-zones{n}{end}" for n in ("", "-2") for end in (".yaml", ".html")}
    assert {path.name for path in tmp_path.iterdir()} == expected
    done = detect_video(STREET, "--zones", "street-zones.yaml", cwd=tmp_path)
    assert done.returncode == 2, "the template has no line yet"
    text = (tmp_path / "street-zones.yaml").read_text()
    head, mark, shapes = text.partition("cameras:")[0].partition("# lines:")
    (tmp_path / "street-zones-2.yaml").write_text(head + re.sub("(?m)^# ", "", mark + shapes))
    places = read_zones(str(tmp_path / "street-zones-2.yaml")).default
    assert places.size == (960, 540)
    assert {shape.is_line for shape in places.shapes} == {True, False}
    template = (tmp_path / "street-zones.yaml").read_bytes()
    for output, code in (("street-zones.yaml", 6), ("x.txt", 2), ("gone/x y.yaml", 0)):
        done = detect_video("zones", STREET, "-o", output, cwd=tmp_path)
        assert done.returncode == code
    assert "--zones 'gone/x y.yaml'" in done.stdout
    assert "--zones 'x y.yaml'\n" in (tmp_path / "gone/x y.yaml").read_text()
    assert (tmp_path / "street-zones.yaml").read_bytes() == template
    assert detect_video("zones", "gone.mp4", cwd=tmp_path).returncode == 3


CLICKS = """(() => {
  const board = document.querySelector('svg'), box = board.getBoundingClientRect();
  const click = (x, y) => board.dispatchEvent(new PointerEvent('pointerdown', {bubbles: true,
    clientX: box.left + x * box.width, clientY: box.top + y * box.height}));
  click(0.1, 0.5); click(0.9, 0.5);
  const side = document.querySelector('[aria-label="what in is called"]');
  side.value = 'entering: "now"';
  side.dispatchEvent(new Event('change'));
  const name = document.querySelector('[aria-label="name of the line"]');
  name.value = 'gate';
  name.dispatchEvent(new Event('input'));
  document.getElementById('save').click();
})()"""


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_page_saves_the_file_that_the_command_names(tmp_path: Path) -> None:
    (saved := tmp_path / "saved/street-zones.yaml").parent.mkdir()
    assert detect_video("zones", STREET, cwd=tmp_path).returncode == 0
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(tmp_path / "street-zones.html")
        browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(saved.parent))
        browser.run(CLICKS)
        wait_for(saved.exists)
        arrows = "[...document.querySelectorAll('svg text')].map((one) => one.textContent)"
        assert 'entering: "now"' in browser.run(arrows)
        assert browser.complaints == []
        assert all(not url.startswith("http") for url in browser.requests)
    finally:
        browser.close()
    (line,) = read_zones(str(saved)).default.shapes
    assert (line.name, line.sides) == ("gate", ('entering: "now"', "out"))
    assert [round(x) for x, _ in line.points] == pytest.approx([96, 864], abs=2)


@pytest.mark.slow
@pytest.mark.net
def test_template_shows_a_picture_of_the_camera_but_no_password(tmp_path: Path) -> None:
    need_rtsp()
    with rtsp({"door": Path(STREET)}, login="me:opensesame") as server:
        for _ in range(2):
            done = detect_video("zones", server.url("door", "me:opensesame"), cwd=tmp_path)
            assert done.returncode == 0, done.stderr
    assert (tmp_path / "127-0-0-1-door-zones.yaml").exists()
    written = [path.read_bytes() for path in tmp_path.iterdir()]
    assert len(written) == 4
    assert not any(b"opensesame" in data for data in (*written, done.stdout.encode()))
    (tmp_path / "cameras.yaml").write_text("cameras: {door: 0}")
    assert detect_video("zones", "cameras.yaml", cwd=tmp_path).returncode == 2


def test_arrow_of_a_line_scales_with_the_picture() -> None:
    small, large = (
        arrow_of(np.array([[0.5, 0.2], [0.5, 0.9]]) * [width, width * 9 / 16], width)
        for width in (640, 3840)
    )
    assert np.ptp(large, axis=0) == pytest.approx(6 * np.ptp(small, axis=0))
    assert np.ptp(small, axis=0)[0] >= 20  # pixels


@pytest.mark.parametrize("more", [{}, {"infer_every": 3}], ids=str)
def test_schedule_and_tracks_and_zones_use_the_same_thumbnail_of_a_frame(
    more: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zones.yaml").write_text(ZONES)
    clip = write_video(tmp_path / "clip.mp4", 9)
    thumbnails: list[int] = []
    make = cuts._thumbnail
    monkeypatch.setattr(cuts, "_thumbnail", lambda one: thumbnails.append(one.index) or make(one))
    options = {"engine": "null", "track": "bytetrack", "save": ("jsonl",), **more}
    options |= {"zones": f"{tmp_path}/zones.yaml", "output": f"{tmp_path}/"}
    config = Config().with_options({**options, "run_dir": f"{tmp_path}/run"})
    assert detect([str(clip)], config).summary.frames.written == 9
    assert sorted(thumbnails) == list(range(9))


def test_names_are_not_formulas_in_a_spreadsheet() -> None:
    row = ZoneCount(0.0, 1.0, "=gate", "=person", {"in": 1, "out": 0}, None, None, ("=a", "=b"))
    cells = CountsSink.cells("=in.mp4", row)
    assert len(cells) == len(CountsSink.columns)
    assert not any(str(cell).startswith("=") for cell in cells)
