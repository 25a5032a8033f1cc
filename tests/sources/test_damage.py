"""Report what a file has lost, and nothing for a healthy file."""

import gc
import random
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

from .clips import count_by_ffmpeg, cut, hurt, pts_of, read_all, write_video
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
def test_a_field_without_its_partner_is_counted(folder, suffix, lost):
    """FFmpeg drops the other field of its frame, without a word."""
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


def test_a_field_that_is_noise_is_a_corrupt_frame(folder):
    """Both fields are one picture, so one of them is not an additional lost frame."""
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
    """A source that a test of another file has left to a thread, which still ends, listens too."""
    level = av.logging.get_level()
    av.logging.set_level(None)
    monkeypatch.setattr(_complaints, "CAUGHT_LOG", _complaints.CaughtLog())
    yield
    av.logging.set_level(level)


@pytest.fixture(scope="module")
def patched_up(folder):
    """H.264 with noise in the second half of two pictures, which the decoder guesses."""
    return hurt(write_video(folder / "hurt.mp4", 40, g="40", bf="0"), 20, 30)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_picture_that_was_patched_up_is_damage(patched_up, decoder):
    frames, source = read_all(patched_up, decoder=decoder)
    assert len(frames) == 40
    assert source.counts.corrupt > 0
    assert source.damaged
    assert [frame.pts for frame in frames] == pts_of(patched_up)


def test_pyav_takes_over_in_front_of_the_damage(patched_up):
    frames, source = read_all(patched_up)
    alone, exact = read_all(patched_up, decoder="av")
    assert source.decoder.startswith("opencv (")
    assert source.decoder.endswith(" frames) then av")
    assert source.counts == exact.counts
    assert all((a.image == b.image).all() for a, b in zip(frames, alone, strict=True))


@pytest.mark.parametrize("pixels", ["bgr", "yuv420p"])
def test_a_limit_in_front_of_the_damage_is_none(patched_up, pixels):
    frames, source = read_all(patched_up, pixels=pixels, frames=5)
    assert (len(frames), source.damaged) == (5, False)


@pytest.fixture(scope="module")
def without_reference(folder):
    """Damage HEVC at the start of a picture that others refer to."""
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
def test_frames_without_their_reference(without_reference, decoder):
    frames, source = read_all(without_reference, decoder=decoder)
    assert len(frames) == count_by_ffmpeg(without_reference) == 50 - source.counts.bad
    assert source.damaged
    assert source.counts.bad > 0
    assert source.counts.corrupt > 0


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["auto", "av"])
def test_reported_files(shared, decoder):
    """Bits flipped in HEVC, a damaged EBML element, and both; a camera whose tag is Latin 1."""
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


@pytest.mark.parametrize("decoder", ["auto", "av"])
@pytest.mark.parametrize(
    "name", ["a.flv", "a.ts", "a.gif", "a.y4m", "fragmented.mp4", "a.webm", "a.mov"]
)
def test_cut_off_by_its_own_structure(folder, name, decoder):
    whole = folder / f"whole-{name}"
    if not whole.exists():
        options = {
            "a.gif": ["-pix_fmt", "rgb8"],
            "a.webm": ["-c:v", "libvpx", "-pix_fmt", "yuv420p"],
            "a.y4m": [],
            "fragmented.mp4": ["-c:v", "libx264", "-movflags", "+frag_keyframe", "-g", "5"],
            "a.mov": ["-c:v", "libx264", "-movflags", "+faststart", "-g", "5"],
        }.get(name, ["-c:v", "libx264", "-pix_fmt", "yuv420p"])
        ffmpeg(*PICTURES, *options, whole)
    path = cut(whole, 0.71)
    frames, source = read_all(path, decoder=decoder)
    assert 0 < len(frames) < 20
    assert source.counts.ended_early
    frames, source = read_all(whole, decoder=decoder)
    assert (len(frames), source.damaged) == (20, False)


