"""Damaged ONNX files of ``onnx_files.py``: its named cases, and random changes of real exports."""

from functools import cache
from random import Random

from tests.attacks import onnx_files
from tests.attacks.case import Case, Kind, Limits
from tests.attacks.inputs import ENGINES, content

CODES = frozenset({0, 2, 4})
LIMITS = Limits(cpu_s=40, memory_mb=3000)  # enough to refuse the huge models among the named cases


@cache
def _named() -> list[onnx_files.Files]:
    return [files for _, files in onnx_files.known()]


def make(random: Random) -> Case:
    if random.random() < 0.1:
        files = random.choice(_named())
    else:
        _, files = next(onnx_files.cases(random.randrange(2**32)))
    more = random.choice(
        ([], [], ["--family", "yolov8"], ["--size", "96"], ["--batch", "2"], ["--family", "yolox"])
    )
    if random.random() < 0.5:
        argv = ("models", "show", "m.onnx", "--json", *more)
        return Case(dict(files), argv, CODES, limits=LIMITS)
    argv = ("in.mp4", "--model", "m.onnx", "--engine", "null", *ENGINES, "--no-video", *more)
    return Case({**files, "in.mp4": content("in.mp4")}, argv, CODES, limits=LIMITS)


KIND = Kind("onnx", make, share=12)
