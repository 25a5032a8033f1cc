"""--encoder: AV1 with SVT-AV1, and what can be tested of hardware encoders without the hardware."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from probing import brightness, decode, make_frame, open_sink, probe

from detector.core import sinks
from detector.core.config.schema import ENCODERS, OutputConfig
from detector.core.errors import OutputError, UsageError
from detector.core.jobs.doctor import encoding
from detector.core.run.outputs import OutputPlan
from detector.core.sinks.video import FORMATS, encoders
from detector.core.types import Detections, Frame
from tests.cli.command import detect_video

STREET = Path(__file__).parents[2] / "videos/street.mp4"
USABLE = {name: encoders.why_not(name) is None for name in ENCODERS}


def write(path: Path, frames: list[Frame], **options: Any) -> sinks.Sink:
    sink = open_sink("video", path, options, width=128, height=96)
    for frame in frames:
        sink.write(frame, Detections.empty())
    sink.close()
    return sink


def texture(number: int) -> Frame:
    noise = np.random.default_rng(2).integers(0, 64, (96, 256), np.uint8)
    image = np.repeat(noise[:, 2 * number : 2 * number + 128, None], 3, 2)
    return Frame(number, number * 512, number / 25, np.ascontiguousarray(image))


@pytest.mark.slow
@pytest.mark.skipif(not USABLE["svtav1"], reason="this PyAV has no SVT-AV1")
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_av1_contains_every_frame_in_order(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    frames = [make_frame(i, size=(96, 128)) for i in range(16)]
    write(path, frames, encoder="svtav1")
    (stream,) = probe(path)["streams"]
    assert (stream["codec_name"], stream["width"], stream["height"]) == ("av1", 128, 96)
    means = [float(picture.mean()) for picture in decode(path, 128, 96)]
    assert means == pytest.approx([brightness(i) for i in range(16)], abs=4)


@pytest.mark.slow
@pytest.mark.skipif(not USABLE["svtav1"], reason="this PyAV has no SVT-AV1")
def test_crf_decides_the_size_of_av1(tmp_path: Path) -> None:
    sizes = {}
    for name, options in {
        "worst": {"crf": 60},
        "balanced": {},
        "also balanced": {"crf": 35},
        "best": {"crf": 10},
    }.items():
        path = tmp_path / f"{name}.mp4"
        write(path, [texture(i) for i in range(20)], encoder="svtav1", **options)
        sizes[name] = path.stat().st_size
    assert sizes["worst"] < sizes["balanced"] == sizes["also balanced"] < sizes["best"]


@pytest.mark.skipif(not USABLE["svtav1"], reason="this PyAV has no SVT-AV1")
def test_svtav1_leaves_the_scheduling_policy_unchanged(tmp_path: Path) -> None:
    """As root, SVT-AV1 sets SCHED_FIFO 99 for its threads and for the thread that opens it."""

    def policies() -> set[int]:
        policies = set()
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # the thread has just ended
                policies.add(os.sched_getscheduler(int(thread)))
        return policies

    before = policies()
    assert encoders.why_not.__wrapped__("svtav1") is None
    assert policies() == before
    sink = open_sink("video", tmp_path / "x.mp4", {"encoder": "svtav1"}, width=128, height=96)
    sink.write(texture(0), Detections.empty())
    assert policies() == before
    sink.abort()
    assert policies() == before


def test_encoder_x264_equals_the_default(tmp_path: Path) -> None:
    for name, options in (("a", {}), ("b", {"encoder": "x264"})):
        write(tmp_path / f"{name}.mp4", [texture(i) for i in range(6)], **options)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_error_for_a_refused_suffix_lists_the_suffixes_of_the_encoder() -> None:
    with pytest.raises(UsageError, match=r"\.ts .* \.mp4, \.m4v, \.mkv"):
        OutputPlan(OutputConfig(output="x.ts", encoder="svtav1"), ["in.mp4"])


@pytest.mark.parametrize("name", ["nvenc", "qsv"])
def test_missing_hardware_encoder_exits_6_immediately(name, tmp_path) -> None:
    if USABLE[name]:
        pytest.skip(f"machine: {name} works here")
    done = detect_video("--encoder", name, STREET, cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (6, [])
    assert done.stderr.startswith(f"detect-video: --encoder {name} ")
    with pytest.raises(OutputError, match=f"--encoder {name}"):
        OutputPlan(OutputConfig(encoder=name), ["in.mp4"])


@pytest.mark.parametrize(
    ("log_line", "cure"),
    [
        ("Cannot load libcuda.so.1", "an NVIDIA GPU and its driver"),
        ("Cannot load libnvidia-encode.so.1", "NVIDIA_DRIVER_CAPABILITIES"),
        ("OpenEncodeSessionEx failed: unsupported device (2): (no details)", "this GPU has no enc"),
        ("OpenEncodeSessionEx failed: out of memory (10): (no details)", "are taken"),
        ("No capable devices found", "no GPU here has an encoder"),
    ],
)
def test_nvenc_error_gives_the_reason_from_the_log(monkeypatch, log_line, cure) -> None:
    """FFmpeg's error is only "Operation not permitted", but its log has the driver's reason."""

    class Context:
        def open(self) -> None:
            captured.append((16, "h264_nvenc", f"{log_line}\n"))
            raise PermissionError(1, "Operation not permitted")

    captured: list[tuple[int, str, str]] = []
    monkeypatch.setattr(encoders.av.CodecContext, "create", lambda *_: Context())
    monkeypatch.setattr(encoders.av.logging, "Capture", lambda: nullcontext(captured))
    encoders.why_not.cache_clear()
    reason = encoders.why_not("nvenc")
    encoders.why_not.cache_clear()
    assert reason == f"FFmpeg cannot open h264_nvenc ({log_line})"
    assert cure in str(encoders.cure_of("nvenc", reason))


def test_encoder_that_writes_no_packet_is_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(open=lambda: None, encode=lambda picture: [])
    monkeypatch.setattr(encoders.av.CodecContext, "create", lambda *_: context)
    assert encoders.why_not.__wrapped__("nvenc") == "h264_nvenc wrote nothing"


def test_every_encoder_has_a_file_class_and_a_format() -> None:
    assert tuple(encoders.FILES) == ENCODERS
    assert {name for format in FORMATS.values() for name in format.encoders} == set(ENCODERS)


@pytest.mark.slow
def test_doctor_measures_the_speed_of_usable_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "ENCODERS", ("x264", "nvenc"))
    monkeypatch.setattr(
        encoders, "why_not", lambda name: None if name == "x264" else "FFmpeg cannot open it"
    )
    ticks = iter((10.0, 12.0))
    report = encoding.encoders(quick=False, clock=lambda: next(ticks))
    assert report["x264"] == {"usable": True, "reason": None, "fps": encoding.FRAMES / 2}
    assert not report["nvenc"]["usable"]
    assert "NVIDIA GPU" in report["nvenc"]["reason"]
    assert encoding.encoders(quick=True)["x264"]["fps"] is None
