"""Detectors with an output per stride, compared with plain arithmetic or OpenCV."""

import cv2
import numpy as np
import onnxruntime
import pytest

from detector import Detector
from detector.core.errors import ModelError
from tests.models.exports import SIDE, Export
from tests.models.test_onnx_evidence import described
from tests.networks import need_engine, open_network, refusal

MEAN, DEVIATION = np.array([103.53, 116.28, 123.675]), np.array([57.375, 57.12, 58.395])
IMAGENET = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def convolve(export: Export, x: str, inputs: int, outputs: int, stride: int) -> str:
    weights = export.const(np.random.default_rng(outputs).normal(0, 0.1, (outputs, inputs, 3, 3)))
    sides = {"kernel_shape": [3, 3], "strides": [stride, stride], "pads": [1, 1, 1, 1]}
    return export.add("Conv", x, weights, **sides)


def pyramid(export: Export, levels: int) -> list[str]:
    """Return maps [1, 8, h, w] of strides 8, 16 ..."""
    x, maps = export.picture, []
    for at in range(levels + 2):
        x = export.add("Relu", convolve(export, x, 8 if at else 3, 8, 2))
        maps.append(x)
    return maps[2:]


def levels(heads, strides=(8, 16, 32), anchors=1, form="rows", gain=1, **more):
    """Make outputs. ``heads``: an output's name, without its stride -> number of columns, and last
    operator. ``form``: for each stride an output "rows" [1, N, columns], "flat" [N, columns] or
    "maps" [1, channels, H, W], or "joined": one output [1, N, columns] for all strides."""
    export = Export(opset=11, **more)
    maps = pyramid(export, len(strides))
    for name, (columns, last) in heads.items():
        each = []
        for x, stride, count in zip(
            maps, strides, np.broadcast_to(anchors, len(maps)), strict=True
        ):
            x = convolve(export, x, 8, columns * count, 1)
            x = export.add(last, x) if last else x
            x = x if gain == 1 else export.add("Mul", x, export.const([gain]))
            if form != "maps":
                x = export.add("Transpose", x, perm=[0, 2, 3, 1])
                sides = [-1, columns] if form == "flat" else [1, -1, columns]
                x = export.add("Reshape", x, export.const(sides, np.int64))
            each.append(x)
            if form != "joined":
                export.out(f"{name}{stride}", x)
        if form == "joined":
            export.out(name, export.add("Concat", *each, axis=1))
    return export


