"""--save overlay: the source's own packets, and the subtitles that draw boxes over its pictures."""

import hashlib
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from probing import probe

from detector.core import sinks
from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.run.reading import SourceReading
from detector.core.sinks.overlay import ass
from detector.core.sinks.overlay.packets import PacketCopier
from detector.core.stages.annotate import DrawnLayout, PlacedLabel, Style, annotate, lay_out
from detector.core.types import Detections
from tests.fonts import make_font, needs_libass
from tests.sources.oddities import ffmpeg

FRAMES = 50
HOSTILE = (
    r"{\pos(0,0)\fs900}",
    "a\nDialogue: 0,0:00:00.00,9:00:00.00,Boxes,,0,0,0,,boo",
    r"back\Nslash",
    "</script><script>alert(1)</script>",
    "comma, and \u202e turned \x1b[31m",
)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 128x96 pixels at 25 FPS with B-frames, sound and a key frame per second."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    ffmpeg(
        *("-f", "lavfi", "-i", "testsrc2=size=128x96:rate=25:duration=2"),
        *("-f", "lavfi", "-i", "sine=440:duration=2"),
        *("-c:v", "libx264", "-preset", "veryfast", "-bf", 3, "-g", 25, "-sc_threshold", 0),
        *("-pix_fmt", "yuv420p", "-c:a", "aac", path),
    )
    return path


def packets(path: Path, kind: str = "video") -> list[tuple[Fraction, str]]:
    with av.open(str(path)) as container:
        return [
            (packet.pts * packet.time_base, hashlib.sha256(bytes(packet)).hexdigest())
            for packet in container.demux(**{kind: 0})
            if packet.size
        ]


def events(path: Path) -> list[tuple[int, int, bytes]]:
    with av.open(str(path)) as container:
        track = next(s for s in container.streams.subtitles if s.metadata.get("title"))
        return [
            (packet.pts, packet.pts + packet.duration, bytes(packet))
            for packet in container.demux(track)
            if packet.size
        ]


def detections_of(index: int, names: tuple[str, ...] = ("person", "car")) -> Detections:
    boxes = np.array([[20, 30, 60, 80], [70 - index, 10.4321, 110.5 - index, 50]], np.float32)
    scores = np.array([0.91234567, 0.3], np.float32)
    return Detections(boxes, scores, np.array([0, 1]), names)


def save(
    source: Path,
    path: Path,
    detect: Any = detections_of,
    input: dict[str, Any] | None = None,
    **options: Any,
) -> list[str]:
    config = Config()
    config = replace(config, input=replace(config.input, **(input or {})))
    sink = sinks.open("overlay", path, **options)
    with SourceReading.of(config).open(str(source)) as frames:
        sink.open(frames.info)
        for frame in frames:
            sink.write(frame, detect(frame.index))
    assert sink.close() == path
    return sink.notes


@pytest.mark.slow
def test_packets_are_copied_unchanged(clip: Path, tmp_path: Path) -> None:
    assert save(clip, tmp_path / "x.mkv") == []
    ours, theirs = packets(tmp_path / "x.mkv"), packets(clip)
    assert len(ours) == FRAMES
    assert ours == theirs  # at 25 frames per second, times are whole milliseconds
    sound = [digest for time, digest in packets(clip, "audio") if time >= 0]
    assert [digest for _, digest in packets(tmp_path / "x.mkv", "audio")] == sound
    streams = probe(tmp_path / "x.mkv")["streams"]
    kinds = [stream["codec_type"] for stream in streams]
    assert kinds == ["video", "audio", "subtitle"]
    track = streams[2]
    assert (track["codec_name"], track["disposition"]["default"]) == ("ass", 1)


def test_subtitles_last_as_long_as_their_picture(clip: Path, tmp_path: Path) -> None:
    """Pictures without detections have no subtitles."""
    none = Detections.empty()
    save(clip, tmp_path / "x.mkv", lambda i: detections_of(i) if i % 2 else none)
    times = sorted({(begin, end) for begin, end, _ in events(tmp_path / "x.mkv")})
    assert times == [(40 * i, 40 * i + 40) for i in range(1, FRAMES, 2)]


