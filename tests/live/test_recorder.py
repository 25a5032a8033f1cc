"""Test the recorder's thread, its folder, leftovers of killed runs, full disks and retention."""

import io
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from detector.core.errors import OutputError
from detector.core.types import Detections
from detector.live.recording import mp4
from detector.live.recording import segments as segments_module
from detector.live.recording.names import (
    find_whole_length,
    finish_leftovers,
    free_name,
    list_recordings,
    make_time_name,
    read_name,
)
from detector.live.recording.recorder import CameraRecorder
from detector.live.recording.recording import Quality
from detector.live.recording.retention import Retention
from tests.live.record_settings import RecordSettings
from tests.live.streams import (
    HEIGHT,
    NS,
    START_S,
    WIDTH,
    camera,
    frame_at,
    make_stream,
    numbers_of,
    one_detection,
)
from tests.live.test_recording import Bench, all_numbers
from tests.live.test_rows import limit_file_size
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture
def make_recorder(tmp_path: Path, notices: list[str]) -> Callable[..., CameraRecorder]:
    """Make recorders whose clock stands at the first picture, so that no camera seems silent."""

    def make(name: str = "yard", mode: str = "annotated", **more: Any) -> CameraRecorder:
        quality, kind = more.pop("quality", Quality()), more.pop("kind", "network")
        return CameraRecorder(
            *(tmp_path, camera(name, kind), RecordSettings(mode, **more), notices.append),
            **{"quality": quality, "clock": lambda: 100 * NS},
        )

    return make


def write_frames(
    recorder: CameraRecorder, count: int, step_s: float = 0.04, detected: int = -1
) -> None:
    """Write frames one by one. ``detected``: the number of the frame with a detection."""
    for number in range(count):
        detections = one_detection() if number == detected else Detections.empty()
        recorder.write(frame_at(number, 100 + number * step_s), detections)
        wait_for(lambda: not recorder._inbox._items)


def numbers_in(folder: Path, name: str = "yard") -> list[int]:
    return all_numbers([recording.path for recording in list_recordings(folder / name / "video")])


def feed(recorder: CameraRecorder, path: Path, at_s: float = 100.0) -> None:
    with av.open(str(path)) as container:
        recorder.listener.opened(container.streams, round(at_s * NS), START_S)
        for packet in container.demux():
            at = at_s + float((packet.dts or 0) * packet.time_base)
            recorder.listener.packet(packet, round(at * NS), START_S + at - at_s)
    recorder.listener.closed()


def test_thread_writes_pictures_and_packets(
    tmp_path: Path, make_recorder: Any, notices: list[str]
) -> None:
    stream = make_stream(tmp_path / "camera.ts", sound="aac")
    copy, drawn = make_recorder("a", "copy"), make_recorder("b")
    assert not copy.wants_pictures
    assert drawn.wants_pictures
    feed(copy, stream)  # this closes the container before all of its packets are written
    write_frames(drawn, 20)
    assert copy.close(PATIENCE_S)
    assert drawn.close(PATIENCE_S)
    assert numbers_in(tmp_path, "a") == list(range(50))
    assert numbers_in(tmp_path, "b") == list(range(20))
    counts = copy.counts()
    assert (counts["files"], counts["dropped"], counts["lost"], counts["refused"]) == (1, 0, 0, 0)
    assert counts["failed"] == drawn.counts()["failed"] == 0
    assert notices == []
    assert not {"record a", "record b"} & {thread.name for thread in threading.enumerate()}


def test_slow_encoder_drops_pictures_without_blocking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_recorder: Any, notices: list[str]
) -> None:
    recorder, resume = make_recorder(), threading.Event()
    handle = recorder._recording.handle
    monkeypatch.setattr(
        recorder._recording, "handle", lambda item: (resume.wait(PATIENCE_S), handle(item))
    )
    write_frames(recorder, 1)  # this picture keeps the encoder busy
    for number in range(1, 100):
        recorder.write(frame_at(number, 100 + number / 25), Detections.empty())
    assert recorder.counts()["dropped"] == 91  # 8 are queued
    resume.set()
    assert recorder.close(PATIENCE_S)
    assert numbers_in(tmp_path) == list(range(9))
    assert len(notices) == 1
    assert "91 frames" in notices[0]


