"""Every output layout is recognised, run and decoded. Small graphs have known answers."""

import numpy as np
import pytest

from detector import Detector
from detector.core.errors import ModelError
from detector.core.models.layouts import layouts
from tests.known_answers import run_once
from tests.models import exports
from tests.models.exports import BOXES, CORNERS, SIDE, STATED
from tests.networks import open_network

# RGB of one pixel in a black picture: classes 0, 1 and 2 get the scores 0.6, 0.8 and 0.4.
COLOUR = (153, 204, 102)


def picture(colour=COLOUR, side: int = SIDE) -> np.ndarray:
    image = np.zeros((side, side, 3), np.uint8)
    image[5, 7] = colour[::-1]
    return image


def detect(path: str, image: np.ndarray | None = None, engine: str = "ort", **options):
    with Detector(path, engine=engine, **options) as detector:
        found = detector(picture() if image is None else image)
    return [
        (
            found.name(at),
            round(float(found.scores[at]), 3),
            [round(float(v), 2) for v in found.boxes[at]],
        )
        for at in range(len(found))
    ]


BOTH = [list(CORNERS[0]), list(CORNERS[1])]
PARTS = [("green", 0.6, BOTH[0]), ("blue", 0.6, BOTH[1])]

GREEN = [("green", 0.8, box) for box in BOTH]
EVERY = [
    (name, score, box)
    for name, score in (("green", 0.8), ("red", 0.6), ("blue", 0.4))
    for box in BOTH
]
TWINS = [("blue", 0.6, BOTH[0])] * 2  # equal boxes stay: NMS does not run again
CASES = [
    # name, graph, family, layout, detections
    ("yolov5", exports.decoded, "yolov5", "decoded", [("green", 0.4, box) for box in BOTH]),
    ("yolov7-x", exports.decoded, "yolov7", "decoded", [("green", 0.4, box) for box in BOTH]),
    ("yolov6n", lambda: exports.decoded(exports.CELLS, 1.0), "yolov6", "decoded", GREEN),
    ("yolov6s", exports.anchor_free, "yolov6", "anchor-free", GREEN),  # exported by Ultralytics
    ("yolov4", exports.corners, "yolov4", "corners", GREEN),
    ("yolov6-nms", exports.parts, "yolov6", "end-to-end", PARTS),
    ("best", exports.decoded, "yolov5", "decoded", [("green", 0.4, box) for box in BOTH]),
    ("yolov8n", exports.anchor_free, "yolov8", "anchor-free", GREEN),
    ("yolo11s", exports.anchor_free, "yolo11", "anchor-free", GREEN),
    ("m", exports.anchor_free, "yolov8", "anchor-free", GREEN),
    (
        "yolov3-tinyu",
        lambda: exports.anchor_free(cells=exports.TINY_CELLS),
        "yolov8",
        "anchor-free",
        GREEN,
    ),
    (
        "yolov3-tiny",
        lambda: exports.decoded(3 * exports.TINY_CELLS),
        "yolov5",
        "decoded",
        [("green", 0.4, box) for box in BOTH],
    ),
    ("yolov9-rows", lambda: exports.anchor_free(rows=True), "yolov9", "anchor-free", GREEN),
    ("yolov10n", exports.finished, "yolov10", "end-to-end", TWINS),
    ("yolov10s", exports.best_cells, "yolov10", "end-to-end", GREEN),
    ("yolo26n", exports.finished, "yolo26", "end-to-end", TWINS),
    ("yolov8-nms", exports.finished, "yolov8", "end-to-end", TWINS),
    # three boxes, two of them equal: the graph's own NMS leaves two per class; we keep these
    ("yolov7-nms", exports.nms_inside, "yolov7", "end-to-end", EVERY),
    ("yolov8-padded", exports.padded, "yolov8", "end-to-end", EVERY),
    ("parts", exports.parts, "yolov10", "end-to-end", PARTS),
    (
        "detr",
        exports.queries,
        "rtdetr",
        "queries",
        [
            (name, score, box)
            for name, score in (("green", 0.953), ("red", 0.731), ("blue", 0.269))
            for box in BOTH
        ],
    ),
    ("rtdetr-l", lambda: exports.queries(joined=True), "rtdetr", "queries", GREEN),
    ("rtdetr-numbered", lambda: exports.queries(numbered=True), "rtdetr", "queries", GREEN),
]