def test_copy_begins_at_the_last_key_frame_before_the_start(clip: Path, tmp_path: Path) -> None:
    notes = save(clip, tmp_path / "x.mkv", input={"start": "1.4", "duration": "0.2"})
    assert len(notes) == 1
    assert "0.400 s before" in notes[0]
    first = [digest for time, digest in packets(clip) if time == 1]
    assert packets(tmp_path / "x.mkv")[0] == (0, first[0])
    times = {(begin, end) for begin, end, _ in events(tmp_path / "x.mkv")}
    assert sorted(times) == [(400 + 40 * i, 440 + 40 * i) for i in range(5)]
    shown = [time for time, _ in packets(tmp_path / "x.mkv")]
    assert sorted(shown)[:15] == [Fraction(i, 25) for i in range(15)]
    assert len(shown) <= 15 + 3  # plus later pictures to which the last ones refer
    begin, end = (
        packets(tmp_path / "x.mkv", "audio")[0][0],
        packets(tmp_path / "x.mkv", "audio")[-1][0],
    )
    assert 0 <= begin < Fraction(1, 20)
    assert end <= Fraction(3, 5)


def test_stride_shows_boxes_until_the_next_inferred_picture(clip: Path, tmp_path: Path) -> None:
    save(clip, tmp_path / "x.mkv", input={"stride": 5})
    assert packets(tmp_path / "x.mkv") == packets(clip)
    times = sorted({(begin, end) for begin, end, _ in events(tmp_path / "x.mkv")})
    assert times == [(200 * i, 200 * i + 200) for i in range(10)]


@pytest.mark.parametrize("name", HOSTILE)
def test_class_name_cannot_contain_ass_commands(name: str, clip: Path, tmp_path: Path) -> None:
    save(clip, tmp_path / "x.mkv", lambda i: detections_of(i, (name, "car")), input={"frames": 2})
    tags = re.compile(r"\\(pos|pbo|bord|alpha|p|fs|1c|3c|N)")
    for _, _, line in events(tmp_path / "x.mkv"):
        text = line.decode().split(",", 8)[8]
        assert "\n" not in text
        assert "\x1b" not in text
        outside = re.sub(r"\{[^{}]*\}", "", text)
        assert not set("{}") & set(outside)
        assert set(re.findall(r"\\(.)", outside)) <= {"N"}
        inside = "".join(re.findall(r"\{[^{}]*\}", text))
        assert "\\" not in tags.sub("", inside)
        assert len(re.findall(r"\\pos", text)) <= 1


@pytest.mark.slow
def test_pictures_hidden_by_an_edit_list_precede_the_boxes(clip: Path, tmp_path: Path) -> None:
    trimmed = tmp_path / "trimmed.mp4"
    ffmpeg("-ss", 0.4, "-i", clip, "-c", "copy", trimmed)
    (note,) = save(trimmed, tmp_path / "x.mkv")
    assert "0.400 s before" in note
    assert [digest for _, digest in packets(tmp_path / "x.mkv")] == [d for _, d in packets(trimmed)]
    assert min(begin for begin, _, _ in events(tmp_path / "x.mkv")) == 400


@pytest.mark.slow
def test_source_that_cannot_be_copied_is_refused_with_the_reason(
    clip: Path, tmp_path: Path
) -> None:
    raw, twice, gif = tmp_path / "raw.h264", tmp_path / "twice.ts", tmp_path / "a.gif"
    ffmpeg("-i", clip, "-an", "-c", "copy", "-bsf:v", "h264_mp4toannexb", raw)
    ffmpeg("-i", clip, "-t", 0.2, gif)
    ffmpeg("-i", clip, "-c", "copy", tmp_path / "once.ts")
    twice.write_bytes((tmp_path / "once.ts").read_bytes() * 2)
    kind = sinks.find("overlay")
    for source, why in ((raw, "have no time stamps"), (gif, "gif"), (twice, "set back")):
        with pytest.raises(UsageError, match=why):
            kind.check_source(str(source))
        with pytest.raises(UsageError, match=why):
            save(source, tmp_path / "x.mkv")
        assert not list(tmp_path.glob("x*"))
    kind.check_source(str(tmp_path / "nothing.mp4"))  # a missing file is reported when it is opened
    with pytest.raises(UsageError, match="--only-detections"):
        sinks.open("overlay", tmp_path / "x.mkv", only_detections=True)
    with pytest.raises(UsageError, match=r"\.mkv"):
        sinks.open("overlay", tmp_path / "x.mp4")


