"""SIGINT, SIGTERM and SIGHUP at random moments, one or two of them."""

from __future__ import annotations

import signal
from random import Random

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import NULL, content

ENDS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
LONGEST_S = 0.5  # some signals come after the run has ended


def make(random: Random) -> Case:
    sent = [random.choice(tuple(ENDS)) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    first = random.uniform(0.01, LONGEST_S)
    moments = [first + at * random.choice((0.001, 0.02, 0.2)) for at in range(len(sent))]
    files = {"long.mp4": content("long.mp4"), "dots.onnx": content("dots.onnx")}
    argv = [
        "long.mp4",
        *NULL,
        *random.choice(([], ["--sync"], ["--save", "video,csv,coco"], ["--json"])),
    ]
    codes = {0, *(ENDS[one] for one in sent)}
    return Case(
        files,
        tuple(argv),
        frozenset(codes),
        signals=tuple(zip(moments, map(int, sent), strict=True)),
        again=frozenset({0}),
    )


KIND = Kind("signals", make, share=1.5, first=60)
