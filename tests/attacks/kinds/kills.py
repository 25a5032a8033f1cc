"""SIGKILL at random moments: no partial file gets its final name, and the next run succeeds."""

import signal
from random import Random

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import NULL, content

OUTPUTS = ("video,jsonl", "csv,coco,mot", "pictures,jsonl", "yolo,video")


def make(random: Random) -> Case:
    files = {"long.mp4": content("long.mp4"), "dots.onnx": content("dots.onnx")}
    argv = ["long.mp4", *NULL, "--save", random.choice(OUTPUTS), "--run-dir", "mine"]
    latest_s = 0.5
    if random.random() < 0.15:  # a build writes its files earlier than a run
        argv, latest_s = ["build", "dots.onnx", "--engine", "null", *NULL[4:]], 0.1
    return Case(
        files,
        tuple(argv),
        frozenset({0, -9}),
        signals=((random.uniform(0.005, latest_s), int(signal.SIGKILL)),),
        again=frozenset({0}),
    )


KIND = Kind("kills", make, share=2, first=100)
