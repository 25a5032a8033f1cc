"""Test the boxes files (.ass) of recordings: what they contain, and when they are written."""

import errno
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from detector.core.config.levels import resolve_config
from detector.core.sinks.overlay import ass
from detector.core.stages.annotate import Style, lay_out
from detector.core.types import Detections
from detector.live.camera_outputs import CameraOutputs
from detector.live.recording import side_cars
from detector.live.recording.connection import Packet, RecordedStreams
from detector.live.recording.inbox import Closed, Inbox, Sighting
from detector.live.recording.names import finish_leftovers, make_time_name, side_car
from detector.live.recording.recorder import CameraRecorder
from detector.live.recording.recording import Quality
from detector.live.recording.retention import Retention
from detector.live.sources.base import Terms
from detector.live.sources.network import NetworkFeed
from tests.live.record_settings import RecordSettings
from tests.live.streams import (
    HEIGHT,
    NS,
    START_S,
    WIDTH,
    camera,
    frame_at,
    make_stream,
    make_stream_of_sizes,
    read_number,
)
from tests.live.test_recording import Bench
from tests.waiting import PATIENCE_S, wait_for

TIME = r"(\d):(\d\d):(\d\d)\.(\d\d)"
LINE = re.compile(rf"Dialogue: \d+,{TIME},{TIME},(Boxes|Labels),,0,0,0,,(.+)")
NAMES = tuple(f"n{number}n" for number in range(400))
QUICK = {"preset": "ultrafast"}