def test_aborted_overlay_can_be_played(clip: Path, tmp_path: Path) -> None:
    sink = sinks.open("overlay", tmp_path / "x.mkv")
    with SourceReading.of(Config()).open(str(clip)) as source:
        sink.open(source.info)
        for frame in source:
            if frame.index == 20:
                break
            sink.write(frame, detections_of(frame.index))
    partial = sink.abort()
    assert partial == tmp_path / "x.partial.mkv"
    assert 15 <= len({begin for begin, _, _ in events(partial)}) <= 20
    assert len(packets(partial)) >= 15


def test_suffix_mkv_selects_the_overlay_only_if_save_names_it() -> None:
    assert sinks.find_by_suffix(".mkv") is sinks.find("video")
    assert sinks.find_by_suffix(".mkv", ["jsonl"]) is sinks.find("video")
    assert sinks.find_by_suffix(".MKV", ["video", "overlay"]) is sinks.find("overlay")
    assert sinks.find_by_suffix(".mp4", ["overlay"]) is sinks.find("video")


def test_label_font_is_attached(clip: Path, tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="machine: Pillow is not installed")
    from detector.core.stages.font import Font

    data = make_font({"a": 300})
    style = Style(font=Font(data))
    save(clip, tmp_path / "x.mkv", style=style, input={"frames": 2})
    with av.open(str(tmp_path / "x.mkv")) as container:
        (font,) = (stream for stream in container.streams if stream.type == "attachment")
        assert (font.metadata["filename"], bytes(font.data)) == ("labels.ttf", data)


def render_frames(path: Path, plain: Path, number: int, folder: Path) -> tuple[Any, Any]:
    import cv2

    select = f"select=eq(n\\,{number})"
    shown, bare = folder / "shown.png", folder / "bare.png"
    ffmpeg("-i", path, "-vf", f"format=bgr24,subtitles={path},{select}", "-frames:v", 1, shown)
    ffmpeg("-i", plain, "-vf", f"format=bgr24,{select}", "-frames:v", 1, bare)
    return cv2.imread(str(shown)), cv2.imread(str(bare))


def area_of(placed: PlacedLabel) -> tuple[slice, slice]:
    x, y, label = placed.x, placed.y, placed.label
    return slice(y, y + label.height), slice(x, x + label.width)


@pytest.fixture
def grey(tmp_path: Path) -> Path:
    scene = ("-f", "lavfi", "-i", "color=gray:size=640x360:rate=25:duration=0.4")
    ffmpeg(*scene, "-c:v", "libx264", "-pix_fmt", "yuv420p", tmp_path / "grey.mp4")
    return tmp_path / "grey.mp4"


