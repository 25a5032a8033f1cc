"""Sound is cut with the frames, stays in sync, and is copied if the container can hold it."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from probing import probe

from detector.core import sinks
from detector.core.sinks.video.audio import CarriedTrack
from detector.core.sinks.video.tracks import SEEK_MARGIN_S, CarriedTracks
from detector.core.types import Detections, Frame, SourceInfo
from tests.cli.command import detect_video, summary_of
from tests.sources.clips import beeping_clip, flash_and_beep

FLASH_S = 3.0  # the time of the flash and the beep in ``beeping_clip``


def rewrite(
    source: Path, target: Path, first: int = 0, last: int = 10_000, stride: int = 1
) -> sinks.Sink:
    """Write frames first..last of ``source``, like a run with --start, --frames and --stride."""
    with av.open(str(source)) as container:
        video = container.streams.video[0]
        info = SourceInfo(
            str(source), "video", 64, 48, video.average_rate, video.time_base, has_audio=True
        )
        sink = sinks.open("video", target)
        sink.open(info)
        for i, picture in enumerate(container.decode(video)):
            if first <= i <= last and (i - first) % stride == 0:
                image = picture.to_ndarray(format="bgr24")
                sink.write(
                    Frame(i, picture.pts, float(picture.pts * video.time_base), image),
                    Detections.empty(),
                )
    sink.close()
    return sink


def codecs(path: Path) -> dict[str, str]:
    return {stream["codec_type"]: stream["codec_name"] for stream in probe(path)["streams"]}


SOURCES = [
    # file, encoder, codec of the output
    ("aac.mp4", ["-c:a", "aac"], "aac"),
    # ADTS headers must become one description in the MP4. The source's clock starts at 1.4 s.
    ("aac.ts", ["-c:a", "aac"], "aac"),
    ("mp3.mkv", ["-c:a", "libmp3lame"], "mp3"),
    ("ac3.mkv", ["-c:a", "ac3"], "ac3"),
    ("opus.mkv", ["-c:a", "libopus", "-ar", "48000"], "opus"),
    ("flac.mkv", ["-c:a", "flac"], "flac"),
    ("vorbis.mkv", ["-c:a", "libvorbis"], "aac"),  # MP4 can hold it, but players do not play it
    ("pcm.mov", ["-c:a", "pcm_s16le"], "aac"),
    ("mp2.ts", ["-c:a", "mp2"], "aac"),
    ("pcm.avi", ["-c:a", "pcm_s16le"], "aac"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "encoder", "expected"), SOURCES, ids=[row[0] for row in SOURCES])
@pytest.mark.parametrize("first", [0, 37], ids=["whole", "cut"])
def test_sound_and_picture_stay_together(
    name: str, encoder: list[str], expected: str, first: int, tmp_path: Path
) -> None:
    source = beeping_clip(tmp_path / name, *encoder)
    sink = rewrite(source, tmp_path / "out.mp4", first=first)
    assert sink.notes == []
    assert codecs(tmp_path / "out.mp4") == {"video": "h264", "audio": expected}
    flash, beep = flash_and_beep(tmp_path / "out.mp4")
    assert flash == pytest.approx(FLASH_S - first / 25, abs=0.001)
    source_flash, source_beep = flash_and_beep(source)  # they differ by the encoder's delay
    assert beep - flash == pytest.approx(source_beep - source_flash, abs=0.025)
    video, audio = (float(stream["duration"]) for stream in probe(tmp_path / "out.mp4")["streams"])
    assert video == pytest.approx(6 - first / 25)
    assert video - 0.1 < audio < video + 0.1


CONTAINERS = [
    # suffix, encoder of the source, codec of the output
    (".webm", "libopus", "opus"),
    (".webm", "aac", "opus"),
    (".avi", "aac", "pcm_s16le"),
    (".mov", "aac", "aac"),
    (".mov", "pcm_s16le", "aac"),
    (".mov", "libopus", "aac"),  # QuickTime has no Opus
    (".mov", "flac", "aac"),
    (".mkv", "aac", "aac"),
    (".mkv", "pcm_s16le", "aac"),
    (".mkv", "libopus", "opus"),
    (".ts", "aac", "aac"),
    (".ts", "ac3", "ac3"),
    (".ts", "libopus", "aac"),  # players do not expect Opus there
    (".flv", "aac", "aac"),
    (".flv", "ac3", "aac"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "encoder", "expected"), CONTAINERS)
def test_sound_is_copied_or_encoded_for_the_container(
    suffix: str, encoder: str, expected: str, tmp_path: Path
) -> None:
    source, out = beeping_clip(tmp_path / "in.mkv", "-c:a", encoder), tmp_path / f"out{suffix}"
    assert rewrite(source, out, first=30).notes == []
    assert codecs(out)["audio"] == expected
    (flash, beep), (source_flash, source_beep) = flash_and_beep(out), flash_and_beep(source)
    assert beep - flash == pytest.approx(source_beep - source_flash, abs=0.04)  # one frame at 25/s


def test_late_sound_keeps_its_position_in_avi(tmp_path: Path) -> None:
    late = ("-c:a", "aac", "-af", "atrim=start=0.6")
    rewrite(beeping_clip(tmp_path / "in.mkv", *late), tmp_path / "out.avi")
    assert flash_and_beep(tmp_path / "out.avi") == pytest.approx((FLASH_S, FLASH_S), abs=0.05)


def test_missing_sound_in_a_gif_is_noted(tmp_path: Path) -> None:
    (note,) = rewrite(beeping_clip(tmp_path / "in.mkv", seconds=1), tmp_path / "out.gif").notes
    assert "sound" in note


@pytest.mark.slow
def test_sound_ends_with_the_last_frame(tmp_path: Path) -> None:
    source = beeping_clip(tmp_path / "in.mp4", "-c:a", "aac")
    rewrite(source, tmp_path / "out.mp4", first=50, last=99)
    durations = [float(stream["duration"]) for stream in probe(tmp_path / "out.mp4")["streams"]]
    assert durations[0] == pytest.approx(2.0)
    assert durations[1] == pytest.approx(2.0, abs=0.03)
    assert flash_and_beep(tmp_path / "out.mp4") == pytest.approx((1.0, 1.0), abs=0.03)


@pytest.mark.slow
def test_stride_keeps_speed_and_sound(tmp_path: Path) -> None:
    source = beeping_clip(tmp_path / "in.mp4", "-c:a", "aac")
    rewrite(source, tmp_path / "out.mp4", stride=5)
    streams = probe(tmp_path / "out.mp4")["streams"]
    assert streams[0]["nb_frames"] == "30"
    assert [float(stream["duration"]) for stream in streams] == pytest.approx([6.0, 6.0], abs=0.03)
    assert flash_and_beep(tmp_path / "out.mp4") == pytest.approx((3.0, 3.0), abs=0.03)


@pytest.mark.slow
def test_late_start_keeps_durations_after_seeking(tmp_path: Path) -> None:
    source = beeping_clip(tmp_path / "in.mp4", "-c:a", "aac", fps=5, seconds=16)
    rewrite(source, tmp_path / "out.mp4", first=55)
    video, audio = (float(stream["duration"]) for stream in probe(tmp_path / "out.mp4")["streams"])
    assert video == pytest.approx(5.0)
    assert audio == pytest.approx(5.0, abs=0.06)


def test_near_start_does_not_seek() -> None:
    seeks: list[int] = []
    container = SimpleNamespace(seek=lambda at, stream: seeks.append(at))
    for first_s, start_s in ((None, 60), (None, 5), (90, 95)):
        stream = SimpleNamespace(start_time=first_s, time_base=Fraction(1))
        CarriedTracks._seek_before(
            SimpleNamespace(_container=container), stream, (False, Fraction(start_s))
        )  # type: ignore[arg-type]
    assert seeks == [60 - SEEK_MARGIN_S]


@pytest.mark.slow
def test_sound_packets_are_interleaved_with_frames(tmp_path: Path) -> None:
    """Sound and pictures that are close in the file differ in time by at most the look-ahead."""
    source = beeping_clip(tmp_path / "in.mp4", "-c:a", "aac", seconds=20)
    rewrite(source, tmp_path / "out.mp4")
    with av.open(str(tmp_path / "out.mp4")) as container:
        packets = sorted(
            (p.pos, p.stream.type, p.pts * p.time_base) for p in container.demux() if p.size
        )
    newest = {"video": Fraction(0), "audio": Fraction(0)}
    for _, kind, time in packets:
        newest[kind] = max(newest[kind], time)
        assert abs(newest["video"] - newest["audio"]) < 1.5


@pytest.mark.slow
def test_sound_that_ends_early_is_written_without_a_note(tmp_path: Path) -> None:
    """The audio reader gets half of the file, but all frames are written."""
    source = beeping_clip(tmp_path / "in.ts", "-c:a", "aac")
    damaged = tmp_path / "damaged.ts"
    damaged.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    sink = write_frames(damaged, tmp_path / "out.mp4")
    assert codecs(tmp_path / "out.mp4") == {"video": "h264", "audio": "aac"}
    assert probe(tmp_path / "out.mp4")["streams"][0]["nb_frames"] == "100"
    assert sink.notes == []  # the demuxer cannot detect an early end


@pytest.mark.slow
def test_damaged_audio_packet_is_noted_and_leaves_a_gap(tmp_path: Path) -> None:
    """Lost MPEG-TS packets, as on a radio link, leave an ADTS frame without its header. MP4 cannot
    store such a frame."""
    source = beeping_clip(tmp_path / "in.ts", "-c:a", "aac", "-b:a", "192k")
    data = source.read_bytes()
    audio = [
        at
        for at in range(0, len(data), 188)
        if int.from_bytes(data[at + 1 : at + 3]) & 0x1FFF == 0x101
    ]
    lost = set(audio[len(audio) // 3 : len(audio) // 3 + 9])
    source.write_bytes(
        b"".join(data[at : at + 188] for at in range(0, len(data), 188) if at not in lost)
    )
    sink = rewrite(source, tmp_path / "out.mp4")
    assert probe(tmp_path / "out.mp4")["streams"][0]["nb_frames"] == "150"
    assert int(probe(tmp_path / "out.mp4")["streams"][1]["nb_frames"]) > 200
    assert [re.findall(r"audio packets|\d+", note) for note in sink.notes] == [
        ["audio packets", "1"]
    ]
    assert flash_and_beep(tmp_path / "out.mp4") == pytest.approx((FLASH_S, FLASH_S), abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "kept"), [("5.1", True), ("7.1", False), ("hexadecagonal", True)]
)
def test_surround_sound_is_kept_or_noted(layout: str, kept: bool, tmp_path: Path) -> None:
    """Use a new process: PyAV 18.1 crashes on the channel order of 7.1 in QuickTime."""
    beeping_clip(
        tmp_path / "in.mov",
        *"-c:a pcm_s16le -af".split(),
        f"aformat=channel_layouts={layout}",
        seconds=1,
    )
    process = detect_video("in.mov", "--engine", "null", "--json", cwd=tmp_path)
    assert (process.returncode, process.stderr) == (0, "")
    streams = codecs(tmp_path / "in-null-detected.mp4")
    assert streams == ({"video": "h264", "audio": "aac"} if kept else {"video": "h264"})
    assert any("8 channels (FL+FR" in note for note in summary_of(process)["notes"]) is not kept


@pytest.mark.parametrize("content", [b"no video at all" * 100, None], ids=["garbage", "missing"])
def test_sound_that_cannot_be_opened_is_noted(content: bytes | None, tmp_path: Path) -> None:
    source = tmp_path / "in.mp4"
    if content is not None:
        source.write_bytes(content)
    sink = write_frames(source, tmp_path / "out.mp4")
    assert codecs(tmp_path / "out.mp4") == {"video": "h264"}
    assert len(sink.notes) == 1
    assert "no track besides the video" in sink.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "why"), [("aac", "planted"), ("pcm_s16le", "encoded as aac")])
def test_track_that_fails_midway_is_cut_and_noted(
    encoder: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copied track fails when it is read, and an encoded track when its channels change."""
    source = beeping_clip(tmp_path / "in.mov", "-c:a", encoder)
    read_items = CarriedTrack._read_items

    def break_after(track: CarriedTrack) -> Any:
        for i, (item, duration_s) in enumerate(read_items(track)):
            if i == 100:
                if track.copied:
                    raise av.InvalidDataError(1, "planted")
                other = av.AudioFrame("s16", "5.1", item.samples)
                other.pts, other.time_base = item.pts, item.time_base
                other.sample_rate, item = item.sample_rate, other
            yield item, duration_s

    monkeypatch.setattr(CarriedTrack, "_read_items", break_after)
    sink = write_frames(source, tmp_path / "out.mp4")
    frames, sound = probe(tmp_path / "out.mp4")["streams"]
    assert (frames["nb_frames"], frames["codec_type"]) == ("100", "video")
    assert float(sound["duration"]) == pytest.approx(100 * 1024 / 44100 - 1.4, abs=0.1)
    assert len(sink.notes) == 1
    assert "audio ends" in sink.notes[0]
    assert why in sink.notes[0]


def write_frames(source: Path, target: Path) -> sinks.Sink:
    sink = sinks.open("video", target)
    info = SourceInfo(
        str(source), "video", 64, 48, Fraction(25), Fraction(1, 90000), has_audio=True
    )
    sink.open(info)
    for i in range(100):
        sink.write(
            Frame(i, i * 3600 + 126_000, 0.0, np.full((48, 64, 3), 99, np.uint8)),
            Detections.empty(),
        )
    sink.close()
    return sink
