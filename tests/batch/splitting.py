"""Tools for ``scripts/split_check`` and for tests of detection in parts of a video: clips, a model
whose detections depend on every pixel, and functions that read outputs."""

import subprocess
import zlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from detector.batch.join import Joined, join_parts
from detector.batch.part import detect_part
from detector.batch.split import Part, SplitPlan, plan_parts
from detector.core.config.schema import Config, InputConfig, OutputConfig, RuntimeConfig
from detector.core.engines.base import EngineOptions
from detector.core.engines.null import NullEngine, NullRequest
from detector.core.models.base import InputRules, Network
from detector.core.run.detect import run_opened
from detector.core.run.loading import LoadedModel
from detector.core.run.plan import PlanDraft
from detector.core.sources.video._container import demux
from detector.core.types import Candidates
from tests.conftest import CHECKOUT

WIDTH, HEIGHT = 96, 64
SIDES = (32, 48)  # sides of the model's input


# ----------------------------------------------------------------------
# A model whose detections depend on all pixels of a picture and of earlier pictures in the batch.


class ChecksumRequest(NullRequest):
    def infer(self, n: int) -> list[NDArray[np.float32]]:
        """Return [n, 4]: CRC-32s of each picture and of the batch up to it, in 16-bit halves."""
        rows, values, so_far = self.slot[:n], [], n
        for row in rows:
            own = zlib.crc32(row.tobytes())
            so_far = zlib.crc32(row.tobytes(), so_far)
            values.append([own & 0xFFFF, own >> 16, so_far & 0xFFFF, so_far >> 16])
        return [np.array(values, np.float32)]


class ChecksumEngine(NullEngine):
    def __init__(self, network: Network, options: EngineOptions) -> None:
        self.requests = [ChecksumRequest(network) for _ in range(options.requests)]
        self.concurrency = options.concurrency or 1


def _boxes_from(outputs: list[NDArray[np.float32]], conf: float) -> Candidates:
    """Return zero to three boxes at pseudo-random positions."""
    values = outputs[0][0].astype(np.int64)
    height, width = SIDES
    boxes, scores, ids = [], [], []
    for number in range(int(values[0]) % 4):
        shifted = [int(value) >> number for value in values]
        x1, y1 = shifted[0] % 997 / 997 * (width - 8), shifted[1] % 991 / 991 * (height - 8)
        boxes.append([x1, y1, x1 + 2 + shifted[2] % 60 / 10, y1 + 2 + shifted[3] % 60 / 10])
        scores.append(0.3 + shifted[2] % 1000 / 2000)
        ids.append(shifted[3] % 3)
    return Candidates(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        np.array(ids, np.int64),
    )


def checksum_model(batch: int = 1) -> LoadedModel:
    from onnx import ModelProto

    network = Network(
        name="telling",
        family="test",
        graph=ModelProto(),
        input=InputRules(*SIDES, "stretch", 1),
        batch=batch,
        output_shapes=[(batch, 4)],
        head=_boxes_from,
        dense=lambda outputs: outputs[0],
        names=("person", "vehicle", 'a "quoted", name'),
        needs_nms=False,
    )
    engine = ChecksumEngine(network, EngineOptions(batch=batch, requests=3, concurrency=2))
    return LoadedModel(network, engine, None, [])


# ----------------------------------------------------------------------
# Clips.