def test_video_continues_with_a_key_frame_after_a_dropped_packet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_recorder: Any
) -> None:
    stream = make_stream(tmp_path / "camera.ts", gop=10, options={"bf": "0"})
    recorder = make_recorder(mode="copy")
    put, packets = recorder._inbox.put_packet, [0]

    def full_at_23(packet: Any, now_ns: int) -> bool:
        packets[0] += 1
        return packets[0] != 24 and put(packet, now_ns)

    monkeypatch.setattr(recorder._inbox, "put_packet", full_at_23)
    feed(recorder, stream)
    recorder.close(PATIENCE_S)
    assert numbers_in(tmp_path) == [*range(23), *range(30, 50)]
    assert recorder.counts()["dropped"] == 7


def test_webcam_is_recorded_as_drawn_pictures(make_recorder: Any, notices: list[str]) -> None:
    recorder = make_recorder(mode="copy", kind="webcam")
    assert recorder.wants_pictures
    assert len(notices) == 1
    recorder.close(PATIENCE_S)


def test_thread_writes_clips_of_drawn_pictures(tmp_path: Path, make_recorder: Any) -> None:
    recorder = make_recorder(clips=True, clip_before=0.5, clip_after=0.5)
    write_frames(recorder, 60, detected=30)
    recorder.close(PATIENCE_S)
    assert numbers_in(tmp_path) == list(range(43))  # from a key frame to 0.5 s after picture 30


def test_failed_picture_does_not_affect_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_recorder: Any, notices: list[str]
) -> None:
    recorder = make_recorder()
    handle = recorder._recording.handle

    def fails_at_10(item: Any) -> None:
        if item.arrived_ns == 110 * NS:
            raise RuntimeError("something new")
        handle(item)

    monkeypatch.setattr(recorder._recording, "handle", fails_at_10)
    write_frames(recorder, 20, step_s=1.0)
    recorder.close(PATIENCE_S)
    assert numbers_in(tmp_path) == [*range(10), *range(11, 20)]
    assert recorder.counts()["failed"] == 1
    assert len(notices) == 1


def test_file_is_finished_if_the_camera_is_silent(tmp_path: Path) -> None:
    bench = Bench(tmp_path, record="annotated")
    bench.draw(range(5))
    bench.recording.check(105 * NS)
    assert bench.recording.segments.files == 0
    bench.recording.check(112 * NS)
    assert bench.recording.segments.files == 1
    bench.draw(range(5, 10), 120.0)
    assert [numbers_of(path) for path in bench.files()] == [list(range(5)), list(range(5, 10))]


# The folder


def test_folder_that_cannot_be_created_is_refused(tmp_path: Path, make_recorder: Any) -> None:
    (tmp_path / "yard").write_text("a file")
    with pytest.raises(OutputError):
        make_recorder()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("20260131T120000Z.mp4", (START_S, 1, False)),
        ("20260131T120000Z-12.partial.mp4", (START_S, 12, True)),
        ("20260131T120000Z-1.mp4", None),  # the first file has no number
        ("20260131T120000Z-02.mp4", None),
        ("20260231T120000Z.mp4", None),  # no such day
        ("20260131T120000Z.mp4.bak", None),
        ("my 20260131T120000Z.mp4", None),
        ("holiday.mp4", None),
    ],
)
def test_recording_names_are_parsed_or_ignored(
    name: str, expected: tuple[float, int, bool] | None
) -> None:
    parsed = read_name(Path(name))
    assert (parsed and (parsed.start_s, parsed.number, parsed.partial)) == expected


def test_time_outside_the_range_of_names_is_clamped() -> None:
    assert make_time_name(-1e9) == "19700101T000000Z"
    assert make_time_name(1e18) == "99991231T235959Z"
    assert make_time_name(START_S + 0.999) == "20260131T120000Z"


def cut_file(tmp_path: Path) -> bytes:
    """Return the content of a partial file as a kill after 2 s would leave it: 4 fragments."""
    bench = Bench(tmp_path / "made", record="annotated")
    bench.draw(range(50))
    current = bench.recording.segments._file.path
    assert current is not None
    content = current.read_bytes()
    bench.recording.finish()
    return content


