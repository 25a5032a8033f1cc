"""Runs of real engines in new processes, on damaged and on valid models."""

import struct
from importlib.util import find_spec
from random import Random

from tests.attacks.case import Case, Kind, Limits
from tests.attacks.inputs import CFG, ENGINES, content
from tests.attacks.kinds import onnx_graphs
from tests.attacks.mutate import damage

HEADER = 20  # bytes at the start of a .weights file. The 16 floats of CFG's batch norm follow.
NORM = HEADER + 4 * 16
FLOATS = (0.0, -0.0, 1e-45, -1.0, 1e30, -3e38, float("inf"), float("-inf"), float("nan"))
NAMES = {"ort": "onnxruntime", "openvino": "openvino", "torch": "torch"}
CODES = frozenset({0, 2, 4, 5, 7})


def make(random: Random) -> Case:
    here = [name for name, library in NAMES.items() if find_spec(library)]
    engine = random.choice(("ort", "ort", *here)) if here else "null"
    files = {"in.mp4": content("in.mp4"), "m.cfg": CFG.encode()}
    if random.random() < 0.6:
        files["m.onnx"] = onnx_graphs.make(random).files["m.onnx"]  # type: ignore[assignment]
        model = "m.onnx"
    else:
        files["m.weights"] = _damage_weights(random, content("small.weights"))
        model = "m.cfg"
    if random.random() < 0.2:
        files["m.onnx"], model = content("dots.onnx"), "m.onnx"
    more = random.choice(
        ([], ["--batch", "2"], ["--threads", "1"], ["--json"], ["--precision", "fp16"])
    )
    argv = (
        "in.mp4",
        "--model",
        model,
        "--engine",
        engine,
        *ENGINES,
        "--no-video",
        "--frames",
        "2",
        *more,
    )
    return Case(
        files,
        argv,
        CODES,
        limits=Limits(wall_s=120, cpu_s=60, memory_mb=3000, address_space_mb=None),
        fresh=True,
    )


def _damage_weights(random: Random, weights: bytes) -> bytes:
    """In a third of the cases, damage random bytes: most such files are refused. In the other
    cases, set extreme weights but keep the batch norm: the file is valid, so the engine gets it."""
    if random.random() < 1 / 3:
        return weights[:HEADER] + damage(random, weights[HEADER:])
    changed = bytearray(weights)
    for _ in range(random.choice((1, 3, 40))):
        at = NORM + 4 * random.randrange((len(weights) - NORM) // 4)
        changed[at : at + 4] = struct.pack("<f", random.choice(FLOATS))
    return bytes(changed)


KIND = Kind("engines", make, share=0.4, first=20)
