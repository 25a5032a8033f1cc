"""--encoder: AV1 by SVT-AV1 for real; encoders of chips as far as a machine without them tells."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from probing import brightness, decode, make_frame, make_info, probe

from detector.core import sinks
from detector.core.config.schema import ENCODERS, OutputConfig
from detector.core.errors import OutputError, UsageError
from detector.core.jobs.doctor import encoding
from detector.core.run.outputs import OutputPlan
from detector.core.sinks.video import FORMATS, encoders
from detector.core.types import Detections, Frame
from tests.cli.command import detect_video

STREET = Path(__file__).parents[2] / "videos/street.mp4"
HERE = {name: encoders.why_not(name) is None for name in ENCODERS}


def write(path: Path, frames: list[Frame], **options: Any) -> sinks.Sink:
    sink = sinks.open("video", path, **options)
    sink.open(make_info(width=128, height=96))
    for frame in frames:
        sink.write(frame, Detections.empty())
    sink.close()
    return sink


def texture(number: int) -> Frame:
    noise = np.random.default_rng(2).integers(0, 64, (96, 256), np.uint8)
    image = np.repeat(noise[:, 2 * number : 2 * number + 128, None], 3, 2)
    return Frame(number, number * 512, number / 25, np.ascontiguousarray(image))


@pytest.mark.slow
@pytest.mark.skipif(not HERE["svtav1"], reason="this PyAV has no SVT-AV1")
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_av1_holds_every_frame_in_order(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    frames = [make_frame(i, size=(96, 128)) for i in range(16)]
    write(path, frames, encoder="svtav1")
    (stream,) = probe(path)["streams"]
    assert (stream["codec_name"], stream["width"], stream["height"]) == ("av1", 128, 96)
    means = [float(picture.mean()) for picture in decode(path, 128, 96)]
    assert means == pytest.approx([brightness(i) for i in range(16)], abs=4)


@pytest.mark.slow
@pytest.mark.skipif(not HERE["svtav1"], reason="this PyAV has no SVT-AV1")
def test_quality_and_crf_decide_the_size_of_av1(tmp_path: Path) -> None:
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


@pytest.mark.skipif(not HERE["svtav1"], reason="this PyAV has no SVT-AV1")
def test_no_thread_becomes_a_real_time_one(tmp_path: Path) -> None:
    """As root, SVT-AV1 takes SCHED_FIFO at 99, for itself and for the thread that opens it."""

    def policies() -> set[int]:
        found = set()
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has just ended
                found.add(os.sched_getscheduler(int(thread)))
        return found

    before = policies()
    assert encoders.why_not.__wrapped__("svtav1") is None
    assert policies() == before
    sink = sinks.open("video", tmp_path / "x.mp4", encoder="svtav1")
    sink.open(make_info(width=128, height=96))
    sink.write(texture(0), Detections.empty())
    assert policies() == before
    sink.abort()
    assert policies() == before


def test_encoder_x264_equals_the_default(tmp_path: Path) -> None:
    for name, options in (("a", {}), ("b", {"encoder": "x264"})):
        write(tmp_path / f"{name}.mp4", [texture(i) for i in range(6)], **options)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_the_message_names_what_can_be_written() -> None:
    with pytest.raises(UsageError, match=r"\.ts .* \.mp4, \.m4v, \.mkv"):
        OutputPlan(OutputConfig(output="x.ts", encoder="svtav1"), ["in.mp4"])


@pytest.mark.parametrize("name", ["nvenc", "qsv"])
def test_missing_hardware_encoder_exits_6_at_once(name, tmp_path) -> None:
    if HERE[name]:
        pytest.skip(f"machine: {name} runs here")
    done = detect_video("--encoder", name, STREET, cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (6, [])
    assert done.stderr.startswith(f"detect-video: --encoder {name} ")
    with pytest.raises(OutputError, match=f"--encoder {name}"):
        OutputPlan(OutputConfig(encoder=name), ["in.mp4"])


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("Cannot load libcuda.so.1", "an NVIDIA GPU and its driver"),
        ("Cannot load libnvidia-encode.so.1", "NVIDIA_DRIVER_CAPABILITIES"),
        ("OpenEncodeSessionEx failed: unsupported device (2): (no details)", "this GPU has no enc"),
        ("OpenEncodeSessionEx failed: out of memory (10): (no details)", "are taken"),
        ("No capable devices found", "no GPU here has an encoder"),
    ],
)
def test_nvencs_refusal_says_the_true_reason(monkeypatch, said, word) -> None:
    """FFmpeg's error is "Operation not permitted"; its log says what the driver lacks."""

    class Context:
        def open(self) -> None:
            captured.append((16, "h264_nvenc", f"{said}\n"))
            raise PermissionError(1, "Operation not permitted")

    captured: list[tuple[int, str, str]] = []
    monkeypatch.setattr(encoders.av.CodecContext, "create", lambda *_: Context())
    monkeypatch.setattr(encoders.av.logging, "Capture", lambda: nullcontext(captured))
    encoders.why_not.cache_clear()
    reason = encoders.why_not("nvenc")
    encoders.why_not.cache_clear()
    assert reason == f"FFmpeg cannot open h264_nvenc ({said})"
    assert word in str(encoders.cure_of("nvenc", reason))


def test_an_encoder_without_a_packet_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(open=lambda: None, encode=lambda picture: [])
    monkeypatch.setattr(encoders.av.CodecContext, "create", lambda *_: context)
    assert encoders.why_not.__wrapped__("nvenc") == "h264_nvenc wrote nothing"


def test_every_encoder_has_a_file_and_a_format() -> None:
    assert tuple(encoders.FILES) == ENCODERS
    assert {name for format in FORMATS.values() for name in format.encoders} == set(ENCODERS)


@pytest.mark.slow
def test_doctor_times_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "ENCODERS", ("x264", "nvenc"))
    monkeypatch.setattr(
        encoders, "why_not", lambda name: None if name == "x264" else "FFmpeg cannot open it"
    )
    ticks = iter((10.0, 12.0))
    found = encoding.encoders(quick=False, clock=lambda: next(ticks))
    assert found["x264"] == {"usable": True, "reason": None, "fps": encoding.FRAMES / 2}
    assert not found["nvenc"]["usable"]
    assert "NVIDIA GPU" in found["nvenc"]["reason"]
    assert encoding.encoders(quick=True)["x264"]["fps"] is None
