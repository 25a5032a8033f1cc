"""One to three signals (SIGINT, SIGTERM or SIGHUP) at random moments."""

import signal
from random import Random

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import NULL, content

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
LONGEST_S = 0.5  # some signals come after the run has ended


def make(random: Random) -> Case:
    signals = [random.choice(tuple(EXIT_CODES)) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    first = random.uniform(0.01, LONGEST_S)
    moments = [first + at * random.choice((0.001, 0.02, 0.2)) for at in range(len(signals))]
    files = {"long.mp4": content("long.mp4"), "dots.onnx": content("dots.onnx")}
    argv = [
        "long.mp4",
        *NULL,
        *random.choice(([], ["--sync"], ["--save", "video,csv,coco"], ["--json"])),
    ]
    codes = {0, *(EXIT_CODES[number] for number in signals)}
    return Case(
        files,
        tuple(argv),
        frozenset(codes),
        signals=tuple(zip(moments, map(int, signals), strict=True)),
        again=frozenset({0}),
    )


KIND = Kind("signals", make, share=1.5, first=60)
