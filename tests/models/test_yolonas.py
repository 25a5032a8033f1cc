"""Exports of YOLO-NAS: lists of detections, whose shapes ONNX cannot infer, and raw rows."""

import numpy as np
import pytest
from onnx import TensorProto

from detector.core.errors import ModelError
from tests.models.exports import CELLS, CORNERS, Export
from tests.models.test_onnx_families import BOTH, detect
from tests.networks import open_network

ROWS = 400  # rows of a list
USED = 350  # how many of them are in use; the graph computes this number from the picture
CLASSES = 8


def length(export: Export) -> str:
    """Return USED as a tensor [1] that depends on the picture, so it is known only at run time."""
    used = export.add("Add", export.zeros(export.colours()), export.const([USED]))
    flat = export.add("Reshape", used, export.ints(1))
    return export.add("Cast", flat, to=TensorProto.INT64)


def rows() -> np.ndarray:
    """Return [ROWS, 7] (picture, box, score, class). The last of the USED rows is the best."""
    table = np.zeros((ROWS, 7))
    table[:, 1:5] = CORNERS[0]
    table[:, 5] = 0.1
    table[USED - 1] = [0, *CORNERS[1], 0.9, 3]
    return table


def flat_list() -> Export:
    """Make format FLAT: one list with a row for each detection."""
    export = Export()
    table = export.const(rows())
    zero = export.ints(0)
    found = export.add("Slice", table, zero, length(export), zero)
    found = export.add("Reshape", found, export.ints(-1, 7))
    return export.out("graph2_flat_predictions", found, ["found", 7])


def batch_list() -> Export:
    """Make format BATCH: a list padded with -1. The graph computes the amounts of padding."""
    export = Export()
    zero, used = export.ints(0), length(export)
    missing = export.add("Sub", export.ints(ROWS), used)
    parts = {"boxes": rows()[:, 1:5], "scores": rows()[:, 5], "classes": rows()[:, 6]}
    count = export.add("Reshape", used, export.ints(1, 1))
    export.out("graph2_num_predictions", count, [1, 1], TensorProto.INT64)
    for name, values in parts.items():
        found = export.add("Slice", export.const(values), zero, used, zero)
        none = [zero] * (values.ndim - 1)
        amounts = export.add("Concat", zero, *none, missing, *none, axis=0)
        # torch transposes and reshapes the amounts like this, and shape inference loses them.
        square = export.add("Reshape", amounts, export.ints(2, -1))
        twice = export.add("Transpose", export.add("Transpose", square, perm=[1, 0]), perm=[1, 0])
        filled = export.add(
            "Pad", found, export.add("Reshape", twice, export.ints(-1)), export.const([-1.0])
        )
        whole, kind = export.add("Unsqueeze", filled, zero), export.kind
        if name == "classes":
            kind = TensorProto.INT64
            whole = export.add("Cast", whole, to=kind)
        export.out(f"graph2_pred_{name}", whole, ["a", "b", "c"][: 1 + values.ndim], kind)
    return export


def raw(several: bool = False) -> Export:
    """Make an export with postprocessing=False: boxes, and scores from joined convolutions."""
    export = Export()
    boxes = export.table(export.colours(), [CORNERS[0]], CELLS)
    export.out("1140", boxes)
    maps = []
    for stride in (8, 16, 32):
        bias = np.full(CLASSES, -9.0)
        if stride == 8:  # 64 cells have scores, but only the first has a box
            bias[2] = 2.0
            bias[5] = 1.0 if several else -9.0
        weights = np.zeros((CLASSES, 3, stride, stride))
        raw = export.add(
            "Conv", "images", export.const(weights), export.const(bias), strides=[stride] * 2
        )
        maps.append(export.add("Reshape", raw, export.ints(1, CLASSES, -1)))
    joined = export.add("Transpose", export.add("Concat", *maps, axis=2), perm=[0, 2, 1])
    return export.out("1132", export.add("Sigmoid", joined))


@pytest.mark.parametrize("graph", [flat_list, batch_list])
def test_best_row_of_a_list_is_found_at_any_place(tmp_path, graph):
    """NMS sorts rows by class, so the best of 350 rows may be the last."""
    path = graph().save(tmp_path / "model.onnx")
    assert open_network(path).family.startswith("yolonas")
    found = detect(path, conf=0.5)
    assert [(score, box) for _, score, box in found] == [(0.9, BOTH[1])]


def test_separate_scores_and_boxes_are_not_read_as_yolox(tmp_path):
    """A reader of YOLOX would take four of the class scores for a box."""
    with pytest.raises(ModelError, match="not certain"):
        open_network(raw().save(tmp_path / "best.onnx"))
    network = open_network(raw().save(tmp_path / "yolo_nas_s.onnx"))
    assert network.family == "yolonas-raw"


@pytest.mark.parametrize(("several", "scores"), [(False, [0.881]), (True, [0.881, 0.731])])
def test_box_may_have_several_classes(tmp_path, several, scores):
    path = raw(several).save(tmp_path / "yolo_nas_s.onnx")
    found = [row for row in detect(path, conf=0.5) if row[2] == BOTH[0]]
    assert [score for _, score, _ in found] == scores
