"""Small clips, each with one property that readers get wrong. Real clips in the folder of shared
data have the same names and properties, and mostly the same numbers of frames."""

from collections.abc import Callable
from pathlib import Path

import av
import pytest

from tests.conftest import night

from .clips import complaints, encode_once, pts_of, write_sound, write_video
from .oddities import ffmpeg

# Clips that must be refused, whether real or made here.
REFUSED = {  # number -> part of the error
    "01": "empty",
    "02": "text",
    "03": "no moov atom",
    "12": "(found: audio)",
    "27": "no frame can be decoded",
}
DAMAGED = ("04", "05", "06")
WHOLE = {  # number -> count of frames
    **{f"{one:02}": 60 for one in range(7, 27) if one != 12},
    **{"09": 40, "10": 40, "11": 1, "16": 40, "19": 30, "24": 48, "25": 30, "28": 3, "29": 15},
}
HUGE, AV1 = "28", "16"
KINDS = ["made", night("real")]  # without --nightly, only test_nasty_clips.py reads real clips
# In milliseconds: 25 frames per second, then 5, then 62.5.
VARIABLE = [*range(0, 800, 40), *range(960, 3960, 200), *range(3776, 4176, 16)]


def encode(path: Path, *options: str, size: str = "160x90", frames: int = 60) -> Path:
    """Write a moving test picture at 24/s, as H.264 in 4:2:0 unless ``options`` say otherwise."""
    source = ("-f", "lavfi", "-i", f"testsrc2=size={size}:rate=24")
    usual = ("-pix_fmt", "yuv420p", "-c:v", "libx264", "-frames:v", str(frames))
    ffmpeg(*source, *usual, *options, path)
    return path


def encoded(*options: str, size: str = "160x90", frames: int = 60) -> Callable[[Path], object]:
    return lambda path: encode(path, *options, size=size, frames=frames)


