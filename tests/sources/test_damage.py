"""Damage in video files is counted, and healthy files report none."""

import gc
import random
import re
import shutil
import threading
from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import av
import pytest

from detector.core import sources
from detector.core.sources.video import _complaints, _container
from detector.core.sources.video._clock import Clock

from .clips import assert_equal, count_by_ffmpeg, cut, damage_packets, pts_of, read_all, write_video
from .oddities import ODDITIES, PICTURES, ffmpeg

DECODERS = ["auto", "opencv", "av"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("damage")


@pytest.mark.slow
@pytest.mark.parametrize("name", ODDITIES)
def test_valid_oddity_is_not_damage(folder, name):
    path = folder / name
    count = ODDITIES[name](path)
    assert count_by_ffmpeg(path) == count
    for decoder, pixels in product(("auto", "av"), ("bgr", "yuv420p")):
        frames, source = read_all(path, decoder=decoder, pixels=pixels)
        assert (len(frames), source.counts.bad, source.counts.corrupt) == (count, 0, 0), decoder
        assert not source.damaged, source.notes
        times = [frame.time_s for frame in frames]
        assert times == sorted(set(times))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["mkv", "ts", "mp4"])
@pytest.mark.parametrize("lost", [4, 5], ids=["first", "second"])
def test_field_without_its_partner_is_counted(folder, suffix, lost):
    """FFmpeg silently drops the frame's other field."""
    whole, path = folder / f"fields.{suffix}", folder / f"field-{lost}.{suffix}"
    count = ODDITIES[f"h264-fields.{suffix}"](whole)
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size and number != lost:
                packet.stream = stream
                target.mux(packet)
    frames, source = read_all(path, decoder="av")
    assert len(frames) + source.counts.bad == count
    assert source.counts.bad + source.counts.corrupt == 1
    assert source.damaged


def test_damaged_field_is_a_corrupt_frame(folder):
    """Two fields make one picture, so a damaged field is one corrupt frame and no lost frame."""
    path = folder / "noise.mkv"
    count = ODDITIES["h264-fields.mkv"](path)
    with av.open(str(path)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][5]
        at = packet.pos + 12
    data = bytearray(path.read_bytes())
    data[at : at + 100] = bytes(100)
    path.write_bytes(data)
    frames, source = read_all(path, decoder="av")
    assert (len(frames), source.counts.bad, source.counts.corrupt) == (count, 0, 1)


@pytest.fixture(autouse=True)
def own_log(monkeypatch):
    """Use a new log: a source of an earlier test may still be closing in another thread."""
    level = av.logging.get_level()
    av.logging.set_level(None)
    monkeypatch.setattr(_complaints, "CAUGHT_LOG", _complaints.CaughtLog())
    yield
    av.logging.set_level(level)


@pytest.fixture(scope="module")
def concealed(folder):
    """H.264 with noise in the second half of two pictures. The decoder conceals this damage."""
    return damage_packets(write_video(folder / "damaged.mp4", 40, g="40", bf="0"), 20, 30)


@pytest.mark.parametrize("decoder", DECODERS)
def test_concealed_damage_is_counted(concealed, decoder):
    frames, source = read_all(concealed, decoder=decoder)
    assert len(frames) == 40
    assert source.counts.corrupt > 0
    assert source.damaged
    assert [frame.pts for frame in frames] == pts_of(concealed)


@pytest.mark.parametrize(
    ("pixels", "decoder"),
    [
        ("bgr", r"opencv \(\d+ frames\) then av"),
        ("yuv420p", r"av \(\d+ frames\) then av by packets"),
    ],
)
def test_switching_decoders_gives_the_same_frames_as_pyav_alone(concealed, pixels, decoder):
    frames, source = read_all(concealed, pixels=pixels)
    alone, exact = read_all(concealed, pixels=pixels, decoder="av")
    assert re.fullmatch(decoder, source.decoder)
    assert source.counts == exact.counts
    assert_equal(frames, alone)


@pytest.mark.parametrize("pixels", ["bgr", "yuv420p"])
def test_run_that_ends_before_the_damage_is_not_damaged(concealed, pixels):
    frames, source = read_all(concealed, pixels=pixels, frames=5)
    assert (len(frames), source.damaged) == (5, False)


@pytest.fixture(scope="module")
def without_reference(folder):
    """HEVC that is damaged at the start of a picture to which other pictures refer."""
    options = {"x265-params": "log-level=none:bframes=3", "g": "50"}
    path = write_video(folder / "hevc.mkv", 50, "libx265", **options)
    with av.open(str(path)) as container:
        at = [packet.pos for packet in container.demux(video=0) if packet.size][9] + 10
    data = bytearray(path.read_bytes())
    data[at : at + 4] = bytes(byte ^ 255 for byte in data[at : at + 4])
    path.write_bytes(data)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["auto", "av"])