def test_leftovers_of_a_killed_run_are_finished(tmp_path: Path) -> None:
    content = cut_file(tmp_path)
    folder = tmp_path / "video"
    folder.mkdir()
    (folder / "20260131T120000Z.partial.mp4").write_bytes(content[:-7])  # cut in the last fragment
    (folder / "20260131T120001Z.partial.mp4").write_bytes(content)
    (folder / "20260131T120001Z.mp4").write_bytes(b"already there")
    (folder / "20260131T120002Z.partial.mp4").write_bytes(content[:50])
    (folder / "mine.partial.mp4").write_bytes(b"not ours")
    (folder / "20260131T120003Z.partial.mp4").mkdir()
    notices = finish_leftovers(folder)
    assert len(notices) == 3
    assert {path.name for path in folder.iterdir()} == {
        "20260131T120000Z.mp4",
        "20260131T120001Z.mp4",
        "20260131T120001Z-2.mp4",
        "mine.partial.mp4",
        "20260131T120003Z.partial.mp4",
    }
    whole = numbers_of(folder / "20260131T120001Z-2.mp4")
    cut = numbers_of(folder / "20260131T120000Z.mp4")
    assert whole == list(range(len(whole)))
    assert 39 <= len(whole) <= 50
    assert cut == whole[: len(cut)]
    assert 8 <= len(whole) - len(cut) <= 12  # one fragment of 0.4 s


@pytest.mark.slow
def test_complete_fragments_of_a_truncated_file_play(tmp_path: Path) -> None:
    """Wherever a kill cuts a write, the part that we keep consists of complete fragments."""
    content = cut_file(tmp_path)
    ends = set()
    for cut in [*range(0, len(content), 61), len(content)]:
        path = tmp_path / "cut.mp4"
        path.write_bytes(content[:cut])
        with path.open("rb") as file:
            ends.add(find_whole_length(file))
    assert 0 in ends
    counts = []
    for end in sorted(ends - {0}):
        path.write_bytes(content[:end])
        counts.append(len(numbers_of(path)))
    assert len(counts) >= 4
    assert counts == sorted(set(counts))


