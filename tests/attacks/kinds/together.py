"""Eight runs at once with the same outputs: at least one succeeds; the rest report an error."""

from random import Random

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import NULL, content

SHARED: tuple[tuple[str, ...], ...] = (
    (),
    ("-o", "x.mp4"),
    ("-o", "out/", "--save", "csv,coco,mot,yolo,jsonl"),
    ("--run-dir", "mine"),
    ("-o", "x.mp4", "--run-dir", "mine"),
    ("-o", "out/", "--save", "pictures,jsonl", "--run-dir", "mine"),
    ("--no-video", "--run-dir", "mine"),
)


def make(random: Random) -> Case:
    files = {"in.mp4": content("in.mp4"), "dots.onnx": content("dots.onnx")}
    argv = ("in.mp4", *NULL, *random.choice(SHARED))
    return Case(files, argv, frozenset({0, 6}), copies=8, one_of=0, again=frozenset({0}))


KIND = Kind("eight at once", make, share=0.3, first=10)
