"""Test how zones.yaml is read, and the error for each mistake in it."""

import re
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest

from detector.core.config.levels import resolve_config
from detector.core.errors import UsageError
from detector.core.run.plan import PlanDraft
from detector.core.types import Arrival, Detections, Frame, SourceInfo
from detector.tracks import zones_file
from detector.tracks.drawn import put_drawing
from detector.tracks.stages.zones import ZonesStage
from detector.tracks.zones_file import read_zones
from tests.cli.command import detect_video
from tests.conftest import CHECKOUT
from tests.tracks.test_stage import INFO

STREET = str(CHECKOUT / "videos/street.mp4")
LINE = "lines: {a: [[0, 0.5], [1, 0.5]]}\n"
SQUARE = "[[0.1, 0.1], [0.9, 0.1], [0.9, 0.9], [0.1, 0.9]]"
WRONG = {  # content of the file -> pattern of the error, which names the wrong place
    "": "mapping",
    "- 1": "mapping",
    "lines: 3": "lines",
    "lines: {}": "no lines or zones",
    "lines: {a: [[0, 0]]}": r"a\.points",
    "lines: {a: [[0, 0], [0, 0]]}": r"a\.points",
    "lines: {a: [[0, 0], [1, 1], [1, 0]]}": r"a\.points",
    "lines: {a: [[0, x], [1, 1]]}": r"a\.points",
    "lines: {a: [[0, .nan], [1, 1]]}": r"a\.points",
    "lines: {a: [[0, true], [1, 1]]}": r"a\.points",
    "lines: {a: {points: [[0, 0], [1, 1]], stays: 3}}": "stays",
    "zones: {a: [[0, 0], [1, 1]]}": r"a\.points",
    "zones: {a: [[0, 0], [1, 1], [1, 0], [0, 1]]}": "crosses itself",
    "zones: {a: [[0, 0], [1, 0], [1, 1], [0.5, 0], [0, 1]]}": "crosses itself",  # touches itself
    "zones: {a: [[0, 0], [0, 1], [1, 1], [0, 0.5], [1, 0]]}": "crosses itself",
    "zones: {a: [[0, 0], [0.5, 0.5], [1, 1]]}": r"a\.points",
    "zones: {a: [[0, 0], [1, 0], [1, 1], [0, 0]]}": r"a\.points",
    "zones: {a: [[0, 0], [1, 0], [1, 0], [0, 1]]}": r"a\.points",
    f"zones: {{a: {{points: {SQUARE}, stays: 0}}}}": r"a\.stays",
    f"zones: {{a: {{points: {SQUARE}, colour: red}}}}": "colour",
    f"zones: {{a: {{points: {SQUARE}, classes: {{}}}}}}": "classes",
    f"{LINE}zones: {{a: {SQUARE}}}": "a",
    f"{LINE}lines: {{b: [[0, 0], [1, 1]]}}": "lines",
    "lines: {a: [[0, 0.5], [1, 0.5]], a: [[0, 0], [1, 1]]}": "a",
    f"{LINE}point: top": "point",
    f"{LINE}every: 0.1": "every",
    f"{LINE}every: never": "every",
    f"{LINE}margin: 2": "margin",
    f"{LINE}size: [0, 3]": "size",
    f"{LINE}sizes: [1, 3]": "size",
    f"{LINE}cameras: 3": "cameras",
    f"{LINE}clips: {{x: {{lines: {{b: [[0, 0]]}}}}}}": r"clips\.x.*b\.points",
    "size: [100, 100]\nlines: {a: [[0, 50], [101, 50]]}": "outside",
    'lines: {"": [[0, 0], [1, 1]]}': "name",
    "lines: {a: {points: [[0, 0], [1, 1]], in: left, out: left}}": "left",
    "lines: {a: {points: [[0, 0], [1, 1]], out: off}}": r"a\.out: YAML reads the name as 'False'",
    "lines: {no: [[0, 0], [1, 1]]}": "lines: YAML reads the name as 'False'",
    "lines: [": ":1",
    "lines: {a: [[0, 0], [1, 1]]": ":",
}