@pytest.fixture(autouse=True)
def no_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow more bytes of text than of video: these small videos have boxes in every picture."""
    monkeypatch.setattr(side_cars, "FREE_BYTES", 10**9)


@dataclass(frozen=True)
class Line:
    begin_s: float
    end_s: float
    style: str
    text: str


def read_lines(path: Path) -> list[Line]:
    head, events = path.read_text().split("[Events]\n")
    assert head.startswith("[Script Info]")
    lines = []
    for text in events.splitlines()[1:]:
        match = LINE.fullmatch(text)
        assert match is not None, text
        h1, m1, s1, c1, h2, m2, s2, c2 = map(int, match.groups()[:8])
        begin, end = h1 * 3600 + m1 * 60 + s1 + c1 / 100, h2 * 3600 + m2 * 60 + s2 + c2 / 100
        assert begin < end
        lines.append(Line(begin, end, match[9], match[10]))
    return lines


def shown_at(lines: list[Line], seconds: float) -> list[int]:
    labels = [line for line in lines if line.style == "Labels"]
    texts = [line.text for line in labels if line.begin_s <= seconds < line.end_s]
    return [int(number) for text in texts for number in re.findall(r"n(\d+)n", text)]


def pictures(path: Path) -> Iterator[tuple[float, int]]:
    with av.open(str(path)) as container:
        begin_s = (container.start_time or 0) / av.time_base
        for frame in container.decode(video=0):
            yield float(frame.time or 0) - begin_s, read_number(frame.to_ndarray(format="gray8"))


def one_box(number: int, box: tuple[float, ...] = (40, 20, 90, 60)) -> Detections:
    return Detections(
        np.array([box], np.float32), np.array([0.9], np.float32), np.array([number]), NAMES
    )


def size_of(path: Path) -> tuple[int, int]:
    sizes = re.findall(r"PlayRes[XY]: (\d+)", path.read_text())
    return int(sizes[0]), int(sizes[1])


def play(
    bench: Bench,
    stream: Path,
    *,
    late: int = 4,
    every: int = 1,
    at_s: float = 100.0,
    offset_ns: int = 0,
    size: tuple[int, int] = (HEIGHT, WIDTH),
    detect: Any = one_box,
    in_order: bool = True,
) -> None:
    """Play one connection. Pictures are numbered in display order, or in order of arrival if
    ``in_order`` is False. Every ``every``-th picture has a result, ``late`` packets later. The
    result's arrival time is shifted by ``offset_ns``, as if detections came from another stream."""
    with av.open(str(stream)) as container:
        bench.recording.handle(RecordedStreams(container.streams))
        packets = [packet for packet in container.demux() if packet.size]
        shown = sorted(packet.pts for packet in packets if packet.stream.type == "video")
        arrived: dict[int, int] = {}
        results: list[int] = []

        def report_results(count: int) -> None:
            while results and len(arrived) - results[0] > count:
                number = results.pop(0)
                if number in arrived:
                    arrived_ns = arrived[number] + offset_ns
                    detections = detect(number)
                    sighting = Sighting(arrived_ns, len(detections) > 0, detections, size)
                    bench.recording.handle(sighting)

        results += range(0, len(shown), every)
        at_ns = round(at_s * NS)
        for packet in packets:
            at_ns += NS // 1000  # arrival times identify packets, so they must differ
            if packet.stream.type == "video":
                number = shown.index(packet.pts) if in_order else len(arrived)
                at_ns = max(at_ns, round((at_s + len(arrived) / 25) * NS))
                arrived[number] = at_ns
            bench.recording.handle(Packet.copy(packet, at_ns, START_S + at_ns / NS - 100))
            report_results(late)
    bench.recording.handle(Closed())
    report_results(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fps", "options", "sound", "late", "every"),
    [
        (25, {"bf": "0"}, None, 4, 1),
        (30, {"bf": "0"}, None, 4, 1),  # picture times between centiseconds
        (60, {"bf": "0"}, None, 4, 1),
        (25, {"bf": "2"}, "aac", 60, 5),  # results come after the file is finished
        (25, {"bf": "0"}, "aac", 1, 1),  # results come while the file waits for sound
        (30, {"bf": "3"}, None, 4, 2),
    ],
)
def test_boxes_are_shown_with_their_picture(
    tmp_path: Path, fps: int, options: dict[str, str], sound: str | None, late: int, every: int
) -> None:
    """Every picture shows the boxes of the latest result, which may belong to the previous file."""
    stream = make_stream(
        tmp_path / "camera.ts", count=130, fps=fps, sound=sound, options={**QUICK, **options}
    )
    bench = Bench(tmp_path, Style(), segment=0.05)
    play(bench, stream, late=late, every=every)
    files = bench.files()
    assert len(files) == 2
    assert bench.notices == []
    numbers = []
    for path in files:
        lines = read_lines(side_car(path))
        assert size_of(side_car(path)) == (WIDTH, HEIGHT)
        for at_s, number in pictures(path):
            assert shown_at(lines, at_s) == [number // every * every], (path, at_s, number)
            assert shown_at(lines, round(at_s, 3)) == [number // every * every]  # also in whole ms
            numbers.append(number)
    assert numbers == list(range(130))
    assert {path.suffix for path in bench.folder.iterdir()} == {".mp4", ".ass"}


@pytest.mark.slow
@pytest.mark.parametrize("crowd", [False, True])
def test_text_stays_below_a_tenth_of_the_video(
    crowd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All boxes move. If the text gets too large, boxes are written about once a second."""
    monkeypatch.setattr(side_cars, "FREE_BYTES", 0)
    count = 20 if crowd else 1

    def walking(number: int) -> Detections:
        at = np.arange(count, dtype=np.float32)[:, None] * 3 + 4 * (number % 20)
        boxes = np.hstack([at, at, at + 40, at + 30])
        return Detections(boxes, np.full(count, 0.9, np.float32), np.zeros(count, int), NAMES)

    source = make_stream(tmp_path / "in.mkv", count=100, codec="mjpeg", size=(640, 480))
    bench = Bench(tmp_path / "out", Style())
    play(bench, source, detect=walking)
    [path] = bench.files()
    begins = sorted({line.begin_s for line in read_lines(side_car(path))})
    assert all(b - a <= 1.05 for a, b in itertools.pairwise(begins))
    assert side_car(path).stat().st_size <= 0.1 * path.stat().st_size
    assert (len(begins) < 100) == crowd


@pytest.mark.parametrize(
    ("step", "every", "lines"), [(0.0, 1, 4), (0.25, 1, 4), (4.0, 1, 100), (0.0, 20, 3)]
)
def test_boxes_are_written_once_a_second_while_nothing_moves(
    step: float, every: int, lines: int, tmp_path: Path
) -> None:
    """Boxes that move by less than their outline's width are written once a second."""

    def still(number: int) -> Detections:
        x = 40 + step * (number % 2)
        return one_box(3, (x, 20, x + 50, 60))

    bench = Bench(tmp_path / "out", Style())
    stream = make_stream(tmp_path / "in.ts", count=100, options=QUICK)
    play(bench, stream, detect=still, every=every)
    [path] = bench.files()
    boxes = [line for line in read_lines(side_car(path)) if line.style == "Boxes"]
    assert len(boxes) == lines
    assert all(a.end_s == b.begin_s for a, b in itertools.pairwise(boxes))


def test_the_first_picture_is_at_zero(tmp_path: Path) -> None:
    """Otherwise players would disagree about the boxes' times."""
    stream = make_stream(tmp_path / "camera.ts", options={**QUICK, "bf": "2"}, sound="aac")
    bench = Bench(tmp_path)
    bench.play(stream)
    (path,) = bench.files()
    with av.open(str(path)) as container:
        assert container.start_time == 0
        assert container.streams.video[0].start_time == 0
    assert next(pictures(path)) == (0, 0)


def test_boxes_of_a_silent_detector_disappear(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "camera.ts", count=100, options={**QUICK, "bf": "0"})
    bench = Bench(tmp_path, Style())
    play(bench, stream, every=60)
    (path,) = bench.files()
    lines = read_lines(side_car(path))
    with_boxes = [number for at_s, number in pictures(path) if shown_at(lines, at_s)]
    assert with_boxes == [*range(25), *range(60, 100)]  # boxes of picture 0 last 1 s


@pytest.mark.parametrize("free", [0, 10**9])
def test_an_empty_result_ends_the_boxes(
    free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boxes end even if the boxes file exceeds its share of the video's bytes."""
    monkeypatch.setattr(side_cars, "FREE_BYTES", free)
    monkeypatch.setattr(side_cars, "SHARE", 0.0)
    stream = make_stream(tmp_path / "camera.ts", count=30, options={**QUICK, "bf": "0"})
    bench = Bench(tmp_path, Style())
    play(bench, stream, detect=lambda n: one_box(n) if 10 <= n < 13 else Detections.empty(NAMES))
    (path,) = bench.files()
    lines = read_lines(side_car(path))
    assert [n for at_s, n in pictures(path) if shown_at(lines, at_s)] == [10, 11, 12]


def test_recording_without_detections_writes_no_boxes_file(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "camera.ts", options=QUICK)
    for name, bench in (
        ("empty", Bench(tmp_path / "empty", Style())),
        ("off", Bench(tmp_path / "off")),
        ("drawn", Bench(tmp_path / "drawn", Style(), record="annotated")),
    ):
        assert bench.recording.wants_boxes == (name == "empty")
        play(bench, stream, detect=lambda n: Detections.empty(NAMES))
        bench.files()
        names = [path.name for path in bench.folder.iterdir()] if bench.folder.exists() else []
        assert names == ([] if name == "drawn" else ["20260131T120000Z.mp4"])


@pytest.mark.parametrize("b_frames", ["0", "2"])
def test_boxes_are_scaled_to_another_recorded_stream(tmp_path: Path, b_frames: str) -> None:
    """The stream of ``record_url`` is larger and has its own arrival times; boxes are scaled."""
    stream = make_stream(
        tmp_path / "main.ts",
        count=50,
        size=(WIDTH * 2, HEIGHT * 3),
        options={**QUICK, "bf": b_frames},
    )
    bench = Bench(tmp_path, Style())
    play(bench, stream, offset_ns=NS // 100, in_order=False)
    (path,) = bench.files()
    lines = read_lines(side_car(path))
    assert size_of(side_car(path)) == (WIDTH * 2, HEIGHT * 3)
    # Results that arrive after a file's last picture belong to the next file.
    for at_s, number in [*pictures(path)][:-1]:
        assert shown_at(lines, at_s) == [number]
    scaled = one_box(7, (80, 60, 180, 180))
    layout = lay_out(WIDTH * 2, HEIGHT * 3, scaled, Style())
    boxes = [line.text for line in lines if line.style == "Boxes"]
    assert boxes[7] == ass.boxes_text(layout, WIDTH * 2, HEIGHT * 3)


def test_new_size_begins_a_new_boxes_file(tmp_path: Path) -> None:
    """Results for the first size still arrive while the second size is recorded."""
    bench = Bench(tmp_path, Style())
    sizes = [(WIDTH, HEIGHT), (WIDTH * 2, HEIGHT * 2)]
    both = make_stream_of_sizes(tmp_path, "libx264", sizes, 20, options=QUICK)
    with av.open(str(both)) as container:
        bench.recording.handle(RecordedStreams(container.streams))
        packets = [packet for packet in container.demux() if packet.size]
        for count, packet in enumerate([*packets, *[None] * 10]):
            if packet is not None:
                copy = Packet.copy(packet, 100 * NS + count * NS // 25, START_S)
                bench.recording.handle(copy)
            if count >= 10:
                number = count - 10
                factor = 1 + number // 20
                found = one_box(number, tuple(factor * x for x in (40, 20, 90, 60)))
                at_ns, size = 100 * NS + number * NS // 25, (HEIGHT * factor, WIDTH * factor)
                bench.recording.handle(Sighting(at_ns, True, found, size))
    files = bench.files()
    assert [size_of(side_car(path)) for path in files] == [(WIDTH, HEIGHT), (WIDTH * 2, HEIGHT * 2)]
    for number, path in enumerate(files):
        lines = read_lines(side_car(path))
        labels = [n for line in lines for n in re.findall(r"n(\d+)n", line.text)]
        # The second file shows the last box of the first file until its own first box is known.
        own = [str(n) for n in range(20 * number, 20 * number + 20)]
        assert [n for n in labels if n in own] == own


@pytest.mark.parametrize("turned", [False, True])
def test_boxes_use_the_upright_size_that_players_show(turned: bool) -> None:
    stored = (64, 96) if turned else (96, 64)
    assert side_cars._upright(stored, (64, 96)) == (96, 64)
    assert side_cars._upright(None, (64, 96)) == (96, 64)


HOSTILE = r"a{\pos(0,0)}b\Nc" + "\nDialogue: 0,0:00:00.00,9:00:00.00,Boxes,,0,0,0,,boo\r\t,\ud800"


def test_labels_are_escaped(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "camera.ts", options=QUICK)
    bench = Bench(tmp_path, Style())
    play(bench, stream, detect=lambda n: replace(one_box(0), names=(HOSTILE,)))
    (path,) = bench.files()
    lines = read_lines(side_car(path))
    assert {line.end_s - line.begin_s <= 1 for line in lines} == {True}
    labels = [line.text for line in lines if line.style == "Labels"]
    assert labels
    for text in labels:
        plain = re.sub(r"\{[^}]*\}", "", text)
        assert "a(/pos(0,0))b/Nc Dialogue: 0,0:00:00.00" in plain
        assert "\\" not in plain


# Clips


@pytest.mark.parametrize("late", [0, 60])
def test_clip_has_its_boxes(tmp_path: Path, late: int) -> None:
    """The clips overlap, so the boxes of the first clip are also in the second clip."""
    stream = make_stream(tmp_path / "camera.ts", count=200, gop=20, options={**QUICK, "bf": "0"})
    bench = Bench(tmp_path, Style(), record="none", clips=True, clip_before=3.0, clip_after=0.5)
    detected = {*range(80, 84), *range(130, 134)}
    bare = Detections.empty(NAMES)
    play(bench, stream, late=late, detect=lambda n: one_box(n) if n in detected else bare)
    files = bench.files()
    assert len(files) == 2
    with_boxes = []
    for path in files:
        lines = read_lines(side_car(path))
        numbers = [(number, shown_at(lines, at_s)) for at_s, number in pictures(path)]
        assert [shown for _, shown in numbers] == [
            [number] if number in detected else [] for number, _ in numbers
        ]
        with_boxes.append({number for number, shown in numbers if shown})
    assert with_boxes == [set(range(80, 84)), detected]


# Files


def test_every_line_is_written_immediately(tmp_path: Path) -> None:
    """A kill at any moment leaves the lines of all pictures but the last."""
    stream = make_stream(tmp_path / "camera.ts", count=40, options={**QUICK, "bf": "0"})
    bench = Bench(tmp_path, Style())
    left: list[tuple[str, list[Line]]] = []

    def record_state(number: int) -> Detections:
        cars = list(bench.folder.glob("*.ass")) if bench.folder.exists() else []
        left.extend((car.name, read_lines(car)) for car in cars)
        return one_box(number)

    play(bench, stream, detect=record_state)
    bench.files()
    assert {name for name, _ in left} == {"20260131T120000Z.partial.ass", "20260131T120000Z.ass"}
    counts = [len(lines) // 2 for _, lines in left]  # a line of boxes, and one of labels
    assert counts == list(range(counts[0], 39))
    assert counts[0] <= 12  # nothing is written before the first fragment of the video


def test_leftovers_of_a_killed_run_are_finished(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "camera.ts", count=60, options={**QUICK, "bf": "0"})
    bench = Bench(tmp_path / "made", Style())
    copied = tmp_path / "video"

    def record_state(number: int) -> Detections:
        if number == 40:
            shutil.copytree(bench.folder, copied)
        return one_box(number)

    play(bench, stream, detect=record_state)
    bench.files()
    car = copied / "20260131T120000Z.partial.ass"
    whole = car.read_bytes()
    with (copied / "20260131T120000Z.ass").open("wb") as stale:
        stale.write(b"of a video that somebody removed")
    (copied / "20260131T120000Z.mp4").write_bytes(b"already there")
    video = (copied / "20260131T120000Z.partial.mp4").read_bytes()
    car.write_bytes(whole + b"Dialogue: 0,0:00:01.6")
    # One run was killed between the two renames, another before there was a picture.
    (copied / "20260131T120010Z.mp4").write_bytes(video)
    (copied / "20260131T120010Z.partial.ass").write_bytes(whole)
    (copied / "20260131T120020Z.partial.mp4").write_bytes(video[:50])
    (copied / "20260131T120020Z.partial.ass").write_bytes(whole)
    (copied / "mine.partial.ass").write_bytes(b"not ours")
    (copied / "20260131T120010Z-2.mp4").write_bytes(video)
    (copied / "20260131T120010Z-2.ass").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"half a line")
    finish_leftovers(copied)
    times = "20260131T120000Z", "20260131T120000Z-2", "20260131T120010Z", "20260131T120010Z-2"
    left = {f"{time}.{suffix}" for time in times for suffix in ("mp4", "ass")}
    assert {path.name for path in copied.iterdir()} == {*left, "mine.partial.ass"}
    assert (copied / "20260131T120000Z-2.ass").read_bytes() == whole
    assert (copied / "20260131T120010Z.ass").read_bytes() == whole
    assert (tmp_path / "elsewhere").read_bytes() == b"half a line"
    assert len(read_lines(copied / "20260131T120010Z.ass")) == 2 * 39


def test_retention_removes_boxes_with_their_recording(tmp_path: Path) -> None:
    """The boxes file is removed with its recording, and its bytes count as the recording's."""
    folder = tmp_path / "a" / "video"
    folder.mkdir(parents=True)
    for number in range(4):
        path = folder / f"{make_time_name(START_S + number * 3600)}.mp4"
        path.write_bytes(bytes(600_000))
        side_car(path).write_bytes(bytes(400_000))
    (folder / "20260131T120000Z.txt").touch()
    (tmp_path / "other").write_bytes(bytes(10**7))
    side_car(path).unlink()
    side_car(path).symlink_to(tmp_path / "other")  # links are neither counted nor removed
    retention = Retention(tmp_path, None, 0.0021)
    retention.sweep()
    assert sorted(path.name for path in folder.iterdir()) == [
        "20260131T120000Z.txt",
        "20260131T140000Z.ass",
        "20260131T140000Z.mp4",
        "20260131T150000Z.ass",
        "20260131T150000Z.mp4",
    ]
    Retention(tmp_path, None, 0.0001).sweep()
    assert sorted(path.name for path in folder.iterdir()) == [
        "20260131T120000Z.txt",
        "20260131T150000Z.ass",
    ]


def test_full_disk_loses_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whole lines are lost. Later lines are written, and the run reports the error once."""
    stream = make_stream(tmp_path / "camera.ts", count=40, options={**QUICK, "bf": "0"})
    bench = Bench(tmp_path, Style())
    write, full = os.write, [False]

    def refuse(fd: int, data: bytes) -> int:
        if not full[0]:
            return write(fd, data)
        if len(data) > 100:
            return write(fd, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", refuse)

    def record_state(number: int) -> Detections:
        full[0] = 20 <= number < 30
        return one_box(number)

    play(bench, stream, detect=record_state)
    (path,) = bench.files()
    lines = read_lines(side_car(path))
    numbers = [int(n) for line in lines for n in re.findall(r"n(\d+)n", line.text)]
    assert numbers == [*range(19), *range(29, 40)]
    assert re.fullmatch("yard: .* boxes .*: No space .*", "\n".join(bench.notices))


def test_boxes_file_waits_for_late_detections_up_to_a_limit(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "camera.ts", options={**QUICK, "bf": "0"})
    bench = Bench(tmp_path, Style())
    bench.play(stream)
    cars = bench.recording._side_cars
    assert cars is not None
    assert len(cars._cars) == 1
    bench.recording.check(110 * NS)
    assert len(cars._cars) == 1
    bench.recording.check(113 * NS)
    assert cars._cars == []


def test_lists_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detections, pictures or the first fragment of the video may never arrive."""
    monkeypatch.setattr(side_cars, "MOST_PICTURES", 600)
    monkeypatch.setattr(side_cars, "MOST_LINES", 50)
    cars = side_cars.SideCars("yard", Style(), 0.0, lambda text: None)
    file: Any = type("File", (), {"path": None})()
    cars.begin(file, (WIDTH, HEIGHT))
    sample: Any = type("Sample", (), {"duration_ns": 0, "dts_ns": 0, "data": b""})()
    for number in range(2000):
        sample.arrived_ns = number * NS // 25
        cars.add_picture(file, sample, sample.arrived_ns)
        assert len(cars._cars[0]._arrived) <= 601
    cars.add_detections(NS // 25, one_box(1), (HEIGHT, WIDTH))  # its picture is forgotten by now
    assert cars._cars[0]._current is None
    for number in range(600):
        cars.add_detections((1400 + number) * NS // 25, one_box(number % 400), (HEIGHT, WIDTH))
    assert len(cars._recent) == 251  # 10 s of results
    assert len(cars._cars[0]._lines) == 50
    assert not cars._cars[0]._waiting
    monkeypatch.setattr(side_cars, "MOST_BYTES", 2000)
    cars.add_detections(2000 * NS // 25, one_box(0), (HEIGHT, WIDTH))
    assert len(cars._recent) == 3


def test_inbox_limits_the_bytes_of_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detector.live.recording.inbox.MOST_BYTES", 100)
    inbox = Inbox()
    for number in range(4):
        inbox.put_message(Sighting(number, True, one_box(number), (HEIGHT, WIDTH)), 0)
    taken = [inbox.take(0) for _ in range(4)]
    has_boxes = [item.detections is not None for item in taken if isinstance(item, Sighting)]
    assert has_boxes == [*[True] * 3, False]
    inbox.put_message(Sighting(9, True, one_box(9), (HEIGHT, WIDTH)), 0)
    last = inbox.take(0)
    assert isinstance(last, Sighting)
    assert last.detections is not None


@pytest.mark.parametrize(
    ("options", "needs_all", "wants_boxes"),
    [
        ({"record": "copy"}, False, True),
        ({"clips": True}, False, True),
        ({"record": "copy", "no_overlay": True}, False, False),
        ({"record": "annotated", "clips": True}, True, False),
    ],
)
def test_copied_recordings_want_boxes_and_drawn_ones_want_every_picture_decoded(
    options: dict[str, Any], needs_all: bool, wants_boxes: bool, tmp_path: Path
) -> None:
    """A copy becomes a drawn recording if the packets cannot be copied."""
    config = resolve_config(None, {"engine": "null", **options})
    feed, needs = NetworkFeed(camera(), Terms()), []
    feed.decode_all_while = needs.append  # type: ignore[method-assign]
    outputs = CameraOutputs(
        tmp_path, config.record, Quality("superfast", 23), lambda line: None, Style()
    ).make(camera(), feed)
    try:
        sink: Any = next(output.sink for output in outputs if output.name == "recording")
        recording = sink.recorder._recording
        assert ([need() for need in needs], recording.wants_boxes) == ([needs_all], wants_boxes)
        recording.use_annotated("nothing can be copied")
        assert ([need() for need in needs], recording.wants_boxes) == ([True], False)
    finally:
        for output in outputs:
            output.sink.close()


@pytest.mark.parametrize("name", ["-_-", "A" * 40])
def test_recorder_thread_writes_boxes(tmp_path: Path, name: str, notices: list[str]) -> None:
    stream = make_stream(tmp_path / "camera.ts", options={**QUICK, "bf": "0"})
    recorder = CameraRecorder(
        tmp_path,
        camera(name),
        RecordSettings(),
        notices.append,
        style=Style(),
        clock=lambda: 100 * NS,
    )
    with av.open(str(stream)) as container:
        recorder.listener.opened(container.streams, 100 * NS, START_S)
        for number, packet in enumerate(p for p in container.demux() if p.size):
            at_s = 100 + number / 25
            recorder.listener.packet(packet, round(at_s * NS), START_S + number / 25)
            recorder.write(frame_at(number, at_s, name=name), one_box(number))
            wait_for(lambda: not recorder._inbox._items)
    recorder.listener.closed()
    assert recorder.close(PATIENCE_S)
    path = tmp_path / name / "video" / "20260131T120000Z.mp4"
    lines = read_lines(side_car(path))
    for at_s, number in pictures(path):
        assert shown_at(lines, at_s) == [number]
    assert notices == []
    assert recorder.counts()["failed"] == 0