def noise(side=SIDE) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (side, side, 3), np.uint8)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_distances(boxes, scores, strides, *, bins=1, centre=0.0, anchors=1):
    found = []
    for box, score, stride in zip(boxes, scores, strides, strict=True):
        for row in range(len(box)):
            cell = row // anchors
            y, x = divmod(cell, SIDE // stride)
            sides = box[row].reshape(4, bins)
            sides = softmax(sides) @ np.arange(bins) if bins > 1 else sides[:, 0]
            left, top, right, bottom = sides
            corners = [x + centre - left, y + centre - top, x + centre + right, y + centre + bottom]
            found += [
                [*np.clip(np.multiply(corners, stride), 0, SIDE), score[row, c], c]
                for c in np.flatnonzero(score[row] >= CONF)
            ]
    return np.array(sorted(found))


CONF = 0.5
NANODET = {"cls_pred_stride_": (3, "Sigmoid"), "dis_pred_stride_": (32, "")}
YUNET = {"cls_": (1, "Sigmoid"), "obj_": (1, "Sigmoid"), "bbox_": (4, ""), "kps_": (10, "")}
CASES = {
    # case: file, heads, strides, arguments of ``levels`` and of ``by_distances``, normalisation
    "NanoDet": (
        "m",
        NANODET,
        (8, 16, 32),
        {},
        {"bins": 8, "centre": 0.5},
        lambda bgr: (bgr - MEAN) / DEVIATION,
    ),
    "PicoDet": (
        "picodet_s",
        {"transpose_": (2, "Sigmoid"), "transpose_1": (32, "")},
        (8, 16, 32, 64),
        {},
        {"bins": 8, "centre": 0.5},
        lambda bgr: (bgr[..., ::-1] / 255 - IMAGENET[0]) / IMAGENET[1],
    ),
    "SCRFD": (
        "scrfd_10g",
        {"4": (1, "Sigmoid"), "45": (4, "Relu"), "46": (10, "")},
        (8, 16, 32),
        {"anchors": 2, "form": "flat"},
        {"anchors": 2},
        lambda bgr: (bgr[..., ::-1] - 127.5) / 128,
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_family_equals_plain_arithmetic(tmp_path, case, suffix):
    name, heads, strides, more, about, normalise = CASES[case]
    path = levels(heads, strides, **more).save(tmp_path / f"{name}.onnx")
    session = onnxruntime.InferenceSession(path)
    pixels = normalise(noise().astype(np.float64)).transpose(2, 0, 1)[None].astype(np.float32)
    answers = [np.reshape(a, (-1, a.shape[-1])) for a in session.run(None, {"images": pixels})]
    count = len(strides)
    expected = by_distances(answers[count : 2 * count], answers[:count], strides, **about)
    assert len(expected) > 20
    if suffix == ".xml":
        openvino = pytest.importorskip("openvino", reason="machine: openvino is not installed")
        openvino.save_model(openvino.convert_model(path), tmp_path / f"{name}.xml", False)
    with Detector(str(tmp_path / f"{name}{suffix}"), conf=CONF, iou=1.0, max_det=1000) as detector:
        found = detector(noise())
    rows = np.column_stack([found.boxes, found.scores, found.class_ids])
    assert np.allclose(np.array(sorted(rows.tolist())), expected, atol=0.02)


def test_yunet_equals_opencv(tmp_path):
    path = levels(YUNET, pixels="convolved", scale=1 / 255).save(tmp_path / "face.onnx")
    own = cv2.FaceDetectorYN.create(path, "", (SIDE, SIDE), CONF, 0.3, 5000)
    expected = own.detect(noise())[1]
    assert len(expected) > 5
    with Detector(path, conf=CONF, iou=0.3, max_det=1000) as detector:
        found = detector(noise())
    corners = np.concatenate([expected[:, :2], expected[:, :2] + expected[:, 2:4]], axis=1)
    by_score = np.argsort(-expected[:, -1])
    assert np.allclose(found.scores, expected[by_score, -1], atol=1e-4)
    assert np.allclose(found.boxes, np.clip(corners[by_score], 0, SIDE), atol=0.02)
    assert found.name(0) == "face"


DESCRIBED = """
family: mine
input: {scale: 1}
outputs:
  boxes: {levels: [box8, box16]}
  scores: {levels: [score8, score16]}
  cells: {kind: distances, strides: [8, 16], anchors: 3}
"""


@pytest.mark.parametrize("engine", ["ort", "openvino"])
def test_maps_with_anchors_can_be_described(tmp_path, engine):
    need_engine(engine)
    heads = {"box": (4, "Relu"), "score": (2, "Sigmoid")}
    paths = [
        levels(heads, (8, 16), 3, form).save(tmp_path / f"{form}.onnx") for form in ("maps", "rows")
    ]
    description = str(described(tmp_path, DESCRIBED))
    both = []
    for path in paths:
        with Detector(path, describe=description, engine=engine, conf=0.4) as detector:
            found = detector(noise())
        both.append(np.column_stack([found.boxes, found.scores]))
    assert len(both[0]) > 5
    assert np.allclose(*both)


PRIORS = """
family: mine
outputs:
  boxes: {tensor: boxes, columns: 0-3}
  scores: {tensor: scores, values: logits}
  cells:
    {kind: offsets, strides: [8, 16], sizes: [[16, [32, 20]], [40]], variances: [0.1, 0.2],
     centre: 0.5}
"""
WITH_PRIORS = {
    "BlazeFace": (128, ("regressors", "classificators"), [[1, 1], [1] * 6], (1, 1), np.array),
    "SSD": (SIDE, ("boxes", "scores"), [[16, (32, 20)], [40]], (0.1, 0.2), np.exp),
}


@pytest.mark.parametrize("case", WITH_PRIORS)
def test_boxes_from_priors_equal_plain_arithmetic(tmp_path, case):
    side, (boxes, scores), priors, variances, grow = WITH_PRIORS[case]
    heads = {boxes: (6, "Softplus"), scores: (1, "")}
    gain = 20 if case == "BlazeFace" else 1
    export = levels(heads, (8, 16), [len(one) for one in priors], "joined", gain, side=side)
    path = export.save(tmp_path / "m.onnx")
    pixels = noise(side)[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32)
    pixels = pixels / 127.5 - 1 if case == "BlazeFace" else pixels / 255
    raw, logits = onnxruntime.InferenceSession(path).run(None, {"images": pixels})
    points = [
        ((x + 0.5) * stride, (y + 0.5) * stride, *np.broadcast_to(size, 2))
        for stride, sizes in zip((8, 16), priors, strict=True)
        for y in range(side // stride)
        for x in range(side // stride)
        for size in sizes
    ]
    expected = []
    for row, logit, (x, y, width, height) in zip(raw[0], logits[0, :, 0], points, strict=True):
        cx, cy = x + row[0] * variances[0] * width, y + row[1] * variances[0] * height
        w, h = grow(row[2:4] * variances[1]) * (width, height)
        corners = np.clip([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], 0, side)
        expected += [[*corners, 1 / (1 + np.exp(-logit))]] if logit >= 0 else []
    assert 20 < len(expected) < len(points)
    description = None if case == "BlazeFace" else str(described(tmp_path, PRIORS))
    more = {"conf": CONF, "iou": 1.0, "max_det": 1000}
    with Detector(path, describe=description, **more) as detector:
        found = detector(noise(side))
    rows = np.column_stack([found.boxes, found.scores]).tolist()
    assert np.allclose(sorted(rows), sorted(expected), atol=0.02)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[box8, box16]", "[box8]", "1 levels, but 2 strides"),
        ("anchors: 3", "sizes: [[1]]", "'sizes' must be a list of numbers"),
        ("[box8, box16]", "[box8, box9]", "no output named box9"),
        ("[box8, box16]", "[box8, score16]", "different numbers of columns"),
        ("strides: [8, 16]", "strides: [8, 32]", "8, 32 make 204 boxes, but there are 240 rows"),
        ("anchors: 3", "anchors: 5", "does not hold 5 anchors"),
        ("{levels: [box8, box16]}", "{}", "give 'tensor'"),
        ("levels: [box8", "tensor: box8, levels: [box8", "give 'tensor'"),
        ("  cells: {kind: distances, strides: [8, 16], anchors: 3}\n", "", "needs outputs.cells"),
    ],
)
def test_levels_that_do_not_fit_are_refused(tmp_path, old, new, message):
    path = levels({"box": (4, ""), "score": (2, "")}, (8, 16), 3, "maps").save(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=message):
        open_network(path, describe=described(tmp_path, DESCRIBED.replace(old, new)))


def test_refusal_of_undescribed_levels_lists_matching_families(tmp_path):
    heads = {"4": (1, "Sigmoid"), "45": (4, "Relu"), "46": (10, "")}
    path = levels(heads, anchors=2, form="flat").save(tmp_path / "model.onnx")
    reason = refusal(path)
    assert "there is an output for each stride" in reason
    assert "match the names and shapes of scrfd" in reason
    assert open_network(path, family="scrfd").names == ("face",)
