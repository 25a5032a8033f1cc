"""A disk that gets full: a run exits with 0, or with 6 and a message; it leaves no partial file."""

from random import Random

from tests.attacks.case import Case, Kind, Limits
from tests.attacks.inputs import NULL, content

OUTPUTS = ("video,jsonl", "csv,coco,mot", "pictures,jsonl", "yolo,video", "jsonl")


def make(random: Random) -> Case:
    files = {"in.mp4": content("in.mp4"), "dots.onnx": content("dots.onnx")}
    argv = ["in.mp4", *NULL, "--save", random.choice(OUTPUTS)]
    if random.random() < 0.3:  # the folder of engine files is on the full disk, too
        argv[argv.index("../engines")] = "engines"
    needed = sum(len(data) for data in files.values())
    if random.random() < 0.7:
        pages = needed // 4096 + 10 + random.randrange(40)
        limits = Limits(disk_bytes=4096 * pages)
    else:
        limits = Limits(file_bytes=random.choice((0, 1, 500, random.randrange(40000))))
    return Case(files, tuple(argv), frozenset({0, 6}), limits=limits, again=frozenset({0}))


KIND = Kind("full disks", make, share=1, first=40)
