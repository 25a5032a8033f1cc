"""Inputs of the recorded command lines. Each maker writes a file or folder with fixed content.

The network ``dots.onnx`` returns three fixed boxes. It computes their scores from the picture's
largest red, green and blue values, so the scores are equal on every CPU. The .mkv clips are
lossless and flat in colour, so their decoded pixels are equal, too.
"""

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from tests.models import exports
from tests.networks import cfg_text

CHECKOUT = Path(__file__).parents[2]
SIDE, CELLS = 64, 84  # side of the input in pixels; number of cells at strides 8, 16 and 32
BOXES = ((20, 30, 10, 20), (21, 30, 10, 20), (44, 20, 16, 8))  # cx, cy, w, h; the first two overlap
WEIGHTS = ((1.0, 0.5, 0.25), (0.25, 0.9, 0.25), (0.1, 0.1, 0.8))  # weights of red, green, blue


def put(name: str, folder: Path) -> None:
    """Put the input NAME into FOLDER: copy a path from the checkout, or make the file."""
    if "/" in name:
        shutil.copy(CHECKOUT / name, folder)
    else:
        MAKERS[name](folder / name)


def scene(at: int) -> NDArray[np.uint8]:
    """Return frame AT, BGR 96x64: a flat background that changes and a flat square that moves."""
    image = np.zeros((64, 96, 3), np.uint8)
    image[:, :] = (40 + at * 8, 90, 200 - at * 4)
    image[8:24, 4 * at : 4 * at + 16] = (250 - at * 5, 255 - at * 10, 30)
    return image


def clip(
    path: Path, codec: str = "ffv1", pixels: str = "bgr0", frames: int = 20, **options: str
) -> None:
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, pixels
        for at in range(frames):
            frame = av.VideoFrame.from_ndarray(scene(at % 20), format="bgr24").reformat(
                format=pixels
            )
            frame.pts, frame.time_base = at, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def without_end(path: Path, share: float, **options: str) -> None:
    whole = path.with_name(f"whole-{path.name}")
    clip(whole, "mpeg4", "yuv420p", 60, **options)
    path.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * share)])
    whole.unlink()