def truncated(path: Path, share: float, *options: str) -> None:
    data = encode(path, *options).read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def corrupt_midstream(path: Path) -> None:
    """Change every 37th byte between 40 % and 55 % of the file. Try offsets until FFmpeg refuses
    packets and conceals damage in pictures. A Matroska file's structure must be damaged, too."""
    clusters = ("-cluster_time_limit", "400") if path.suffix == ".mkv" else ()
    whole = encode(path, *clusters).read_bytes()
    for shift in range(37):
        data = bytearray(whole)
        for at in range(len(data) * 40 // 100 + shift, len(data) * 55 // 100, 37):
            data[at] ^= 0x5A
        path.write_bytes(data)
        if _is_noticed(path):
            return
    raise AssertionError(f"FFmpeg reports no damage of {path.name}")


def _is_noticed(path: Path) -> bool:
    try:
        pts_of(path)
    except av.error.InvalidDataError:
        log = "\n".join(complaints(path))
        return "decoding MB" in log and ("[matroska" in log or path.suffix == ".ts")
    except IndexError:  # noise that looks like another stream
        pass
    return False


def audio_first(path: Path) -> None:
    video, maps = encode(path.with_name("video.mp4")), ("-map", "0", "-map", "1")
    ffmpeg("-f", "lavfi", "-i", "sine=duration=2.5", "-i", video, *maps, "-c:v", "copy", path)


def change_of_size(path: Path) -> None:
    blurred = ("-vf", "boxblur=4,hue=s=0.3")  # hides that readers scale with different filters
    later = (*blurred, "-output_ts_offset", "1.333333")
    larger = encode(path.with_name("larger.ts"), *later, size="240x136", frames=30)
    path.write_bytes(encode(path, *blurred, frames=30).read_bytes() + larger.read_bytes())


def hidden_start(path: Path) -> None:
    """Hide the first 12 of 60 stored frames by an edit list."""
    whole = encode(path.with_name("whole.mp4"), "-bf", "2")
    ffmpeg("-ss", "0.5", "-i", whole, "-c", "copy", path)


def lying_count(path: Path) -> None:
    """State 100,000 frames in the header of an AVI."""
    data = bytearray(encode(path, "-c:v", "mpeg4", frames=30).read_bytes())
    for at in (data.index(b"avih") + 24, data.index(b"strh") + 40):
        data[at : at + 4] = (100_000).to_bytes(4, "little")
    path.write_bytes(data)


def huge_declared_size(path: Path) -> None:
    """Claim 65500x65500 in the headers of the AVI and of each JPEG."""
    side = 65500
    encode(path, "-c:v", "mjpeg", "-pix_fmt", "yuvj420p", frames=30)
    data = bytearray(path.read_bytes())
    for at in (data.index(b"avih") + 40, data.index(b"strf") + 12):
        data[at : at + 8] = side.to_bytes(4, "little") * 2
    at = frames = 0
    while (at := data.find(b"\xff\xc0\x00\x11\x08", at) + 5) > 5:
        data[at : at + 4] = side.to_bytes(2, "big") * 2
        frames += 1
    assert frames == 30
    path.write_bytes(data)


def real_8192(path: Path) -> None:
    grey = ("-f", "lavfi", "-i", "color=gray:size=8192x8192:rate=5", "-frames:v", "3")
    ffmpeg(*grey, "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", path)


FAST_VP9 = ("-c:v", "libvpx-vp9", "-deadline", "realtime", "-cpu-used", "8")
FAST_AV1 = ("-c:v", "libaom-av1", "-usage", "realtime", "-cpu-used", "8")
ODD = ("-vf", "scale=107:61")
CLIPS: dict[str, Callable[[Path], object]] = {  # file name -> function that writes it
    "01_empty.mp4": lambda path: path.write_bytes(b""),
    "02_text.mp4": lambda path: path.write_text("a text with the name of a video by mistake"),
    "03_truncated_no_moov.mp4": lambda path: truncated(path, 0.6),
    "04_truncated_faststart.mp4": lambda path: truncated(path, 0.55, "-movflags", "+faststart"),
    "05_corrupt_midstream.mkv": corrupt_midstream,
    "06_corrupt_midstream.ts": corrupt_midstream,
    "07_vfr.mp4": lambda path: write_video(path, VARIABLE),
    "08_rotate90.mp4": lambda path: write_video(path, 60, rotation=90),
    "09_odd_h264_444.mp4": encoded(*ODD, "-pix_fmt", "yuv444p", frames=40),
    "10_odd_vp9.webm": encoded(*ODD, *FAST_VP9, frames=40),
    "11_one_frame.mp4": encoded(frames=1),
    "12_audio_only.mp4": write_sound,
    "13_audio_track_first.mp4": audio_first,
    "14_hevc.mp4": encoded("-c:v", "libx265", "-x265-params", "log-level=0"),
    "15_vp9.webm": encoded(*FAST_VP9),
    "16_av1.mp4": encoded(*FAST_AV1, frames=40),
    "17_h264_10bit.mp4": encoded("-pix_fmt", "yuv420p10le"),
    "18_gray.mp4": encoded("-pix_fmt", "gray"),
    "19_mjpeg.avi": encoded("-c:v", "mjpeg", "-pix_fmt", "yuvj420p", frames=30),
    "20_anamorphic_sar16_9.mp4": encoded("-vf", "setsar=16/9", size="120x90"),
    "21_tiny_16x16.mp4": encoded(size="16x16"),
    "22_resolution_change.ts": change_of_size,
    "23_start_at_10s.ts": encoded("-output_ts_offset", "10"),
    "24_bframes_editlist.mp4": hidden_start,
    "25_lying_frame_count.avi": lying_count,
    "26_ünïcode näme 视频 (1).mp4": encoded("-g", "12"),
    "27_huge_declared_size.avi": huge_declared_size,
    "28_real_8192x8192.mp4": real_8192,
    "29_gray_ffv1.mkv": encoded("-c:v", "ffv1", "-pix_fmt", "gray", frames=15),
}


def clips(kind: str, request: pytest.FixtureRequest) -> list[Path]:
    """Return the readable clips except the huge one. ``kind``: "made" here, or "real" (shared)."""
    numbers = [number for number in (*DAMAGED, *WHOLE) if number != HUGE]
    if kind == "made":
        return [make(request.getfixturevalue("tmp_path"), number) for number in numbers]
    folder = request.getfixturevalue("shared") / "data/videos/nasty"
    return [next(folder.glob(f"{number}_*")) for number in numbers]


def make(folder: Path, number: str) -> Path:
    [name] = (name for name in CLIPS if name.startswith(number))
    path = folder / name
    if not path.exists():
        encode_once(path, ("nasty", number), lambda: CLIPS[name](path))
    return path