@pytest.mark.parametrize("text", WRONG)
def test_invalid_zones_file_is_refused_with_its_path(text: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(UsageError, match=WRONG[text]) as caught:
        PlanDraft.of(resolve_config(None, {"zones": file}))
    assert file in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x" * (2 << 20), None])
def test_unreadable_or_missing_file_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "zones.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=r"zones\.yaml"):
        PlanDraft.of(resolve_config(None, {"zones": str(file)}))


def write(folder: Path, text: str) -> str:
    (folder / "zones.yaml").write_text(text)
    return str(folder / "zones.yaml")


def test_sections_inherit_from_the_top_level(tmp_path: Path) -> None:
    text = (
        "size: [640, 360]\nevery: 5m\nclasses: [person]\nlines: {a: [[0, 0], [640, 360]]}\n"
        "cameras: {front: {zones: {yard: [[0, 0], [9, 9], [4, 8], [1, 6]]}, every: 10}}\n"
        'clips: {"in*.mp4": {point: centre}}\n'
    )
    file = read_zones(write(tmp_path, text))
    front, other = file.of_camera("front"), file.of_camera("back")
    assert ([shape.name for shape in front.shapes], front.every_s) == (["yard"], 10)
    assert front.size == (640, 360)
    assert front.shapes[0].classes == ("person",)
    assert ([shape.name for shape in other.shapes], other.every_s) == (["a"], 300)
    assert file.of_clip("/x/in-7.mp4").point == "centre"
    assert [shape.name for shape in file.of_clip("/x/in-7.mp4").shapes] == ["a"]
    assert file.of_clip("out.mp4").point == "bottom"


def test_coordinates_up_to_1_are_shares_and_larger_ones_are_pixels(tmp_path: Path) -> None:
    assert read_zones(write(tmp_path, LINE)).default.size == (1, 1)
    assert read_zones(write(tmp_path, "lines: {a: [[0, 0], [1, 2]]}")).default.size is None


def stage(folder: Path, text: str, info: SourceInfo = INFO, **options: object) -> ZonesStage:
    config = resolve_config(None, {"zones": write(folder, text), **options})
    settings = ZonesStage.settings(config.as_dict())
    assert settings is not None
    ZonesStage.check(settings, ("person", "vehicle"))
    return ZonesStage(settings, info, ("person", "vehicle"), config.selection.conf)


def test_zones_are_checked_against_source_and_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="outside"):
        stage(tmp_path, "lines: {a: [[0, 50], [641, 50]]}")
    with pytest.raises(UsageError, match="persn"):
        stage(tmp_path, f"{LINE}classes: [persn]")
    with pytest.raises(UsageError, match="--classes"):
        stage(tmp_path, f"{LINE}classes: [person]", classes=("vehicle",))
    with pytest.raises(UsageError, match="clips"):
        stage(tmp_path, "clips: {other.mp4: {lines: {a: [[0, 0], [1, 1]]}}}")
    with pytest.raises(UsageError, match="made for pictures of 360x640"):
        stage(tmp_path, "size: [360, 640]\nlines: {a: [[0, 50], [300, 50]]}")
    with pytest.raises(UsageError, match="size"):
        stage(tmp_path, "lines: {a: [[0, 50], [600, 50]]}", replace(INFO, kind="live"))


def test_events_and_counts_need_zones() -> None:
    for name in ("events", "counts"):
        with pytest.raises(UsageError, match="--zones"):
            PlanDraft.of(resolve_config(None, {"save": (name,)}))


@pytest.mark.slow
def test_command_reports_an_error_in_one_line_and_writes_nothing(tmp_path: Path) -> None:
    for text in ("zones: {a: [[0, 0], [1, 1]]}", f"{LINE}classes: [persn]"):
        done = detect_video(STREET, "--zones", write(tmp_path, text), cwd=tmp_path)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["zones.yaml"]
    done = detect_video(STREET, "--zones", "zones.yaml", "-o", "zones.yaml", cwd=tmp_path)
    assert done.returncode == 2, "an input cannot be the output"


def test_inherited_polygon_is_checked_once(tmp_path, monkeypatch):
    pairs = []
    monkeypatch.setattr(zones_file, "_meet", lambda *edges: pairs.append(edges))
    points = [[0.1, 0.3], [0.3, 0.1], [0.7, 0.1], [0.9, 0.3], [0.7, 0.9], [0.3, 0.9]]
    clips = "".join(f"  c{n}.mp4: {{margin: 0.1}}\n" for n in range(50))
    path = write(tmp_path, f"zones: {{a: {points}}}\nclips:\n{clips}")
    assert len(read_zones(path).clips) == 50
    assert 0 < len(pairs) < len(points) ** 2


