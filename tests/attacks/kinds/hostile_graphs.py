"""ONNX files of ``onnx_files.py``: damaged fields of sound exports, bombs, giants, circles."""

from __future__ import annotations

from functools import cache
from random import Random

from tests.attacks import onnx_files
from tests.attacks.case import Case, Kind, Limits

CODES = frozenset({0, 2, 4})
LIMITS = Limits(cpu_s=40, memory_mb=3000)  # of its giants, which are refused before that


@cache
def _known() -> list[onnx_files.Files]:
    return [files for _, files in onnx_files.known()]


def make(random: Random) -> Case:
    if random.random() < 0.15:
        files = random.choice(_known())
    else:
        _, files = next(onnx_files.cases(random.randrange(2**32)))
    more = random.choice(([], [], ["--batch", "2"], ["--size", "96"]))
    return Case(dict(files), ("models", "show", "m.onnx", "--json", *more), CODES, limits=LIMITS)


KIND = Kind("hostile graphs", make, share=6)