@pytest.mark.parametrize(
    ("name", "graph", "family", "layout", "expected"), CASES, ids=[case[0] for case in CASES]
)
def test_layout_is_recognised_and_decoded(tmp_path, name, graph, family, layout, expected):
    path = graph().save(tmp_path / f"{name}.onnx", STATED)
    network = open_network(path)
    assert (network.family, network.details["layout"]) == (family, layout)
    assert network.names == ("red", "green", "blue")
    assert network.input_shape == (1, SIDE, SIDE, 3)
    assert network.input.geometry == ("stretch" if family in ("rtdetr", "yolov4") else "centre")
    assert network.warnings[0].startswith(f"{name}.onnx is {family}: "), (
        "the warning states the family"
    )
    assert network.needs_nms is (layout not in ("end-to-end", "queries"))
    assert detect(path) == expected


TORCH_RUNS = [case for case in CASES if case[0] not in ("yolov7-nms", "yolov8-padded")]


@pytest.mark.parametrize(
    ("name", "graph", "expected"),
    [(c[0], c[1], c[4]) for c in TORCH_RUNS],
    ids=[case[0] for case in TORCH_RUNS],
)
def test_layout_gives_the_same_detections_on_torch(tmp_path, name, graph, expected):
    pytest.importorskip("torch", reason="machine: torch is not installed")
    assert detect(graph().save(tmp_path / f"{name}.onnx", STATED), engine="torch") == expected


def test_rows_of_one_box_per_cell_need_the_name_of_their_family(tmp_path):
    """YOLOX rows have the same shape, but their values mean something else."""
    path = exports.decoded(exports.CELLS, 1.0).save(tmp_path / "best.onnx", STATED)
    with pytest.raises(ModelError, match=r"not recognised.*--family"):
        open_network(path)
    assert open_network(path, family="yolov6").family == "yolov6"


@pytest.mark.slow
@pytest.mark.parametrize("slices", [False, True])
def test_best_cells_run_on_openvino(tmp_path, slices):
    """OpenVINO 2026.4 removes a Slice in front of a GatherElements, and then refuses the shapes."""
    pytest.importorskip("openvino", reason="machine: openvino is not installed")
    path = exports.best_cells(slices=slices).save(tmp_path / "yolov10n.onnx", STATED)
    assert sorted(detect(path, engine="openvino")) == detect(path) == GREEN


def test_operator_that_torch_lacks_is_named_in_the_refusal(tmp_path):
    pytest.importorskip("torch", reason="machine: torch is not installed")
    from detector.core.errors import EngineError

    path = exports.nms_inside().save(tmp_path / "m.onnx", STATED)
    with pytest.raises(EngineError, match=r"operators NonMaxSuppression .* engine ort"):
        Detector(path, engine="torch")


@pytest.mark.slow
def test_classes_max_det_and_conf_also_filter_final_boxes(tmp_path):
    path = exports.parts().save(tmp_path / "m.onnx", STATED)
    assert [name for name, *_ in detect(path, classes=["blue"])] == ["blue"]
    assert [name for name, *_ in detect(path, max_det=1)] == ["green"]
    assert detect(path, conf=0.61) == []
    assert len(detect(path, conf=0.0)) == 2, "padding rows are not detections"


