"""Test that recordings contain the right pictures. Each picture has a number. No thread runs."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from detector.core.stages.annotate import Style
from detector.live.recording import mp4
from detector.live.recording.clips import Clips
from detector.live.recording.connection import Packet, RecordedStreams
from detector.live.recording.encoder import to_yuv
from detector.live.recording.inbox import Closed, Drawn, Sighting
from detector.live.recording.names import list_recordings
from detector.live.recording.recording import Quality, Recording
from detector.live.recording.samples import Sample
from detector.live.recording.sound import AacSound
from tests.live.record_settings import RecordSettings
from tests.live.streams import (
    HEIGHT,
    NS,
    START_S,
    WIDTH,
    draw_picture,
    make_stream,
    make_stream_of_sizes,
    numbers_of,
)


class Bench:
    def __init__(self, folder: Path, style: Style | None = None, **settings: Any) -> None:
        self.notices: list[str] = []
        self.folder = folder / "video"
        self.recording = Recording(
            folder,
            "yard",
            RecordSettings(**settings),
            Quality("ultrafast", 23),
            self.notices.append,
            style,
        )

    def play(
        self, path: Path, at_s: float = 100.0, *, change: Any = None, utc_jump: float = 0.0
    ) -> float:
        """Play all packets of a file as one connection. Return the time at which it ended, in s."""
        with av.open(str(path)) as container:
            self.recording.handle(RecordedStreams(container.streams))
            end = at_s
            for number, packet in enumerate(container.demux()):
                if not packet.size:
                    continue
                stamp = packet.dts if packet.dts is not None else packet.pts
                if stamp is not None:
                    end = max(end, at_s + float(stamp * packet.time_base))
                utc = START_S + end - at_s + (utc_jump if end > at_s + 1 else 0.0)
                copy = Packet.copy(packet, round(end * NS), utc)
                if change is not None:
                    change(number, copy)
                self.recording.handle(copy)
        self.recording.handle(Closed())
        return end

    def draw(self, numbers: range, at_s: float = 100.0, fps: int = 25, **options: Any) -> None:
        """Record numbered pictures. ``options``: their size, epoch, and noise below the number."""
        size, noise = options.get("size", (WIDTH, HEIGHT)), options.get("noise")
        for place, number in enumerate(numbers):
            at, image = at_s + place / fps, draw_picture(number, *size)
            if noise is not None:
                image[HEIGHT // 2 :] = np.roll(noise, number * 37, 1)[HEIGHT // 2 :]
            self.recording.handle(
                Drawn(
                    yuv=to_yuv(image),
                    size=(size[1], size[0]),
                    arrived_ns=round(at * NS),
                    utc_s=START_S + at - 100.0,
                    epoch=options.get("epoch", 1),
                    aspect_ratio=Fraction(1),
                )
            )

    def files(self) -> list[Path]:
        self.recording.finish()
        recordings = list_recordings(self.folder)
        assert not any(recording.partial for recording in recordings)
        return [recording.path for recording in recordings]


def all_numbers(paths: list[Path]) -> list[int]:
    return [number for path in paths for number in numbers_of(path)]


def packets_of(path: Path, kind: str) -> list[tuple[bytes, float]]:
    with av.open(str(path)) as container:
        stream = next(stream for stream in container.streams if stream.type == kind)
        return [
            (bytes(packet), float((packet.pts or 0) * packet.time_base))
            for packet in container.demux(stream)
            if packet.size
        ]


@pytest.mark.slow
def test_drawn_pictures_are_cut_into_segments(tmp_path: Path) -> None:
    bench = Bench(tmp_path, record="annotated", segment=0.05)
    bench.draw(range(200))
    files = bench.files()
    assert [path.name for path in files] == [
        "20260131T120000Z.mp4",
        "20260131T120003Z.mp4",
        "20260131T120006Z.mp4",
    ]
    assert [len(numbers_of(path)) for path in files] == [75, 75, 50]
    assert all_numbers(files) == list(range(200))
    assert bench.notices == []


def test_drawn_pictures_keep_their_arrival_times(tmp_path: Path) -> None:
    bench = Bench(tmp_path, record="annotated")
    for number, at in enumerate((100.0, 100.04, 101.5, 101.52, 104.0)):
        bench.draw(range(number, number + 1), at)
    bench.recording._write(Sample(1, b"", 104 * NS, 104 * NS, 0, False, 104 * NS, 0.0))  # ignored
    times = [at for _, at in packets_of(bench.files()[0], "video")]
    assert times == pytest.approx([0, 0.04, 1.5, 1.52, 4.0], abs=1e-4)


@pytest.mark.parametrize("why", ["size", "epoch"])
def test_new_size_or_connection_begins_a_new_file(tmp_path: Path, why: str) -> None:
    bench = Bench(tmp_path, record="annotated")
    bench.draw(range(30))
    bench.draw(range(30, 50), 102.0, **{why: (WIDTH + 2, 97) if why == "size" else 2})
    files = bench.files()
    assert [numbers_of(path) for path in files] == [list(range(30)), list(range(30, 50))]
    with av.open(str(files[1])) as container:
        size = (container.streams.video[0].width, container.streams.video[0].height)
    assert size == ((WIDTH + 2, 98) if why == "size" else (WIDTH, HEIGHT))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "codec", "sound", "options"),
    [
        (".ts", "libx264", "aac", {"bf": "2"}),  # Annex B, ADTS, stamps that do not start at 0
        (".mp4", "libx264", None, {"bf": "0"}),  # lengths instead of start codes
        (".nut", "mjpeg", "pcm_alaw", {}),  # MP4 does not support A-law
        (".ts", "libx265", None, {"x265-params": "log-level=0"}),
        (".mkv", "libx264", "libopus", {}),
    ],
)
def test_packets_are_copied_unchanged(
    tmp_path: Path, suffix: str, codec: str, sound: str | None, options: dict[str, str]
) -> None:
    stream = make_stream(
        tmp_path / f"camera{suffix}", codec=codec, sound=sound, options=options, count=75
    )
    bench = Bench(tmp_path, segment=0.05)
    bench.play(stream)
    bench.play(stream, 110.0)
    files = bench.files()
    assert bench.notices == []
    assert all_numbers(files) == [*range(75), *range(75)]
    before, after = packets_of(stream, "video"), packets_of(files[0], "video")
    assert [at - after[0][1] for _, at in after] == pytest.approx(
        [at - before[0][1] for _, at in before], abs=0.0011
    )
    if suffix != ".ts":  # MPEG-TS has start codes where the recording has lengths
        assert [data for data, _ in after] == [data for data, _ in before]
    if sound is None:
        return
    sent, copied = packets_of(stream, "audio"), packets_of(files[0], "audio")
    if sound == "libopus":
        assert [data for data, _ in copied] == [data for data, _ in sent][-len(copied) :]
    elif sound == "aac":  # without ADTS headers
        assert [data for data, _ in copied] == [data[7:] for data, _ in sent][-len(copied) :]
    else:
        assert copied[-1][1] - copied[0][1] == pytest.approx(3.0, abs=0.3)
        with av.open(str(files[0])) as container:
            assert container.streams.audio[0].codec_context.name == "aac"
            loudest = max(abs(f.to_ndarray()).max() for f in container.decode(audio=0))
        assert 0.2 < loudest < 0.4  # the amplitude is 9000 of 32768
    if sound != "pcm_alaw":
        assert len(sent) - len(copied) <= 2  # packets before the first picture are dropped
    # The offset between sound and picture is the same as in the stream.
    apart = sent[0][1] - before[0][1]
    assert copied[0][1] - after[0][1] == pytest.approx(apart, abs=0.07)


@pytest.mark.slow
@pytest.mark.parametrize("late_s", [0.0, 0.2])
def test_no_sound_is_lost_at_a_cut(tmp_path: Path, late_s: float) -> None:
    """``late_s``: how much later sound arrives than its picture, in seconds."""
    stream = make_stream(tmp_path / "camera.ts", sound="aac", count=200)
    bench = Bench(tmp_path, segment=0.05)
    with av.open(str(stream)) as container:
        bench.recording.handle(RecordedStreams(container.streams))

        def arrives_s(packet: Any) -> float:
            late = late_s if packet.stream.type == "audio" else 0.0
            return float(packet.dts * packet.time_base) + late

        for packet in sorted((one for one in container.demux() if one.size), key=arrives_s):
            at = arrives_s(packet)
            bench.recording.handle(Packet.copy(packet, round((100 + at) * NS), START_S + at))
    bench.recording.handle(Closed())
    files = bench.files()
    assert len(files) == 3
    recorded = [data for path in files for data, _ in packets_of(path, "audio")]
    sent = [data[7:] for data, _ in packets_of(stream, "audio")]
    assert recorded == sent[len(sent) - len(recorded) :]
    assert len(sent) - len(recorded) <= 3  # packets before the first picture are dropped


def sizes_of(path: Path) -> list[tuple[int, int]]:
    with av.open(str(path)) as container:
        return [(frame.width, frame.height) for frame in container.decode(video=0)]


def test_drawn_pictures_of_alternating_sizes_share_files(tmp_path: Path) -> None:
    bench = Bench(tmp_path, record="annotated")
    for number in range(240):  # 24 s, ten a second
        size = (WIDTH, HEIGHT) if number % 2 else (WIDTH * 2, HEIGHT * 2)
        bench.draw(range(number, number + 1), 100 + number / 10, size=size)
    files = [sizes_of(path) for path in bench.files()]
    assert sum(map(len, files)) == 240, "no picture is lost"
    assert [len(file) for file in files] == [1, 101, 101, 37]
    assert [len(set(file)) for file in files] == [1, 1, 1, 1]
    assert len(bench.notices) == 1


@pytest.mark.parametrize("codec", ["libx264", "mjpeg"])
def test_copy_of_alternating_sizes_has_all_pictures(tmp_path: Path, codec: str) -> None:
    """In MJPEG, each picture states its size. In H.264, the size is in separate parameter sets."""
    sizes = [(WIDTH * 2, HEIGHT * 2), (WIDTH, HEIGHT)] * 6
    both = make_stream_of_sizes(tmp_path, codec, sizes, 5)
    bench = Bench(tmp_path)
    bench.play(both)
    files = [sizes_of(path) for path in bench.files()]
    assert len(files) <= 3
    wide = [size[0] == WIDTH * 2 for file in files for size in file]
    assert wide == [number // 5 % 2 == 0 for number in range(60)]


@pytest.mark.parametrize("codec", ["libx264", "mjpeg"])
def test_copy_begins_a_new_file_at_a_new_size(tmp_path: Path, codec: str) -> None:
    both = make_stream_of_sizes(tmp_path, codec, [(WIDTH, HEIGHT), (WIDTH * 2, HEIGHT * 2)], 20)
    bench = Bench(tmp_path)
    bench.play(both)
    files = bench.files()
    sizes = [set(sizes_of(path)) for path in files]
    assert sizes == [{(WIDTH, HEIGHT)}, {(WIDTH * 2, HEIGHT * 2)}]
    assert all_numbers(files) == list(range(40))


@pytest.mark.slow
def test_clock_jump_changes_only_the_file_names(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "camera.ts", count=200)
    bench = Bench(tmp_path, segment=0.05)
    bench.play(stream, utc_jump=-3.0)  # the second file begins at the first one's time
    files = bench.files()
    assert [path.name for path in files] == [
        "20260131T120000Z.mp4",
        "20260131T120000Z-2.mp4",
        "20260131T120003Z.mp4",
    ]
    assert all_numbers(files) == list(range(200))


def first_without_stamps(number: int, packet: Packet) -> None:
    if number == 0:
        packet.pts = packet.dts = None


def clock_set(by_s: int) -> Callable[[int, Packet], None]:
    """Return a change that adds ``by_s`` seconds to the time stamps after the first second."""

    def change(number: int, packet: Packet) -> None:
        if number >= 25 and packet.dts is not None and packet.pts is not None:
            packet.dts, packet.pts = packet.dts + by_s * 90_000, packet.pts + by_s * 90_000

    return change


def frozen(number: int, packet: Packet) -> None:
    if 20 <= number < 25:
        packet.dts = packet.pts = 19 * 3600


def no_dts(number: int, packet: Packet) -> None:
    packet.dts = None


@pytest.mark.parametrize(
    "change",
    [first_without_stamps, clock_set(-60), clock_set(3600), frozen, no_dts],
    ids=["none at first", "back by a minute", "ahead by an hour", "frozen for 0.2 s", "no dts"],
)
def test_wrong_time_stamps_are_corrected(tmp_path: Path, change: Any) -> None:
    stream = make_stream(tmp_path / "camera.ts", options={"bf": "0"})
    bench = Bench(tmp_path)
    bench.play(stream, change=change)
    files = bench.files()
    assert all_numbers(files) == list(range(50))
    times = [at for _, at in packets_of(files[0], "video")]
    assert all(a < b for a, b in pairwise(times))
    assert 1.9 <= times[-1] - times[0] <= 2.0


def test_missing_first_stamps_of_rtsp_are_filled_in(tmp_path: Path) -> None:
    """For RTSP, FFmpeg gives the first packet no pts, and the first few packets no dts."""

    def as_rtsp(number: int, packet: Packet) -> None:
        if number == 0:
            packet.pts = None
        if number < 3:
            packet.dts = None

    stream = make_stream(tmp_path / "camera.ts", options={"bf": "2"})
    bench = Bench(tmp_path)
    bench.play(stream, change=as_rtsp)
    (path,) = bench.files()
    assert numbers_of(path) == list(range(50))
    before, after = packets_of(stream, "video"), packets_of(path, "video")
    assert [at - after[0][1] for _, at in after] == pytest.approx(
        [at - before[0][1] for _, at in before], abs=1e-4
    )


@pytest.mark.parametrize("tenths", [1, 10_000])
def test_mjpeg_pictures_are_shown_at_their_arrival_times(tmp_path: Path, tenths: int) -> None:
    """MJPEG over HTTP has no time stamps: FFmpeg assumes 25 FPS, but this camera is slower."""
    stream = make_stream(tmp_path / "camera.mjpeg", codec="mjpeg", count=20)

    def arrive(number: int, packet: Packet) -> None:
        packet.arrived_ns = 100 * NS + number * tenths * NS // 10

    bench = Bench(tmp_path, segment=1e6)
    bench.play(stream, change=arrive)
    (path,) = bench.files()
    times = [at for _, at in packets_of(path, "video")]
    assert times == pytest.approx([number * tenths / 10 for number in range(20)], abs=1e-3, rel=0)


def test_codec_unknown_to_mp4_leads_to_drawn_pictures(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "camera.webm", codec="libvpx", count=5)
    bench = Bench(tmp_path)
    bench.play(stream)
    assert bench.recording.mode == "annotated"
    assert len(bench.notices) == 2
    bench.draw(range(5))
    assert all_numbers(bench.files()) == list(range(5))


@pytest.mark.slow
@pytest.mark.parametrize("heap_s", [0.0, 0.5])
def test_drawn_pictures_have_the_cameras_sound(tmp_path: Path, heap_s: float) -> None:
    """Packets of the first ``heap_s`` seconds arrive together, as if a server sent its buffer."""
    stream = make_stream(tmp_path / "camera.ts", sound="aac", count=100, options={"bf": "0"})
    bench = Bench(tmp_path, record="annotated")
    with av.open(str(stream)) as container:
        bench.recording.handle(RecordedStreams(container.streams))
        packets = [packet for packet in container.demux() if packet.size]
        start_s = min(float(packet.dts * packet.time_base) for packet in packets)
        number = 0
        for packet in packets:
            at = 100.0 + max(heap_s, float(packet.dts * packet.time_base) - start_s)
            copy = Packet.copy(packet, round(at * NS), START_S)
            if packet.stream.type == "video":
                bench.draw(range(number, number + 1), at)
                number += 1
            else:
                bench.recording.handle(copy)
    (path,) = bench.files()
    assert len(numbers_of(path)) == 100
    sound = packets_of(path, "audio")
    sent = [data[7:] for data, _ in packets_of(stream, "audio")]
    assert [data for data, _ in sound] == sent[len(sent) - len(sound) :]
    # Sound begins a second late; from then on it keeps its arrival times.
    assert sound[0][1] == pytest.approx(1.0, abs=0.1)
    missing_s = (len(sent) - len(sound)) * 1024 / 48000
    assert missing_s == pytest.approx(heap_s + 1.0, abs=0.1)


def test_sound_with_repeated_time_stamps_is_dropped(tmp_path: Path) -> None:
    """After the camera's clock is set back, sound up to the last written time is dropped."""
    stream = make_stream(tmp_path / "camera.nut", codec="mjpeg", sound="pcm_alaw", count=50)
    with av.open(str(stream)) as container:
        (source,) = container.streams.audio
        sound = AacSound(source)
        assert sound.track.template.layout.name == "mono"
        packets = [packet for packet in container.demux(source) if packet.size]
        length_ns = round(NS * packets[0].duration * packets[0].time_base)

        def convert(number: int, at_ns: int) -> int:
            data = bytes(packets[number])
            sample = Sample(
                track=1, data=data, dts_ns=at_ns, pts_ns=at_ns, duration_ns=length_ns,
                key=True, arrived_ns=at_ns, utc_s=0.0,
            )  # fmt: skip
            return len(sound.convert(sample))

        half = len(packets) // 2
        assert sum(convert(number, number * length_ns) for number in range(half)) > 0
        repeated_ns = half * length_ns - NS // 2
        assert [convert(half + i, repeated_ns + i * length_ns) for i in range(5)] == [0] * 5
        assert sum(convert(number, number * length_ns) for number in range(half, half + 9)) > 0