def test_frames_without_their_reference_are_counted(without_reference, decoder):
    frames, source = read_all(without_reference, decoder=decoder)
    assert len(frames) == count_by_ffmpeg(without_reference) == 50 - source.counts.bad
    assert source.damaged
    assert source.counts.bad > 0
    assert source.counts.corrupt > 0


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["auto", "av"])
def test_files_of_bug_reports_have_the_expected_damage(shared, decoder):
    """Three HEVC files (flipped bits, damaged EBML element, both) and an AVI with a Latin-1 tag."""
    for name, count in {"h2.mkv": 50, "k12.mkv": 21, "k15.mkv": 11, "latin1_avi.avi": 50}.items():
        path = shared / "data/attacks" / name
        frames, source = read_all(path, decoder=decoder)
        assert len(frames) == count == count_by_ffmpeg(path)
        assert source.damaged == (name != "latin1_avi.avi")
        assert (source.counts.corrupt > 0) == (name in ("h2.mkv", "k15.mkv"))
        assert source.counts.ended_early == (name[0] == "k")


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["auto", "opencv"])
def test_lost_frames_are_counted_without_the_log_of_cv2(without_reference, monkeypatch, decoder):
    """Simulate Windows, where we cannot read the log of cv2's FFmpeg."""
    monkeypatch.setattr(_complaints, "_find_libraries", lambda: None)
    frames, source = read_all(without_reference, decoder=decoder)
    assert len(frames) + source.counts.bad == 50
    assert source.counts.bad > 0
    times = [frame.time_s for frame in frames]
    assert times == sorted(set(times))