@pytest.mark.parametrize("stated", [{"args": "{'nms': True}"}, {"end2end": "True"}, {}])
def test_ambiguous_rows_are_final_boxes_if_the_metadata_says_so(tmp_path, stated):
    """84 rows of 6 also fit a YOLOX of one class. Only metadata shows that the boxes are final."""
    path = exports.finished(count=84).save(tmp_path / "m.onnx", {**STATED, **stated})
    if stated:
        assert open_network(path).details["layout"] == "end-to-end"
    else:
        with pytest.raises(ModelError, match="family was not"):
            open_network(path)


def test_overlapping_boxes_are_suppressed(tmp_path):
    path = exports.anchor_free(twins=True).save(tmp_path / "m.onnx", STATED)
    assert len(detect(path)) == 1
    assert len(detect(path, iou=1.0)) == 2


# ---- YOLOX: BGR in 0..255; the picture is at the top left of the input


def bright(colour=(0, 0, 255)) -> np.ndarray:
    return np.full((SIDE, SIDE, 3), colour, np.uint8)


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("engine", ["ort", "torch"])
def test_yolox_is_recognised_and_decoded(tmp_path, decode, engine):
    if engine == "torch":
        pytest.importorskip("torch", reason="machine: torch is not installed")
    path = exports.yolox(decode).save(tmp_path / "m.onnx")
    (tmp_path / "m.names").write_text("blue\ngreen\nred\n")
    network = open_network(path)
    assert network.family == "yolox"
    assert network.details["layout"] == ("decoded" if decode else "grid")
    assert (network.input.geometry, network.input.pad_value) == ("top-left-truncate", 114)
    # The input is u8 RGB, but the graph expects BGR, so red is class 2.
    [(first, score, _), *_] = found = detect(path, bright(), engine=engine, iou=1.0, max_det=100)
    assert (first, score) == ("red", pytest.approx(0.881, abs=1e-3))
    assert len(found) == 64, "one box for each cell of the first map"
    boxes = [box for _, _, box in found]
    assert [0.0, 0.0, 12.0, 12.0] in boxes  # two cells wide around the centre of cell 0, clipped
    assert [36.0, 20.0, 52.0, 36.0] in boxes  # cell x 5, y 3: centre 44, 28


@pytest.mark.parametrize("arithmetic", ["QuantizeLinear", "Mul"])
def test_int8_yolox_is_recognised_as_raw(tmp_path, arithmetic):
    """Int8 files multiply by scales. This does not decode boxes, so the rows are still raw."""
    import onnx

    export = exports.yolox()
    last = export.nodes[-1]
    raw, [step, zero] = last.input[0], [export.const(1 / 16), export.const(0, np.int8)]
    if arithmetic == "QuantizeLinear":
        last.input[0] = export.add(
            "DequantizeLinear", export.add(arithmetic, raw, step, zero), step, zero
        )
    else:  # dynamically quantised networks have such a Mul after ConvInteger
        last.input[0] = export.add("Mul", raw, export.const(1))
    export.nodes.append(export.nodes.pop(export.nodes.index(last)))
    path = export.save(tmp_path / "yolox_nano.onnx")
    onnx.checker.check_model(path)
    assert open_network(path).details["layout"] == "grid"
    assert open_network(path, family="yolox").details["layout"] == "grid"
    assert (
        open_network(exports.yolox(True).save(tmp_path / "yolox_s.onnx")).details["layout"]
        == "decoded"
    )


# ---- half precision, dynamic sizes and batches, other opsets


@pytest.mark.parametrize("engine", ["ort", "openvino", "torch"])
@pytest.mark.parametrize(
    "graph", [exports.decoded, exports.anchor_free, exports.finished, exports.yolox]
)
def test_half_precision_file_gives_nearly_the_same_detections(tmp_path, graph, engine):
    if engine != "ort":
        pytest.importorskip(engine, reason=f"machine: {engine} is not installed")
    whole = detect(graph().save(tmp_path / "whole.onnx", STATED), conf=0.2)
    half = detect(
        graph(kind="FLOAT16").save(tmp_path / "half.onnx", STATED), conf=0.2, engine=engine
    )
    assert [name for name, *_ in half] == [name for name, *_ in whole]
    for ours, theirs in zip(half, whole, strict=True):
        assert ours[1] == pytest.approx(theirs[1], abs=2e-3)
        assert ours[2] == pytest.approx(theirs[2], abs=0.1)