# Clips


def clips_bench(tmp_path: Path, mode: str, **more: Any) -> Bench:
    return Bench(tmp_path, record=mode, clips=True, clip_before=1.0, clip_after=1.5, **more)


def run_with_detections(
    bench: Bench, stream: Path, detected: set[int], late: int, mode: str = "copy"
) -> None:
    count = 0
    with av.open(str(stream)) as container:
        if mode == "copy":
            bench.recording.handle(RecordedStreams(container.streams))
        for packet in container.demux(video=0):
            if not packet.size:
                continue
            at = 100.0 + count / 25
            if mode == "copy":
                copy = Packet.copy(packet, round(at * NS), START_S + count / 25)
                bench.recording.handle(copy)
            else:
                bench.draw(range(count, count + 1), at)
            if count >= late:
                seen_s = 100.0 + (count - late) / 25
                bench.recording.handle(Sighting(round(seen_s * NS), count - late in detected))
            count += 1


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 60])
def test_clip_has_the_requested_seconds(tmp_path: Path, late: int) -> None:
    stream = make_stream(tmp_path / "camera.ts", count=400, gop=20, options={"bf": "0"})
    bench = clips_bench(tmp_path, "copy")
    # Detection 130 extends the clip of detection 110. Clips begin at key frames, 20 pictures apart.
    run_with_detections(bench, stream, {110, 130, 300}, late)
    files = bench.files()
    first, last = 110 - 25, 130 + 37  # 1 s before, 1.5 s after
    second = (300 - 25, 300 + 37)
    assert [numbers_of(path) for path in files] == [
        list(range(first // 20 * 20, last + 1)),
        list(range(second[0] // 20 * 20, second[1] + 1)),
    ]
    assert [path.name for path in files] == ["20260131T120003Z.mp4", "20260131T120010Z.mp4"]


@pytest.mark.slow
def test_clip_of_drawn_pictures_begins_at_a_key_frame(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "camera.ts", count=200, options={"bf": "0"})
    bench = clips_bench(tmp_path, "annotated")
    run_with_detections(bench, stream, {110}, 10, "annotated")
    (path,) = bench.files()
    numbers = numbers_of(path)
    assert numbers == list(range(numbers[0], 110 + 38))
    assert 110 - 25 - 50 <= numbers[0] <= 110 - 25  # key frames are 2 s apart


def test_run_without_detections_writes_no_clip(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "camera.ts", count=50)
    bench = clips_bench(tmp_path, "none")  # --clips without --record copies packets
    assert bench.recording.mode == "copy"
    run_with_detections(bench, stream, set(), 0)
    assert bench.files() == []


@pytest.mark.slow
def test_silent_detector_keeps_no_clip_open(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "camera.ts", count=500)
    bench = clips_bench(tmp_path, "copy")
    run_with_detections(bench, stream, set(), 10_000)
    bench.recording.handle(Sighting(119 * NS, True))
    with av.open(str(stream)) as container:
        for packet in container.demux(video=0):
            if packet.size and packet.dts is not None:
                at = 119.96 + float(packet.dts * packet.time_base)
                bench.recording.handle(Packet.copy(packet, round(at * NS), START_S))
    assert bench.recording.segments.files == 1  # although ``finish`` was not called


@pytest.mark.parametrize("early", [True, False])
def test_clip_ends_with_its_connection(tmp_path: Path, early: bool) -> None:
    stream = make_stream(tmp_path / "camera.ts", count=100, options={"bf": "0"})
    bench = clips_bench(tmp_path, "copy")
    run_with_detections(bench, stream, {80} if early else set(), 10)
    bench.recording.handle(Closed())
    for number in range(90, 100):
        bench.recording.handle(Sighting(100 * NS + number * NS // 25, True))
    bench.play(make_stream(tmp_path / "later.ts", count=100, first=200), 104.0)
    for number in range(104, 107):
        bench.recording.handle(Sighting(number * NS, False))
    files = bench.files()
    first = 50 if early else 60
    # The 1.5 s after a detection do not continue in the next connection.
    assert numbers_of(files[0]) == list(range(first, 100))
    assert [number for path in files[1:] for number in numbers_of(path) if number < 200] == []


def test_ring_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Sample] = []
    segments: Any = SimpleNamespace(write=written.append)
    monkeypatch.setattr("detector.live.recording.clips.RING_BYTES", 100_000)
    clips = Clips(segments, before_s=60, after_s=1)
    for number in range(1000):
        at = number * NS // 10
        clips.write(Sample(0, bytes(1000), at, at, 0, number % 10 == 0, at, 0.0))
        assert clips._bytes == sum(len(sample.data) for sample in clips._ring) <= 100_000
    clips.add_result(99 * NS, True)
    assert (written[0].arrived_ns, written[0].key) == (90 * NS, True)
    assert len(written) == 100
    assert clips.short == 1


def test_very_long_files_keep_no_index_in_memory(tmp_path: Path) -> None:
    """Files of more than an hour stay fragmented, and play."""
    bench = Bench(tmp_path, record="annotated", segment=mp4.LONGEST_INDEX_S / 60 + 1)
    bench.draw(range(60))
    (path,) = bench.files()
    assert b"moof" in path.read_bytes()
    assert all_numbers([path]) == list(range(60))