@pytest.mark.parametrize(
    ("decoder", "pixels"), [("auto", "bgr"), ("auto", "yuv420p"), ("opencv", "bgr"), ("av", "bgr")]
)
@pytest.mark.parametrize(
    "name",
    ["a.flv", "a.ts", "a.gif", "a.y4m", "fragmented.mp4", "a.webm", "a.mov", "a.mkv", "a.avi"],
)
def test_truncated_file_has_ended_early(folder, name, decoder, pixels):
    whole = folder / f"whole-{name}"
    if not whole.exists():
        options = {
            "a.gif": ["-pix_fmt", "rgb8"],
            "a.webm": ["-c:v", "libvpx", "-pix_fmt", "yuv420p"],
            "a.y4m": [],
            "fragmented.mp4": ["-c:v", "libx264", "-movflags", "+frag_keyframe", "-g", "5"],
            "a.mov": ["-c:v", "libx264", "-movflags", "+faststart", "-g", "5"],
        }.get(name, ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-g", "5"])
        ffmpeg(*PICTURES, *options, whole)
    path = cut(whole, 0.71)
    frames, source = read_all(path, decoder=decoder, pixels=pixels)
    assert 0 < len(frames) < 20
    assert source.counts.ended_early
    assert name not in ("a.mov", "a.mkv", "a.avi") or "its end is missing" in str(source.notes)
    frames, source = read_all(whole, decoder=decoder, pixels=pixels)
    assert (len(frames), source.damaged) == (20, False)


@pytest.fixture(scope="module")
def transport_stream(folder):
    path = folder / "stream.ts"
    ffmpeg(*PICTURES, "-vf", "noise=alls=60:allf=t", "-c:v", "libx264", "-g", "10", path)
    return path


@pytest.mark.parametrize("decoder", DECODERS)
def test_lost_transport_packet_is_damage(folder, transport_stream, decoder):
    """MPEG-TS numbers its packets of 188 bytes, so a loss is detectable."""
    data = transport_stream.read_bytes()
    pid = b"\x01\x00"  # ffmpeg's pid of the video stream
    video = [at for at in range(0, len(data), 188) if data[at + 2 : at + 3] == pid[1:]]
    lost = video[len(video) // 2]
    path = folder / "lost.ts"
    path.write_bytes(data[:lost] + data[lost + 188 :])
    assert read_all(path, decoder=decoder)[1].damaged


@pytest.mark.parametrize("decoder", DECODERS)
def test_two_recordings_in_one_file_are_not_damage(folder, transport_stream, decoder):
    path = folder / "joined.ts"
    path.write_bytes(transport_stream.read_bytes() * 2)
    frames, source = read_all(path, decoder=decoder)
    assert (len(frames), source.damaged) == (40, False)


@pytest.mark.parametrize("decoder", ["auto", "av"])
def test_truncated_raw_stream_is_damaged(folder, decoder):
    path = write_video(folder / "raw.h264", 20, g="1")
    path.write_bytes(path.read_bytes()[:-40])
    frames, source = read_all(path, decoder=decoder)
    assert len(frames) + source.counts.bad == 20
    assert source.damaged


def test_damaged_time_offsets_are_damage(folder):
    """A damaged table of time offsets makes FFmpeg hide most frames, as an edit list would."""
    path = write_video(folder / "order.mp4", 24, bf="2")
    data = bytearray(path.read_bytes())
    at = data.index(b"ctts") + 28  # count and offset of the third entry
    data[at : at + 8] = bytes([0x52, 0x93, 0x3D, 0x2F, 0x12, 0xE2, 0xB8, 0x2F])
    path.write_bytes(data)
    frames, source = read_all(path)
    assert len(frames) < 24
    assert source.damaged


@pytest.mark.slow
def test_times_increase_after_a_clock_overflow(folder):
    """MPEG-TS has 33 bits for times, which overflow after 26.5 hours."""
    path, grey = folder / "long.ts", ("-f", "lavfi", "-i", "color=gray:s=16x16:r=25:d=432")
    ffmpeg(*grey, "-vf", "setpts=N*9/TB", "-c:v", "mpeg2video", "-muxdelay", "0", path)
    for decoder in DECODERS:
        frames, source = read_all(path, decoder=decoder)
        assert [frame.time_s - frames[0].time_s for frame in frames] == [
            9 * n for n in range(10_800)
        ]
        assert (source.damaged, source.notes) == (False, [])


ROUND = 1 << 33  # ticks until MPEG's clock overflows


@pytest.mark.parametrize(
    ("demuxer", "stored", "expected", "places"),
    [
        ("mpegts", [0, 9, None, 29], [0, 9, 19, 29], 0),
        ("mpegts", [ROUND - 9, 5], [ROUND - 9, ROUND + 5], 0),
        ("mpegts", [ROUND - 1, 1, ROUND - 2, 2], [ROUND - 1, ROUND + 1, ROUND + 11, ROUND + 21], 1),
        ("mpegts", [200, 0, 9], [200, 210, 219], 1),  # another recording follows
        ("mpegts", [0, 1000, 2011, 2020], [0, 1000, 1010, 1019], 1),  # a gap above 10 s is a jump
        ("mpegts", [0, 10, 5000, 20, 30], [0, 10, 20, 30, 40], 1),  # an outlier
        ("mpegts", [0, 10, 5, 15, 35], [0, 10, 20, 30, 35], 1),  # out of order
        ("mpegts", [7, 7, 7], [7, 17, 27], 1),
        ("mpegts", [99, *range(39, 200, 10), 230], [*range(99, 270, 10), 300], 1),  # parts overlap
        ("mov", [1 << 40, 0], [1 << 40, (1 << 40) + 10], 1),
        ("flv", [(1 << 32) - 1, 1], [(1 << 32) - 1, (1 << 32) + 1], 0),
    ],
)
def test_timestamps_that_jump_are_replaced(demuxer, stored, expected, places):
    """Times are in 1/100 s; frames are 1/10 s apart."""
    info = SimpleNamespace(start_pts=0, time_base=Fraction(1, 100), longest_gap_s=10)
    clock = Clock(SimpleNamespace(info=info, ticks=10, log_names=(demuxer,)))
    notes = []
    assert [clock.place(pts, notes) for pts in stored] == expected
    assert [note.split()[6] for note in notes] == [str(places)] * bool(places)


# MPEG-TS stores the name of a service, the other formats store a title. Here, both are Latin-1.
TAGGED = {
    "a.avi": "mpeg4",
    "a.flv": "flv",
    "a.mkv": "libx264",
    "a.mp4": "libx264",
    "a.mov": "libx264",
    "a.ts": "libx264",
    "a.webm": "libvpx",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TAGGED)
def test_tag_in_latin_1_is_read_without_damage(folder, name):
    path, tag = folder / f"tagged-{name}", b"caf\xe9 \xfc"
    sound = "libvorbis" if name == "a.webm" else "libmp3lame"
    ffmpeg(
        *PICTURES, "-f", "lavfi", "-i", "sine=duration=0.8", "-c:a", sound, "-ar", "44100",
        "-pix_fmt", "yuv420p", "-c:v", TAGGED[name],
        *(b"-metadata", b"title=" + tag, b"-metadata", b"service_name=" + tag),
        *(b"-metadata:s:v", b"title=" + tag, b"-metadata:s:a", b"title=" + tag),
        path,
    )  # fmt: skip
    assert tag in path.read_bytes()
    for decoder in DECODERS:
        frames, source = read_all(path, decoder=decoder)
        assert (len(frames), source.damaged, source.info.has_audio) == (20, False, True)


def test_log_level_is_restored(concealed):
    assert av.logging.get_level() is None
    read_all(concealed)
    assert av.logging.get_level() is None
    source = sources.open(str(concealed))
    assert av.logging.get_level() == av.logging.ERROR
    source.read()
    capture = source._capture
    del source  # never closed
    assert av.logging.get_level() is None
    assert not capture.isOpened()


@pytest.mark.slow
def test_garbage_collection_may_close_a_source_during_logging(concealed, monkeypatch):
    """Garbage collection may run while the log's lock is held."""
    unclosed = [sources.open(str(concealed), decoder="av")]
    real = _complaints.Complaints.note

    def collect_first(self, record):
        unclosed.clear()
        gc.collect()
        real(self, record)

    monkeypatch.setattr(_complaints.Complaints, "note", collect_first)
    frames, source = read_all(concealed)
    assert len(frames) == 40
    assert source.counts.corrupt > 0
    assert av.logging.get_level() is None


@pytest.mark.parametrize(
    ("decoder", "opens"), [("opencv", "opencv.name_to_open"), ("av", "av.open_container")]
)
def test_failed_open_restores_the_log_level(concealed, monkeypatch, decoder, opens):
    def fail(path):
        raise OSError("too many open files")

    monkeypatch.setattr(f"detector.core.sources.video.{opens}", fail)
    with pytest.raises(OSError, match="too many"):
        sources.open(str(concealed), decoder=decoder)
    gc.collect()
    assert av.logging.get_level() is None


def test_concurrent_removals_of_listeners_restore_the_log_level_once(monkeypatch):
    """A second ``remove_closed`` runs just before the first one takes the lock."""
    log = _complaints.CAUGHT_LOG
    listener = _complaints.Complaints()

    class Overtaken:
        def __init__(self):
            self.lock, self.first = threading.Lock(), True

        def acquire(self, blocking=True):
            if self.first:
                self.first = False
                log.remove_closed()
            return self.lock.acquire(blocking)

        def release(self):
            self.lock.release()

    monkeypatch.setattr(log, "_lock", Overtaken())
    listener.close()
    assert log._listeners == []
    assert av.logging.get_level() is None


def test_damage_is_counted_after_the_log_level_was_reset(concealed):
    """An encoder in another thread resets PyAV's log level while a file is open."""
    with sources.open(str(concealed), decoder="av"):
        av.logging.set_level(None)
        frames, source = read_all(concealed)
        assert len(frames) == 40
        assert source.counts.corrupt > 0


def test_messages_of_other_codecs_are_not_damage(folder):
    """PyAV takes over only after an error of the file's own decoder, which is h264 here."""
    path = write_video(folder / "quiet.mp4", 12)
    for name, taken_over in (("libx264", False), ("aac", False), ("h264", True)):
        with sources.open(str(path)) as source:
            source.read()
            av.logging.log(av.logging.ERROR, name, "something is wrong")
            assert len(list(source)) == 11
        assert ("av" in source.decoder) == taken_over
        assert not source.damaged


def test_log_requested_by_the_user_is_still_written(concealed, caplog):
    av.logging.set_level(av.logging.ERROR)
    try:
        read_all(concealed)
        assert any(record.name == "libav.h264" for record in caplog.records)
        assert av.logging.get_level() == av.logging.ERROR
    finally:
        av.logging.set_level(None)


def test_damage_of_one_source_is_not_counted_in_another(concealed, folder):
    healthy = shutil.copy(write_video(folder / "healthy.mp4", 12), folder / "copy.mp4")
    with sources.open(str(concealed), decoder="av") as damaged:
        assert len(list(damaged)) == 40
        with sources.open(str(healthy)) as other:
            assert len(list(other)) == 12
    assert (other.decoder, other.damaged) == ("opencv", False)


@pytest.mark.slow
def test_file_with_random_damage_gives_frames_or_one_error(folder):
    path = write_video(folder / "any.mkv", 12)
    whole = path.read_bytes()
    for seed in range(20):
        chance = random.Random(seed)
        data = bytearray(whole)
        for _ in range(5):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        try:
            frames, source = read_all(path)
        except sources.base.SourceError:
            continue
        assert len(frames) == 12 or source.damaged, seed


def test_stream_that_appears_late_does_not_end_demuxing():
    """PyAV 18 raises IndexError for such a stream, and continues when we demux again."""

    class Container:
        packets = iter([1, 2, IndexError(), 3, IndexError()])

        def demux(self, stream):
            for packet in self.packets:
                if isinstance(packet, IndexError):
                    raise packet
                yield packet

    assert list(_container.demux(Container(), 0)) == [1, 2, 3]