def test_start_of_a_clip_is_read_from_its_name(tmp_path: Path) -> None:
    ours = read_zones(write(tmp_path, LINE)).default
    assert ours.start_of("front/video/20260131T235959Z.mp4") == 1769903999
    assert ours.start_of("door.mp4") is None
    theirs = read_zones(write(tmp_path, f"start: door-%Y%m%d-%H%M%S%z.mp4\n{LINE}")).default
    assert theirs.start_of("door-20260131-235959+0000.mp4") == 1769903999
    with pytest.raises(UsageError):
        theirs.start_of("other.mp4")


def test_start_of_a_clip_may_be_a_date_and_time(tmp_path: Path, local_time) -> None:
    local_time("Europe/Berlin")
    template = f'{LINE}clips: {{"road.mp4": {{start: "AT"}}}}'
    for at in ("2026-11-27 07:00", "2026-11-27T06:00:00Z", "2026-11-27 08:00+02:00"):
        clip = read_zones(write(tmp_path, template.replace("AT", at))).of_clip("x/road.mp4")
        assert clip.start_of("x/road.mp4") == 1795759200
    for wrong in ("07:00", "road.mp4", "0001-01-01", "2026-10-25 02:30"):  # the last is ambiguous
        with pytest.raises(UsageError, match=r"road\.mp4: start"):
            read_zones(write(tmp_path, template.replace("AT", wrong)))


OURS = """\
# of the gate
every: 5   # seconds
lines: {gate: {points: [[0.5, 0], [0.5, 1]], classes: [person], in: left}}
zones: {yard: {points: [[0, 0], [1, 0], [1, 1]], stays: 9}}"""
DRAWN = """\
size: [960, 540]
lines: {gate: {points: [[480, 0], [480, 540]], out: right}, "=mid": {points: [[9, 9], [9, 99]]}}
"""


def test_drawing_keeps_settings_that_were_not_drawn(tmp_path: Path) -> None:
    path = write(tmp_path, OURS)
    zones, text, summary = put_drawing(path, "front", DRAWN)
    assert (text[: len(OURS)], summary) == (OURS, "=mid added, yard removed")
    front = zones.of_camera("front")
    assert (front.every_s, front.shapes[0].classes) == (5, ("person",))
    assert front.shapes[0].sides == ("in", "right"), "the drawing removed the name of the side 'in'"
    write(tmp_path, text)
    zones, text, summary = put_drawing(path, "back", "zones: {yard: [[0, 0], [0, 1], [1, 1]]}")
    assert (text[: len(OURS)], summary) == (OURS, "yard changed, gate removed")
    assert zones.of_camera("front") == front
    write(tmp_path, f"cameras: {{front: {{lines: {{a: [[0, 0], [1, 1]]}}}}}}\n{OURS}")
    zones, _, summary = put_drawing(path, "front", DRAWN)
    assert (summary, zones.default.every_s) == ("gate added, =mid added, a removed", 5)


SHAPES = [text for text in WRONG if text.startswith("zones: {a: [[")]
SHAPES += ["lines: {a: [[0, 0]]}", f"{LINE}zones: {{a: {SQUARE}}}"]


@pytest.mark.parametrize("drawing", SHAPES)
def test_invalid_drawing_raises_the_same_error_as_in_a_file(drawing: str, tmp_path: Path) -> None:
    path = str(tmp_path / "zones.yaml")
    with pytest.raises(UsageError) as error:
        read_zones(path, f"cameras:\n  front:\n{indent(drawing, '    ')}")
    cases = {"lines: {a: 1, a: 2}": "duplicate key 'a'", "every: 9": "unknown key 'every'"}
    for text, message in {**cases, drawing: str(error.value)}.items():
        with pytest.raises(UsageError, match=re.escape(message)):
            put_drawing(path, "front", text)


def test_camera_without_lines_takes_drawn_lines(tmp_path: Path) -> None:
    counting = stage(tmp_path, f"cameras: {{back: {{{LINE.strip()}}}}}", replace(INFO, kind="live"))
    detections = replace(Detections.empty(), track_ids=np.zeros(0, np.int64))
    frame = Frame(0, 0, 0.0, np.zeros((9, 9, 3), np.uint8), arrival=Arrival("front", 1, 0, 0.0))
    assert counting(frame, detections).scene is None
    options = resolve_config(None, {"zones": str(tmp_path / "zones.yaml")}).as_dict()
    counting.change("front", ZonesStage.redraw(options, "front", LINE)[0])
    assert [shape.name for shape in counting(frame, detections).scene.book.shapes()] == ["a"]
