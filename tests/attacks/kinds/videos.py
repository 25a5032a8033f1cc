"""Damaged videos in ten container formats, read by each decoder, with various outputs."""

import struct
from random import Random

from tests.attacks.case import Case, Kind, Limits
from tests.attacks.inputs import CLIPS, NULL, content
from tests.attacks.mutate import damage

CODES = frozenset({0, 3, 7})


def make(random: Random) -> Case:
    name = random.choice(tuple(CLIPS))
    others = [content(other) for other in random.sample(tuple(CLIPS), 2)]
    data = damage(random, content(name), others)
    suffix = name.rpartition(".")[2]
    if random.random() < 0.1:  # a suffix that may contradict the content
        suffix = random.choice(("mp4", "mkv", "avi", "ts", "gif", "mov", "webm", "flv"))
    argv, codes = [f"in.{suffix}", *NULL], set(CODES)
    argv += ["--decoder", random.choice(("auto", "auto", "av", "opencv"))]
    if random.random() < 0.6:
        saved = random.choice(("jsonl", "csv", "coco", "mot,yolo", "overlay", "overlay,player"))
        argv += ["--save", saved]
        codes |= {2} if "overlay" in saved else set()  # refused if the video cannot be copied
    argv += random.choice(([], ["--json"], ["--sync"], ["--batch", "3"], ["--stride", "2"]))
    return Case(
        {f"in.{suffix}": data, "dots.onnx": content("dots.onnx")},
        tuple(argv),
        frozenset(codes),
        limits=Limits(memory_mb=1500 + _memory_mb(data)),
    )


def _memory_mb(data: bytes) -> int:
    """Return the megabytes that a GIF's frames need: per pixel, 3 bytes for each of five frames in
    flight, and 8 bytes for the decoder. Damage can enlarge the GIF's screen, and so each frame, to
    16384x16384."""
    if not data.startswith(b"GIF8") or len(data) < 10:
        return 0
    width, height = struct.unpack_from("<HH", data, 6)
    return min(width * height, 1 << 28) * 23 // 10**6


KIND = Kind("videos", make, share=20)