def picture(number: int, width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """Return u8 RGB [h, w, 3]: a square that moves over drifting noise, so that encoders predict
    pictures from each other, and all pictures differ."""
    noise = np.random.default_rng(7).integers(0, 120, (height, width, 3), dtype=np.uint8)
    image = np.roll(noise, (number, 2 * number), (0, 1))
    left = 5 * number % (width - 16)
    image[8:24, left : left + 16] = 255 - number % 128
    return image


def write_clip(
    path: Path,
    times: Sequence[int] | int = 60,
    codec: str = "libx264",
    *,
    sound: bool = False,
    base: Fraction = Fraction(1, 1000),
    **options: str,
) -> Path:
    """Write a frame at each of ``times`` (in ticks of ``base``), or ``times`` frames at 25 FPS.
    Every 12th frame is a key frame unless the encoder's ``options`` say otherwise."""
    if isinstance(times, int):
        times = [round(number * Fraction(1, 25) / base) for number in range(times)]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.time_base = stream.codec_context.time_base = base
        stream.options = {"threads": "1", "g": "12", **options}
        tone = container.add_stream("aac", rate=16000, layout="mono") if sound else None
        container.start_encoding()
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24")
            frame.pts, frame.time_base = time, base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if tone is not None:
            _write_tone(container, tone, float(times[-1] * base))
    return path


def _write_tone(container: Any, stream: Any, seconds: float) -> None:
    for number in range(int(seconds * 16000 / 1024) + 1):
        at = np.arange(number * 1024, (number + 1) * 1024) / 16000
        samples = np.sin(2 * np.pi * (300 + 40 * at) * at).astype(np.float32)[None] / 2
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 16000, number * 1024
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def make_long_video(
    path: Path, seconds: float, width: int, gop: int, *, open_gop: bool = True
) -> Path:
    """Loop a real clip. Add a tone, and a moving dot that makes the repetitions differ."""
    gop_options = "open-gop=1:scenecut=0" if open_gop else "scenecut=40"
    clip = str(CHECKOUT / "videos" / "street.mp4")
    command = ["ffmpeg", "-v", "error", "-nostdin", "-y", "-stream_loop", "-1", "-i", clip]
    command += ["-f", "lavfi", "-i", "aevalsrc=0.4*sin(2*PI*(300+t)*t):s=32000"]
    dot = f"color=white:s=8x8[dot];[0:v]scale={width}:-2[in];[in][dot]overlay=x=mod(n\\,W):y=0"
    command += ["-filter_complex", f"{dot}:shortest=1[out]", "-map", "[out]", "-map", "1:a"]
    command += ["-t", str(seconds), "-c:v", "libx264", "-preset", "veryfast", "-g", str(gop)]
    command += ["-bf", "3", "-x264-params", gop_options, "-c:a", "aac"]
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, str(path)], check=True)
    return path


# ----------------------------------------------------------------------
# Single runs, and runs in parts.


def make_config(
    *save: str, batch: int = 1, only_detections: bool = False, **options: Any
) -> Config:
    return Config(
        runtime=RuntimeConfig(engine="null", batch=batch),
        input=InputConfig(**options),
        output=OutputConfig(save=save, only_detections=only_detections),
    )


def run_whole(path: Path, config: Config, loaded: LoadedModel, folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True)
    run = run_opened(str(path), PlanDraft.of(config).complete(loaded), folder)
    if run.error is not None:
        raise run.error
    return {name: Path(written) for name, written in run.outputs.items()}


def run_parts(
    path: Path,
    config: Config,
    loaded: LoadedModel,
    folder: Path,
    parts: Sequence[Part],
    names: dict[str, Path],
) -> Joined:
    folders = [folder / f"part-{part.number}" for part in parts]
    for part, place in reversed(list(zip(parts, folders, strict=True))):
        detect_part(str(path), config, loaded, part, place)
    (folder / "joined").mkdir()
    paths = {name: folder / "joined" / file.name for name, file in names.items()}
    return join_parts(str(path), config, parts, folders, paths)


def plan(path: Path, config: Config, most: int = 3, least_s: float = 0.0) -> SplitPlan:
    return plan_parts(str(path), config, most, least_s=least_s)


def split_at_every_gop(path: Path, config: Config) -> SplitPlan:
    return plan(path, config, most=1 << 20)


# ----------------------------------------------------------------------
# Outputs to compare.


def read_all(path: Path) -> bytes | dict[str, bytes]:
    if path.is_dir():
        return {
            str(file.relative_to(path)): file.read_bytes()
            for file in sorted(path.rglob("*"))
            if file.is_file()
        }
    return path.read_bytes()


def read_packets(path: Path, kind: str = "video") -> list[tuple[Any, ...]]:
    with av.open(str(path)) as container:
        streams = getattr(container.streams, kind)
        if not streams:
            return []
        return [
            (packet.pts, packet.dts, packet.duration, packet.is_keyframe, bytes(packet))
            for packet in demux(container, streams[0])
            if packet.size
        ]


def stamps_of(path: Path) -> list[int]:
    return sorted(packet[0] for packet in read_packets(path))


def decode_all(path: Path) -> tuple[list[tuple[int, NDArray[np.uint8]]], list[str]]:
    av.logging.set_level(av.logging.WARNING)
    try:
        with av.logging.Capture() as log, av.open(str(path)) as container:
            frames = [
                (frame.pts, frame.to_ndarray(format="gray")) for frame in container.decode(video=0)
            ]
    finally:
        av.logging.set_level(None)
    return frames, [message for _, _, message in log]