def test_kill_while_finishing_a_file_loses_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To finish a file, the recorder writes the index, then turns the fragments into one body. The
    test copies the file before, during and after each write, as a kill would leave it. (The last
    write, of 8 bytes, is atomic.)"""
    bench = Bench(tmp_path / "made", record="annotated")
    bench.draw(range(25))
    left: list[bytes] = []
    write_at = mp4._write_at

    def half_first(fd: int, position: int, data: bytes) -> None:
        parts = data[:0], data[: len(data) // 2], data[:-1], data
        for part in parts if len(data) > 8 else parts[::3]:
            write_at(fd, position, part)
            left.append(os.pread(fd, 10**7, 0))

    monkeypatch.setattr(mp4, "_write_at", half_first)
    bench.recording.finish()
    assert len(left) == 6
    counts = []
    for number, content in enumerate(left):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "20260131T120000Z.partial.mp4").write_bytes(content)
        finish_leftovers(folder)
        numbers = numbers_of(folder / "20260131T120000Z.mp4")
        assert numbers == list(range(len(numbers)))
        counts.append(len(numbers))
    assert counts == [20, 25, 25, 25, 25, 25]
    assert (folder / "20260131T120000Z.mp4").read_bytes() == content, "a finished file is unchanged"


def test_removed_folder_is_created_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, record="annotated", segment=0.05)
    bench.draw(range(50))
    shutil.rmtree(bench.folder)
    bench.draw(range(50, 100), 102.0)
    files = bench.files()
    assert all_numbers(files) == list(range(75, 100))


def test_unexpected_error_in_a_recorder_is_reported_and_counted(
    make_recorder: Any, notices: list[str]
) -> None:
    recorder, drawn = make_recorder(mode="copy"), make_recorder("b")
    invalid: Any = [object()]
    recorder.listener.opened(invalid, 0, 0.0)
    recorder.listener.packet(invalid, 0, 0.0)
    recorder.listener.closed()
    drawn.write(frame_at(0, 100, image=np.zeros((0, 0, 3), np.uint8)), Detections.empty())
    recorder.close(PATIENCE_S)
    drawn.close(PATIENCE_S)
    assert recorder.counts()["failed"] == 2
    assert drawn.counts()["failed"] == 1
    assert len(notices) == 2


def box(kind: bytes, content: bytes = b"", large: bool = False) -> bytes:
    if large:
        return (1).to_bytes(4, "big") + kind + (len(content) + 16).to_bytes(8, "big") + content
    return (len(content) + 8).to_bytes(4, "big") + kind + content


BEGIN = box(b"moov", b"tracks") + box(b"moof")


@pytest.mark.parametrize(
    ("rest", "whole"),
    [
        (box(b"mdat", b"pictures"), True),
        (box(b"mdat"), True),  # 8 bytes, the minimum
        (box(b"mdat", b"pictures", large=True), True),  # with a 64-bit length
        (box(b"mdat", b"pictures")[:-1], False),
        (box(b"mdat", b"pictures", large=True)[:-1], False),
        (box(b"mdat")[:-1], False),
        (bytes(4) + b"mdat", False),
    ],
)
def test_part_that_is_kept_ends_at_the_last_complete_box(rest: bytes, whole: bool) -> None:
    assert find_whole_length(io.BytesIO(BEGIN + rest)) == (len(BEGIN + rest) if whole else 0)


def test_new_file_gets_a_name_that_no_file_has(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    (tmp_path / "a-2.partial.mp4").touch()
    (tmp_path / "a-3.ass").touch()
    assert free_name(tmp_path, "a") == "a-4"
    assert free_name(tmp_path, "b") == "b"


# Retention


@pytest.fixture
def remaining(tmp_path: Path) -> Callable[[], list[str]]:
    """Make ten hourly recordings of two cameras, 1 MB each, and files that are not ours."""
    for number in range(10):
        folder = tmp_path / ("a", "b")[number % 2] / "video"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{make_time_name(START_S + number * 3600)}.mp4"
        path.write_bytes(bytes(1_000_000))
        os.utime(path, (START_S + number * 3600 + 600,) * 2)
    partial = tmp_path / "a" / "video" / "20200101T000000Z.partial.mp4"
    partial.write_bytes(bytes(1_000_000))
    for strange in ("a/video/holiday.mp4", "a/20200101T000000Z.mp4", "20200101T000000Z.mp4"):
        (tmp_path / strange).write_bytes(bytes(1_000_000))
        os.utime(tmp_path / strange, (0, 0))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "20200101T000000Z.mp4").write_bytes(b"x")
    os.utime(elsewhere / "20200101T000000Z.mp4", (0, 0))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "video").symlink_to(elsewhere)
    (tmp_path / "a" / "video" / "20200102T000000Z.mp4").symlink_to(
        tmp_path / "20200101T000000Z.mp4"
    )
    for folder in (tmp_path / ".other" / "video", tmp_path / "a" / "audio"):  # not videos
        folder.mkdir(parents=True)
        (folder / "20200101T000000Z.mp4").write_bytes(b"x")
        os.utime(folder / "20200101T000000Z.mp4", (0, 0))
    (tmp_path / "d").symlink_to(tmp_path / ".other")
    untouched = {path for path in tmp_path.rglob("*") if path.is_file() and "2026" not in path.name}

    def names() -> list[str]:
        assert {path for path in untouched if path.exists()} == untouched
        return sorted(path.name[9:13] for path in tmp_path.rglob("2026*.mp4"))

    return names


ALL = [f"{hour}00" for hour in range(12, 22)]


def test_retention_checks_folders_every_half_minute(
    tmp_path: Path, remaining: Callable[[], list[str]]
) -> None:
    now = [START_S + 9 * 3600.0]
    retention = Retention(tmp_path, 4.5 / 24, None, utc=lambda: now[0], clock=lambda: now[0])
    retention.sweep_if_due()
    assert remaining() == ALL[5:]
    for after, left in ((29, 5), (31, 5), (600 + 1800 + 31, 6)):  # the file of 17:00 ended at 17:10
        now[0] = START_S + 9 * 3600 + after
        retention.sweep_if_due()
        assert remaining() == ALL[left:]


def test_without_limits_all_files_stay(tmp_path: Path, remaining: Callable[[], list[str]]) -> None:
    Retention(tmp_path, None, None).sweep_if_due()
    Retention(tmp_path / "absent", 1, 1).sweep()
    assert remaining() == ALL


# Steps: (error of the clock in hours, length of the run in hours, number of recordings left), or
# "again" for another run. At first, 5 of 10 are older than 4.5 hours.
YEARS = 365 * 24.0


@pytest.mark.parametrize(
    "runs",
    [
        ((0, 0, 5),),
        ((1, 0, 4),),  # an hour is within the tolerance
        ((YEARS, 0, 10), (0, 0.2, 5)),  # corrected after a while
        ((-60 * YEARS, 0, 10), (0, 0.2, 5)),
        ((YEARS, 4.4, 10), (YEARS, 0.3, 0)),  # never corrected
        ((-60 * YEARS, 4.4, 10), (-60 * YEARS, 0.3, 0)),
        ((YEARS, 2, 10), "again", (YEARS, 2, 10), (YEARS, 0.7, 0)),
        ((YEARS, 2, 10), "again", (0, 0, 3)),  # by the right clock, 7 are too old
        ((0, 0, 5), (YEARS, 1, 4), (0, 0.1, 4)),
        ((-2 * YEARS, 2, 10), "again", (-2 * YEARS, 2, 10), "again", (-2 * YEARS, 0.7, 0)),
    ],
)
def test_retention_keeps_the_right_recordings_if_the_clock_is_wrong(
    tmp_path: Path, remaining: Callable[[], list[str]], runs: Sequence[Any]
) -> None:
    true_s, wrong_s, retention = START_S + 9 * 3600.0 + 600, 0.0, None
    for step in runs:
        if step == "again":
            retention = None
            continue
        wrong_s, hours, left = step[0] * 3600, step[1], step[2]
        for _ in range(max(1, round(hours * 10))):
            true_s += 360 * (hours > 0)
            now = {"utc": lambda: true_s + wrong_s, "clock": lambda: true_s}  # noqa: B023
            retention = retention or Retention(tmp_path, 4.5 / 24, None, **now)
            retention._utc, retention._clock = now["utc"], now["clock"]
            retention.sweep()
        assert remaining() == ALL[10 - left :], step


def test_size_limit_keeps_the_newest_recording_if_the_clock_was_set_back(
    tmp_path: Path, remaining: Callable[[], list[str]]
) -> None:
    """The newest recording has the earliest time in its name. It stays, but its size counts."""
    retention = Retention(tmp_path, None, 0.0045)
    retention.sweep()
    assert remaining() == ALL[7:]  # 3 MB of both cameras, and 1 MB of the partial file
    new = tmp_path / "b" / "video" / "20250131T120000Z.partial.mp4"
    new.write_bytes(bytes(1_000_000))
    retention.sweep()
    assert remaining() == ALL[8:]
    finished = new.with_name("20250131T120000Z.mp4")
    new.rename(finished)
    (tmp_path / "b" / "video" / "20250131T120500Z.partial.mp4").write_bytes(bytes(1_000_000))
    retention.sweep()
    assert remaining() == ALL[9:]
    assert finished.exists()


def test_recording_that_cannot_be_removed_counts_as_stored(
    tmp_path: Path, remaining: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def refuse_oldest(path: Path, missing_ok: bool = False) -> None:
        if path.name[9:13] == ALL[0]:
            raise PermissionError
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse_oldest)
    Retention(tmp_path, None, 0.0045).sweep()
    assert remaining() == [ALL[0], *ALL[8:]]


@pytest.mark.slow
def test_failed_write_pauses_recording(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes writes fail half-way, as a full disk does."""
    bench = Bench(tmp_path, record="annotated", segment=0.05)
    noise = np.random.default_rng(1).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    with limit_file_size(300_000):
        bench.draw(range(60), 100.0, noise=noise)
        figures = bench.recording.segments
        assert figures.paused_ns is not None
        assert figures.lost > 0
    with limit_file_size(30_000):
        bench.draw(range(60, 250), 102.4, noise=noise)  # the retry after 5 s fails without a notice
        assert len(bench.notices) == 1
    bench.draw(range(250, 500), 110.0, noise=noise)
    figures = bench.recording.segments
    assert figures.paused_ns is None
    assert len(bench.notices) == 2
    before, *later = [recording.path for recording in list_recordings(tmp_path / "video")]
    assert len(later) == 3  # no new file within the first 5 s
    assert 200_000 < before.stat().st_size <= 300_000
    numbers = numbers_of(before)
    assert numbers == list(range(len(numbers)))
    files = bench.files()
    recorded = all_numbers(files)
    assert recorded[-1] == 499
    assert len(recorded) + bench.recording.segments.lost == 500


def test_recording_leaves_a_reserve_for_other_outputs(
    small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and events still have room when recording pauses."""
    monkeypatch.setattr(segments_module, "RESERVE_SHARE", 0.25)
    disk = small_disk(2048)
    bench = Bench(disk / "yard", record="annotated")
    (disk / "ballast").write_bytes(bytes(1_000_000))
    bench.draw(range(25))
    bench.recording.check(101 * NS)
    assert bench.recording.segments.paused_ns is None
    (disk / "more").write_bytes(bytes(600_000))
    bench.recording.check(102 * NS)
    assert bench.recording.segments.paused_ns is not None
    assert "disk full" in bench.notices[0]
    (disk / "rows").write_bytes(bytes(300_000))
    assert numbers_of(bench.files()[0])[:5] == list(range(5))


def test_recording_uses_the_requested_quality(make_recorder: Any) -> None:
    sizes = []
    for name, crf in (("good", 18), ("poor", 40)):
        recorder = make_recorder(name, quality=Quality("ultrafast", crf))
        write_frames(recorder, 20)
        recorder.close(PATIENCE_S)
        sizes.append(recorder.counts()["bytes"])
    assert sizes[0] > sizes[1]