@pytest.mark.slow
@needs_libass
@pytest.mark.parametrize("line_width", [1, 2, 5])
def test_libass_draws_like_us(line_width: int, grey: Path, tmp_path: Path) -> None:
    """libass draws boxes at the same pixels as we do, and label backgrounds in the same places."""
    names = tuple(f"class {i}" for i in range(9))

    def many(index: int) -> Detections:
        """Return more than ``FEW`` objects: then boxes with ambiguous labels get a thick corner."""
        boxes = [[40 * i + index, 20 + 30 * i, 40 * i + 90, 90 + 25 * i] for i in range(9)]
        boxes += [[0, 0, 60, 15], [580, 0, 640, 60], [0, 280, 70, 360], [560, 300, 640, 360]]
        boxes += [[0, 150, 30, 220], [300, 330, 400, 360]]
        boxes += [[400, 70, 570, 250], [420, 76, 470, 130], [500, 76, 550, 130]]
        scores = np.linspace(0.9, 0.3, len(boxes), dtype=np.float32)
        classes = np.array([*(i % 9 for i in range(15)), 0, 0, 0])
        return Detections(np.array(boxes, np.float32), scores, classes, names)

    style = Style(line_width=line_width)
    save(grey, tmp_path / "x.mkv", many, style=style)
    shown, bare = render_frames(tmp_path / "x.mkv", grey, 6, tmp_path)
    ours = bare.copy()
    annotate(ours, many(6), style)
    outlines = bare.copy()
    annotate(outlines, many(6), Style(line_width=line_width, labels=False))
    drawn = (outlines != bare).any(2)
    # The fonts differ, so letters differ, but few letters are on the outlines.
    near = np.abs(shown.astype(int) - ours).max(2) <= 40
    assert near[drawn].mean() >= 0.97
    layout = lay_out(640, 360, many(6), style)
    free = ~drawn
    for placed in layout.labels:
        free[area_of(placed)] = False
    assert len(layout.corners) >= 2
    assert near[free].mean() >= 0.995  # libass rounds the ends of corners
    backgrounds = ~free & ~drawn
    assert near[backgrounds].mean() >= 0.6  # the rest are letters
    assert len(layout.labels) >= 9


@pytest.mark.slow
@needs_libass
def test_libass_keeps_text_inside_its_label(grey: Path, tmp_path: Path) -> None:
    """White letters stay inside the labels in any font: invisible drawings reserve the space."""

    def corners(index: int) -> Detections:
        boxes = [[5, 0, 100, 60], [300, 30, 380, 90], [200, 150, 280, 200], [500, 300, 639, 359]]
        return Detections(
            np.array(boxes, np.float32),
            np.full(4, 0.5, np.float32),
            np.zeros(4, np.int64),
            ("Hxg",),
        )

    style = Style(font_scale=2)
    save(grey, tmp_path / "x.mkv", corners, style=style)
    shown, _ = render_frames(tmp_path / "x.mkv", grey, 2, tmp_path)
    white = (shown > 225).all(2)
    layout = lay_out(640, 360, corners(2), style)
    inside = np.zeros_like(white)
    for placed in layout.labels:
        assert white[area_of(placed)].sum() >= 10
        inside[area_of(placed)] = True
    assert not (white & ~inside).any()


def test_many_boxes_need_few_subtitle_lines() -> None:
    """VLC drops all lines if a picture has twenty."""
    rng = np.random.default_rng(3)
    corners = rng.uniform(0, 0.8, (40, 2)) * [1280, 720]
    boxes = np.hstack([corners, corners + rng.uniform(20, 120, (40, 2))]).astype(np.float32)
    many = Detections(boxes, np.linspace(0.9, 0.3, 40, dtype=np.float32), np.arange(40) % 7, ())
    layout = lay_out(1280, 720, many, Style())
    lines = list(ass.label_texts(layout, many, ass.font_size(None)))
    assert len(layout.labels) >= 30
    assert 1 <= len(lines) <= 6
    assert ass.boxes_text(layout, 1280, 720).count("\\p1") <= 14 + 7
    assert ass.boxes_text(lay_out(64, 48, Detections.empty(), Style()), 64, 48) == ""


def test_dot_begins_at_the_corner_of_its_box():
    layout = DrawnLayout(2, [[10, 20, 90, 80]], [0], [], [], [0])
    assert ass._make_dot(layout, 0) == (10, 20, 17, 20, 17, 27, 10, 27)


def test_pts_of_sound_replaces_a_missing_dts():
    copier = PacketCopier.__new__(PacketCopier)
    copier._dts, copier._shift = {}, {1: 2}
    stream = SimpleNamespace(type="audio")
    shown = [SimpleNamespace(dts=None, pts=pts, stream=stream) for pts in (5, 9, 7)]
    assert [copier._choose_dts(packet, 1) for packet in shown] == [5, 9, 7]