@pytest.fixture(scope="module")
def transport_stream(folder):
    path = folder / "stream.ts"
    ffmpeg(*PICTURES, "-vf", "noise=alls=60:allf=t", "-c:v", "libx264", "-g", "10", path)
    return path


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_packet_that_the_network_lost(folder, transport_stream, decoder):
    """MPEG-TS counts its packets of 188 bytes, so that a loss shows."""
    data = transport_stream.read_bytes()
    pid = b"\x01\x00"  # of the pictures, as ffmpeg numbers them
    of_video = [at for at in range(0, len(data), 188) if data[at + 2 : at + 3] == pid[1:]]
    lost = of_video[len(of_video) // 2]
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


def test_impossible_order_of_pictures(folder):
    """A damaged table of offsets makes FFmpeg hide most frames, as an edit list would."""
    path = write_video(folder / "order.mp4", 24, bf="2")
    data = bytearray(path.read_bytes())
    at = data.index(b"ctts") + 28  # the third entry's number of pictures and their offset
    data[at : at + 8] = bytes([0x52, 0x93, 0x3D, 0x2F, 0x12, 0xE2, 0xB8, 0x2F])
    path.write_bytes(data)
    frames, source = read_all(path)
    assert len(frames) < 24
    assert source.damaged


@pytest.mark.slow
def test_a_clock_that_overflows_goes_on_rising(folder):
    """A recording of MPEG-TS that is longer than 26.5 hours, which are 33 bits."""
    path, grey = folder / "long.ts", ("-f", "lavfi", "-i", "color=gray:s=16x16:r=25:d=432")
    ffmpeg(*grey, "-vf", "setpts=N*9/TB", "-c:v", "mpeg2video", "-muxdelay", "0", path)
    for decoder in DECODERS:
        frames, source = read_all(path, decoder=decoder)
        assert [frame.time_s - frames[0].time_s for frame in frames] == [
            9 * n for n in range(10_800)
        ]
        assert (source.damaged, source.notes) == (False, [])


ROUND = 1 << 33  # ticks of MPEG's clock


@pytest.mark.parametrize(
    ("demuxer", "stored", "expected", "places"),
    [
        ("mpegts", [0, 9, None, 29], [0, 9, 19, 29], 0),
        ("mpegts", [ROUND - 9, 5], [ROUND - 9, ROUND + 5], 0),
        ("mpegts", [ROUND - 1, 1, ROUND - 2, 2], [ROUND - 1, ROUND + 1, ROUND + 11, ROUND + 21], 1),
        ("mpegts", [200, 0, 9], [200, 210, 219], 1),  # set back: another recording follows
        ("mpegts", [0, 1000, 2011, 2020], [0, 1000, 1010, 1019], 1),  # a longer pause is a jump
        ("mpegts", [0, 10, 5000, 20, 30], [0, 10, 20, 30, 40], 1),  # there and back again
        ("mpegts", [0, 10, 5, 15, 35], [0, 10, 20, 30, 35], 1),  # a wrong order
        ("mpegts", [7, 7, 7], [7, 17, 27], 1),
        ("mpegts", [99, *range(39, 200, 10), 230], [*range(99, 270, 10), 300], 1),  # an overlap
        ("mov", [1 << 40, 0], [1 << 40, (1 << 40) + 10], 1),
        ("flv", [(1 << 32) - 1, 1], [(1 << 32) - 1, (1 << 32) + 1], 0),
    ],
)
def test_clock(demuxer, stored, expected, places):
    """In hundredths of a second, ten frames of them a second."""
    info = SimpleNamespace(start_pts=0, time_base=Fraction(1, 100), longest_gap_s=10)
    clock = Clock(SimpleNamespace(info=info, ticks=10, log_names=(demuxer,)))
    notes = []
    assert [clock.place(pts, notes) for pts in stored] == expected
    assert [note.split()[6] for note in notes] == [str(places)] * bool(places)


# MPEG-TS keeps the service's name, the others a title; both are no UTF-8.
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


def test_the_log_is_put_back(patched_up):
    assert av.logging.get_level() is None
    read_all(patched_up)
    assert av.logging.get_level() is None
    source = sources.open(str(patched_up))
    assert av.logging.get_level() == av.logging.ERROR
    source.read()
    capture = source._capture
    del source  # never closed
    assert av.logging.get_level() is None
    assert not capture.isOpened()


@pytest.mark.slow
def test_the_garbage_collector_may_close_a_source_at_any_moment(patched_up, monkeypatch):
    """A collection may come even while the log's lock is held."""
    forgotten = [sources.open(str(patched_up), decoder="av")]
    real = _complaints.Complaints.note

    def collect_first(self, record):
        forgotten.clear()
        gc.collect()
        real(self, record)

    monkeypatch.setattr(_complaints.Complaints, "note", collect_first)
    frames, source = read_all(patched_up)
    assert len(frames) == 40
    assert source.counts.corrupt > 0
    assert av.logging.get_level() is None


@pytest.mark.parametrize(
    ("decoder", "opens"), [("opencv", "opencv.name_to_open"), ("av", "av.open_container")]
)
def test_a_source_that_could_not_be_opened_listens_no_longer(
    patched_up, monkeypatch, decoder, opens
):
    def fail(path):
        raise OSError("too many open files")

    monkeypatch.setattr(f"detector.core.sources.video.{opens}", fail)
    with pytest.raises(OSError, match="too many"):
        sources.open(str(patched_up), decoder=decoder)
    gc.collect()
    assert av.logging.get_level() is None


def test_two_that_sweep_at_once_put_the_log_back_once(monkeypatch):
    """The other one, or the garbage collector, comes between the look and the lock."""
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


def test_damage_is_counted_although_the_log_was_turned_off(patched_up):
    """Another thread's camera or encoder sets PyAV's level back while a first file is open."""
    with sources.open(str(patched_up), decoder="av"):
        av.logging.set_level(None)
        frames, source = read_all(patched_up)
        assert len(frames) == 40
        assert source.counts.corrupt > 0


def test_what_others_log_is_not_ours(folder):
    """An encoder's error at the same time, and one of a decoder of the same name."""
    path = write_video(folder / "quiet.mp4", 12)
    for name, taken_over in (("libx264", False), ("aac", False), ("h264", True)):
        with sources.open(str(path)) as source:
            source.read()
            av.logging.log(av.logging.ERROR, name, "something is wrong")
            assert len(list(source)) == 11
        assert ("av" in source.decoder) == taken_over
        assert not source.damaged


def test_a_user_who_asked_for_the_log_still_gets_it(patched_up, caplog):
    av.logging.set_level(av.logging.ERROR)
    try:
        read_all(patched_up)
        assert any(record.name == "libav.h264" for record in caplog.records)
        assert av.logging.get_level() == av.logging.ERROR
    finally:
        av.logging.set_level(None)


def test_two_sources_at_once_do_not_mix(patched_up, folder):
    """Neither gets the other's complaints of before it was opened."""
    healthy = shutil.copy(write_video(folder / "healthy.mp4", 12), folder / "copy.mp4")
    with sources.open(str(patched_up), decoder="av") as one:
        assert len(list(one)) == 40
        with sources.open(str(healthy)) as two:
            assert len(list(two)) == 12
    assert (two.decoder, two.damaged) == ("opencv", False)


@pytest.mark.slow
def test_random_damage_ends_in_frames_or_one_error(folder):
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


def test_a_stream_that_appears_late_ends_nothing():
    """PyAV 18 raises IndexError for it, and continues when we demux again."""

    class Container:
        packets = iter([1, 2, IndexError(), 3, IndexError()])

        def demux(self, stream):
            for packet in self.packets:
                if isinstance(packet, IndexError):
                    raise packet
                yield packet

    assert list(_container.demux(Container(), 0)) == [1, 2, 3]