def sound(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        for at in range(8):
            frame = av.AudioFrame.from_ndarray(
                np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
            )
            frame.sample_rate, frame.pts = 8000, at * 1024
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def picture(path: Path, at: int = 0, size: tuple[int, int] = (96, 64)) -> None:
    image = cv2.resize(scene(at), size, interpolation=cv2.INTER_NEAREST)
    assert cv2.imwrite(str(path), image)


def pictures(path: Path) -> None:
    path.mkdir()
    for at, size in enumerate([(96, 64), (64, 64), (240, 120), (128, 192)]):
        picture(path / f"{at}.png", 4 * at, size)


def dots(path: Path) -> None:
    """Write a network with YOLOv8's output layout, [1, 4 + 3, cells]."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    boxes, weights = np.zeros((1, CELLS, 4), np.float32), np.zeros((1, CELLS, 3), np.float32)
    boxes[0, :3], weights[0, :3] = BOXES, WEIGHTS
    constants = {
        "shape": np.array([-1, 1, 3], np.int64),
        "zero": np.zeros((1, 1, 1), np.float32),
        "boxes": boxes,
        "weights": weights,
        "first": np.array([0], np.int64),
        "second": np.array([1], np.int64),
        "last": np.array([2], np.int64),
    }
    nodes = [
        helper.make_node(operator, inputs, [output], name=f"/{output}", **attributes)
        for operator, inputs, output, attributes in [
            ("GlobalMaxPool", ["images"], "largest", {}),
            ("Reshape", ["largest", "shape"], "colours", {}),
            ("Mul", ["colours", "weights"], "scores", {}),
            ("Slice", ["colours", "first", "second", "last"], "red", {}),
            ("Mul", ["red", "zero"], "nothing", {}),
            ("Add", ["nothing", "boxes"], "table", {}),
            ("Concat", ["table", "scores"], "both", {"axis": 2}),
            ("Transpose", ["both"], "output0", {"perm": [0, 2, 1]}),
        ]
    ]
    graph = helper.make_graph(
        nodes,
        "dots",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 7, CELLS])],
        initializer=[numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="pytorch")
    facts = {"names": "{0: 'red', 1: 'green', 2: 'blue'}", "stride": "32", "task": "detect"}
    helper.set_model_props(model, facts)
    onnx.save(model, str(path))


def half_of_dots(path: Path) -> None:
    dots(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def street_weights(path: Path) -> None:
    """Write the packaged weights of ``street`` in darknet's format: floats, not half floats."""
    data = (CHECKOUT / "cfg/weights/street.f16").read_bytes()
    path.write_bytes(data[:20] + np.frombuffer(data, "<f2", offset=20).astype("<f4").tobytes())


def cells(path: Path) -> None:
    from detector.core.models.formats.yolo.blocks import Design
    from detector.core.models.formats.yolo.description import parse_description
    from tests.checkpoints import saved, whole_model
    from tests.models.plain_yolo import random_tensors

    rows = {
        "backbone": [[-1, 1, "Conv", [8, 7, 8]]],
        "head": [[[-1], 1, "Detect", ["nc", "anchors"]]],
    }
    description = {"nc": 3, "anchors": [[12, 18]], **rows}
    tensors = random_tensors(Design(parse_description(description, "t")).architecture(64, 64))
    tensors["model.1.m.0.weight"] *= 20
    model = whole_model(tensors, description, names=["red", "green", "blue"])
    saved(path, {"model": model, "epoch": 1})


def labels(path: Path) -> None:
    """Write COCO labels of ``pictures``: boxes that are detected, missed, or nearly detected."""
    images = [
        {"id": at, "file_name": f"{at}.png", "width": w, "height": h}
        for at, w, h in [(0, 96, 64), (1, 64, 64), (2, 240, 120)]
    ]
    boxes = [
        (0, 1, [22.5, 14, 15, 30]),
        (1, 1, [15, 20, 10, 20]),
        (1, 3, [36, 17, 16, 8]),
        (2, 2, [5, 5, 40, 40]),
    ]
    annotations = [
        {
            "id": number,
            "image_id": image,
            "category_id": kind,
            "bbox": box,
            "area": box[2] * box[3],
            "iscrowd": 0,
        }
        for number, (image, kind, box) in enumerate(boxes, 1)
    ]
    categories = [
        {"id": number, "name": name} for number, name in enumerate(["red", "green", "blue"], 1)
    ]
    path.write_text(
        json.dumps({"images": images, "categories": categories, "annotations": annotations})
    )


def found(path: Path) -> None:
    rows = [
        (0, 1, [22.5, 15, 15, 30], 0.9),
        (1, 1, [15, 20, 10, 20], 0.8),
        (1, 3, [1, 1, 5, 5], 0.7),
    ]
    path.write_text(
        json.dumps(
            [
                {"image_id": image, "category_id": kind, "bbox": box, "score": score}
                for image, kind, box, score in rows
            ]
        )
    )


CFG = cfg_text(
    "net width=64 height=64 channels=3",
    "convolutional batch_normalize=1 filters={filters} size=3 stride=32 pad=1 activation=leaky",
    "convolutional filters=21 size=1 stride=1 activation=linear",
    "yolo mask=0,1,2 anchors=10,14,23,27,37,58 classes=2 num=3",
)

MAKERS: dict[str, Callable[[Path], object]] = {
    "clip.mkv": clip,
    "second.mkv": lambda path: clip(path, frames=5),
    "one.png": picture,
    "pictures": pictures,
    "dots.onnx": dots,
    "half.onnx": half_of_dots,
    "yolox.onnx": lambda path: exports.yolox().save(path, exports.STATED),
    "cells.pt": cells,
    "street.weights": street_weights,
    "street.names": lambda path: path.write_text("person\nvehicle\n"),
    "labels.json": labels,
    "found.json": found,
    "short.mp4": lambda path: without_end(path, 0.6, movflags="faststart"),
    "headless.mp4": lambda path: without_end(path, 0.6),
    "sound.mp4": sound,
    "text.mp4": lambda path: path.write_text("no video\n" * 20),
    "good.cfg": lambda path: path.write_text(CFG.format(filters=8)),
    "bad.cfg": lambda path: path.write_text(CFG.format(filters="eight")),
    "two.names": lambda path: path.write_text("person\nvehicle\n"),
    "options.yaml": lambda path: path.write_text("batch: 2\nconf: 0.5\nframes: 4\n"),
    "unknown.yaml": lambda path: path.write_text("confidance: 0.5\n"),
    "not-a-tree.yaml": lambda path: path.write_text("[: no\n"),
}
