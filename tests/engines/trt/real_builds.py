"""Build the program's graphs with the real parser and builder of TensorRT for RTX.

``python -m tests.engines.trt.real_builds`` prints the table of docs/gpu.md. It builds the two plans
in ``PLANS`` for each graph and precision.
"""

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from detector.core.config.levels import merge_levels
from detector.core.engines.base import EngineOptions
from detector.core.engines.trt.build import build_plan
from detector.core.engines.trt.edition import RTX
from detector.core.errors import DetectVideoError
from detector.core.models.base import Network
from detector.core.run.prepare import convert_network
from tests.conftest import CHECKOUT
from tests.models import exports
from tests.models.test_onnx_levels import NANODET, YUNET, levels
from tests.networks import open_network

PRECISIONS = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "int8": "int8-s8"}
# Two plans of each graph: batch 1 for two compute capabilities, and batches 1 to 8 for any GPU.
PLANS = (("1", (1, 1), "8.6+12.0"), ("1..8", (1, 8), ""))
SEED = 3
SIDE = (192, 192)

MakeNetwork = Callable[[Path], Network]


@dataclass(frozen=True, slots=True)
class Built:
    graph: str
    precision: str
    batches: str
    targets: str
    seconds: float
    plan: bytes
    same_bytes: bool
    refusal: str | None


def _described(model: str, **options: object) -> MakeNetwork:
    return lambda folder: open_network(str(model), random_seed=SEED, **options)


def _exported(name: str, export: Callable[[], exports.Export], stated: bool = True) -> MakeNetwork:
    def make(folder: Path) -> Network:
        path = export().save(folder / f"{name}.onnx", exports.STATED if stated else None)
        return open_network(path)

    return make


YOLO, DARKNET = CHECKOUT / "cfg/yolo", CHECKOUT / "cfg/darknet"
TWO_NAMES = str(CHECKOUT / "cfg/names/person-vehicle.names")
NAMES = str(CHECKOUT / "cfg/names/coco.names")
GRAPHS: dict[str, MakeNetwork] = {
    "street": lambda folder: open_network("street"),
    "street-1": lambda folder: open_network("street-1"),
    "yolov4-tiny": _described(DARKNET / "yolov4-tiny.cfg", names=NAMES, size=SIDE),
    "yolov4-tiny-person-vehicle": _described(
        DARKNET / "yolov4-tiny-person-vehicle.cfg", names=TWO_NAMES, size=SIDE
    ),
    **{
        name: _described(YOLO / f"{name}.yaml", names=NAMES, size=SIDE)
        for name in ("yolov5n", "yolov5n6", "yolov5s-5.0", "yolov7-tiny")
    },
    **{
        name: _exported(name, export)
        for name, export in {
            "yolov5-export": exports.decoded,
            "yolov8-export": exports.anchor_free,
            "yolov8-rows-export": lambda: exports.anchor_free(rows=True),
            "yolov10-export": exports.best_cells,
            "yolo26-export": exports.finished,
            "yolov4-export": exports.corners,
            "detr-export": exports.queries,
            "rtdetr-export": lambda: exports.queries(joined=True),
            "yolov6-nms-export": exports.parts,
            "nms-inside-export": exports.nms_inside,
        }.items()
    },
    "yolox_nano-export": _exported("yolox_nano", exports.yolox, stated=False),
    "yolox_s-decoded-export": _exported("yolox_s", lambda: exports.yolox(True), stated=False),
    "nanodet-levels-export": _exported("m", lambda: levels(NANODET), stated=False),
    "yunet-levels-export": _exported(
        "face", lambda: levels(YUNET, pixels="convolved", scale=1 / 255), stated=False
    ),
}


def build(name: str, precision: str, folder: Path, times: int = 1) -> Iterator[Built]:
    """Build every plan of a graph in a precision. Repeat this ``times`` times to compare the bytes.

    Bytes may differ, since the library orders the layers of parallel branches at random.
    """
    network = GRAPHS[name](folder)
    pictures = _pictures(folder)
    config = merge_levels(
        ("real builds", {"engines_dir": str(folder / "engines"), "calibrate": str(pictures)})
    )
    for text, (low, high), targets in PLANS:
        began, target, refusal, digests = time.perf_counter(), folder / "x.plan", None, []
        own = {"min_batch": str(low), "max_batch": str(high)} if low != high else {}
        own |= {"targets": targets} if targets else {}
        options = EngineOptions(precision=precision, own=own)
        try:
            converted, _ = convert_network(network, PRECISIONS[precision], config, folder)
            for _ in range(times):
                began = time.perf_counter()
                build_plan(RTX, converted, options, target, lambda *_: True)
                digests.append(hashlib.sha256(target.read_bytes()).hexdigest())
        except DetectVideoError as error:
            refusal = str(error)
        seconds = time.perf_counter() - began
        plan = b"" if refusal else target.read_bytes()
        same = len(set(digests)) == 1
        yield Built(name, precision, text, targets or "any", seconds, plan, same, refusal)


def _pictures(folder: Path) -> Path:
    place = folder / "pictures"
    place.mkdir(exist_ok=True)
    random = np.random.default_rng(SEED)
    for at in range(2):
        cv2.imwrite(str(place / f"{at}.png"), random.integers(0, 255, (240, 320, 3), np.uint8))
    return place


def print_table() -> None:
    """Print a row per graph with the seconds and MB of both plans in each precision."""
    rows, refusals = [], list[str]()
    print(f"| graph | {' | '.join(PRECISIONS)} |")
    print(f"|---|{'---|' * len(PRECISIONS)}")
    with tempfile.TemporaryDirectory() as place:
        for name in GRAPHS:
            cells = []
            for precision in PRECISIONS:
                folder = Path(place, name, precision)
                folder.mkdir(parents=True)
                plans = list(build(name, precision, folder, times=2))
                cells.append(", ".join(_cell(row, refusals) for row in plans))
                rows += plans
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    for number, refusal in enumerate(refusals, 1):
        print(f"{number}. {refusal}")
    built = [row for row in rows if row.refusal is None]
    same = sum(row.same_bytes for row in built)
    print(
        f"\n{len(GRAPHS)} graphs, {len(rows)} plans: {len(built)} built, "
        f"{len(rows) - len(built)} refused; {same} of {len(built)} had the same bytes both times"
    )


def _cell(row: Built, refusals: list[str]) -> str:
    if row.refusal is None:
        return f"{row.seconds:.1f} s {len(row.plan) / 1e6:.1f} MB"
    text = row.refusal.replace(row.graph, "NAME")
    if text not in refusals:
        refusals.append(text)
    return f"refused ({refusals.index(text) + 1})"


if __name__ == "__main__":
    print_table()