def test_dynamic_export_takes_batch_and_size(tmp_path):
    path = exports.anchor_free(batch="batch", side="side").save(
        tmp_path / "m.onnx", {**STATED, "imgsz": "[64, 64]", "batch": "1"}
    )
    network = open_network(path, batch=3)
    assert network.input_shape == (3, 64, 64, 3)
    given = np.stack([picture((51 * at, 0, 0))[..., ::-1] for at in range(3)])
    [output] = run_once(network, given)
    np.testing.assert_allclose(output[:, 4, 0], [0, 0.2, 0.4], atol=1e-6)


def test_layout_without_a_usual_family_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(layouts()["anchor-free"], "usual_family", "")
    path = exports.anchor_free().save(tmp_path / "m.onnx", STATED)
    with pytest.raises(ModelError, match="anchor-free has no usual_family"):
        open_network(path)


def test_dynamic_export_takes_another_size(tmp_path):
    path = exports.finished(side="side").save(tmp_path / "m.onnx", STATED)
    assert open_network(path, size=(96, 128)).input_shape == (1, 96, 128, 3)
    with pytest.raises(ModelError, match=r"--size 100x90.* of 32.*--size 128x96"):
        open_network(path, size=(90, 100))


def test_shape_computations_are_folded(tmp_path):
    """Exporters compute the target of a Reshape from the input's shape. We make it a constant."""
    export = exports.Export(batch="batch", side="side")
    shape = export.add("Shape", "images")
    batch = export.add("Gather", shape, export.ints(0), axis=0)
    largest = export.add("GlobalMaxPool", "images")
    target = export.add("Concat", batch, export.ints(1, 3), axis=0)
    colours = export.add("Reshape", largest, target)
    height = export.add("Gather", shape, export.const(2, np.int64), axis=0)
    counted = export.add("Range", export.const(0, np.int64), height, export.const(1, np.int64))
    ramp = export.add(
        "Unsqueeze", export.add("Cast", counted, to=1), export.ints(0, 2)
    )  # [1, 64, 1]
    four = export.add("Expand", ramp, export.ints(1, 64, 4))
    padded = export.add("Pad", four, export.ints(0, 0, 0, 0, 20, 0))  # 84 rows
    boxes = export.add("Add", padded, export.zeros(colours))
    both = export.add("Concat", boxes, export.scores(colours, 2, 84), axis=2)
    path = export.out("output0", export.add("Transpose", both, perm=[0, 2, 1])).save(
        tmp_path / "m.onnx", STATED
    )
    network = open_network(path, size=(64, 64), batch=2)
    operators = {node.op_type for node in network.graph.graph.node}
    assert not operators & {"Shape", "Gather", "Range", "Expand", "Pad"}
    assert network.output_shapes == [(2, 7, 84)]
    [output] = run_once(network, np.zeros((2, 64, 64, 3), np.uint8))
    np.testing.assert_array_equal(output[1, 0, :66], [*range(64), 0, 0])


def test_an_old_opset_is_converted(tmp_path):
    """In opset 11, Squeeze has its axes as an attribute, and Softmax flattens axes."""
    export = exports.Export(opset=11)
    colours = export.colours()
    table = export.table(colours, [(*box, 0.5) for box in BOXES], 252)
    squeezed = export.add("Squeeze", export.add("Unsqueeze", table, axes=[1]), axes=[1])
    both = export.add("Concat", squeezed, export.scores(colours, 2, 252), axis=2)
    path = export.out("output", both).save(tmp_path / "m.onnx", STATED)
    network = open_network(path)
    assert {entry.version for entry in network.graph.opset_import} == {17}
    assert [name for name, *_ in detect(path)] == ["green"] * 2
