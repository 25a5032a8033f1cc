"""TensorRT plans. If their output shapes fit several heads, Ultralytics' header decides."""

import json
from pathlib import Path

import numpy as np
import pytest

from detector.core import engines, sources
from detector.core.cli.group import cli
from detector.core.errors import ModelError
from tests.cli.command import cli_runner
from tests.conftest import CHECKOUT
from tests.fakes.install import install_fake_tensorrt
from tests.fakes.plans import constant_model, plan_of, with_header
from tests.models import exports
from tests.networks import open_network

SIDE = 64
CELLS = 8 * 8 + 4 * 4 + 2 * 2  # cells of strides 8, 16 and 32
HEADER = {
    "description": "a detector",
    "author": "somebody",
    "version": "8.4.0",
    "license": "none",
    "stride": 32,
    "task": "detect",
    "batch": 1,
    "imgsz": [SIDE, SIDE],
    "names": {},
    "args": {"batch": 1, "half": False, "dynamic": False, "nms": False},
    "channels": 3,
}
NAMES = {"0": "ant", "1": "bee", "2": "cat"}
BOX = [16.0, 24.0, 8.0, 4.0]  # cx, cy, w, h
CORNERS = [12.0, 22.0, 20.0, 26.0]


@pytest.fixture(params=[10, 11])
def machine(request, monkeypatch):
    return install_fake_tensorrt(monkeypatch, request.param)


def cells_answer(classes: int = 3, rows: bool = False) -> np.ndarray:
    """Return [1, 4 + classes, cells] or its transpose. Two cells have BOX, one with a low score."""
    answer = np.zeros((1, 4 + classes, CELLS), np.float32)
    answer[0, :4, 5] = answer[0, :4, 9] = BOX
    answer[0, 4 + 1, 5], answer[0, 4, 9] = 0.75, 0.125
    return np.ascontiguousarray(answer.transpose(0, 2, 1)) if rows else answer


def finished_answer(count: int = 300) -> np.ndarray:
    """Return [1, count, 6]: one detection of class 2, and rows of padding."""
    answer = np.zeros((1, count, 6), np.float32)
    answer[0, 0] = [*CORNERS, 0.75, 2]
    return answer


def file_of(machine, place: Path, answer: np.ndarray, header: dict | None, **more) -> str:
    plan = plan_of(machine, constant_model(answer, SIDE, **more))
    file = place / "yolo.engine"
    file.write_bytes(plan if header is None else with_header(plan, header))
    return str(file)


def found_in(network, engine_options=None):
    with engines.open("trt", network, engine_options) as engine:
        return network.head(engine.requests[0].infer(1), 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("answer", "header", "family", "class_id", "nms"),
    [
        (cells_answer(), {"names": NAMES}, "plan (anchor-free)", 1, True),
        (cells_answer(rows=True), {"names": NAMES}, "plan (anchor-free)", 1, True),
        (finished_answer(), {"names": NAMES, "args": {"nms": True}}, "plan (end-to-end)", 2, False),
        (finished_answer(), {"names": NAMES, "end2end": True}, "plan (end-to-end)", 2, False),
        # The shape alone shows that these are finished detections.
        (finished_answer(), {"names": NAMES}, "plan (end-to-end)", 2, False),
        # [1, 84, 6] could also be 84 cells with two classes. Only the header says "end2end".
        (finished_answer(CELLS), {"names": NAMES, "end2end": True}, "plan (end-to-end)", 2, False),
    ],
    ids=["anchor-free", "rows", "nms", "end2end", "shape", "cells"],
)
def test_header_or_shape_shows_head(machine, tmp_path, answer, header, family, class_id, nms, half):
    network = open_network(file_of(machine, tmp_path, answer, {**HEADER, **header}, half=half))
    assert (network.family, network.needs_nms) == (family, nms)
    assert network.names == ("ant", "bee", "cat")
    assert (network.input.height, network.input.width, network.input.geometry) == (
        SIDE,
        SIDE,
        "centre",
    )
    found = found_in(network)
    np.testing.assert_allclose(found.boxes, [CORNERS])
    np.testing.assert_allclose(found.scores, [0.75])
    assert found.class_ids.tolist() == [class_id]
    with engines.open("trt", network) as engine:
        dense = network.dense(engine.requests[0].infer(1))
    assert dense.shape[2] == 5 + 3
    row = dense[0][dense[0, :, 4] * dense[0, :, 5:].max(axis=1) > 0.5]
    np.testing.assert_allclose(row[:, :4], [BOX])


def test_number_of_rows_tells_whether_detections_are_finished(machine, tmp_path):
    """[1, N, 6] with 3 rows for each cell is a head with one class. 300 rows are detections."""
    names = {"names": {"0": "ant"}}
    rows = np.zeros((1, 3 * CELLS, 6), np.float32)
    rows[0, 7] = [*BOX, 0.75, 1]
    network = open_network(file_of(machine, tmp_path, rows, {**HEADER, **names}))
    assert network.family == "plan (decoded)"
    np.testing.assert_allclose(found_in(network).boxes, [CORNERS])
    network = open_network(file_of(machine, tmp_path, finished_answer(), {**HEADER, **names}))
    assert network.family == "plan (end-to-end)"


@pytest.mark.parametrize(
    ("ends", "model", "names", "class_id"),
    [
        ([0.25, 0.75], "RT-DETR-l", ["ant", "bee"], 1),
        # With three classes, the last two values cannot be class scores: they are score and class.
        ([0.75, 2], "rtdetr-l", ["ant", "bee", "cow"], 2),
    ],
)
def test_description_distinguishes_rt_detr_from_finished_detections(
    machine, tmp_path, ends, model, names, class_id
):
    """The header's description decides what [1, 300, 6] means. Boxes are fractions of the input."""
    answer = np.zeros((1, 300, 6), np.float32)
    answer[0, 3] = [*(np.array(BOX) / SIDE), *ends]
    header = {
        **HEADER,
        "description": f"Ultralytics {model} model",
        "names": {str(at): name for at, name in enumerate(names)},
    }
    network = open_network(file_of(machine, tmp_path, answer, header))
    assert (network.family, network.needs_nms, network.input.geometry) == (
        "plan (queries)",
        False,
        "stretch",
    )
    found = found_in(network)
    np.testing.assert_allclose(found.boxes, [CORNERS])
    np.testing.assert_allclose(found.scores, [0.75])
    assert found.class_ids.tolist() == [class_id]


def test_bare_plan_of_yolov4_has_corners_and_scores(machine, tmp_path):
    """A bare plan has no header. trtexec makes such plans from exports of pytorch-YOLOv4."""
    import onnx

    exported = exports.corners().save(tmp_path / "yolov4.onnx")
    file = tmp_path / "yolov4.engine"
    file.write_bytes(plan_of(machine, onnx.load(exported)))
    network = open_network(str(file))
    assert (network.family, network.needs_nms) == ("plan (corners)", True)
    assert (network.input.geometry, len(network.names)) == ("stretch", 3)
    with engines.open("trt", network) as engine:
        engine.requests[0].slot[:] = (0, 255, 0)
        found = network.head(engine.requests[0].infer(1), 0.5)
    np.testing.assert_allclose(found.boxes, exports.CORNERS, rtol=1e-5)
    assert found.class_ids.tolist() == [1, 1]


@pytest.mark.slow
def test_bare_plan_has_numbered_classes_or_the_names_of_coco(machine, tmp_path):
    network = open_network(file_of(machine, tmp_path, cells_answer(), None))
    assert (network.family, network.names) == ("plan (anchor-free)", ("class0", "class1", "class2"))
    network = open_network(file_of(machine, tmp_path, finished_answer(), None))
    assert (network.family, network.names[2], len(network.names)) == (
        "plan (end-to-end)",
        "car",
        80,
    )
    assert any("COCO's 80 names are assumed" in line for line in network.warnings)


@pytest.mark.parametrize(
    ("factors", "header", "message"),
    [
        ((1.0, 20.0), None, "class 1 has scores of 15, outside 0..1"),
        ((1 / SIDE, 1.0), None, "all boxes are within one pixel"),
        ((1.0, 1.0), None, None),
        ((1.0, 20.0), {"names": NAMES}, "class 1 has scores of 15, outside 0..1"),
        ((1.0, 20.0), {"names": NAMES, "stride": 32}, None),  # names and stride are proof
    ],
)
def test_rows_are_probed_unless_a_header_proves_them(machine, tmp_path, factors, header, message):
    answer = cells_answer()
    answer[:, :4] *= factors[0]
    answer[:, 4:] *= factors[1]
    file = file_of(machine, tmp_path, answer, header)
    names = tmp_path / "three.names"
    names.write_text("ant\nbee\ncat\n")
    if message is None:
        assert open_network(file, names=names).family == "plan (anchor-free)"
        return
    with pytest.raises(ModelError, match=f"anchor-free, but .*{message}"):
        open_network(file, names=names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("header", "stride"),
    [({"stride": 16}, 16), ({"stride": [8, 16, 64]}, 64), ({"stride": None}, 32), ({}, 32)],
)
def test_stride_is_the_largest_in_the_header_or_32(machine, tmp_path, header, stride):
    others = {key: value for key, value in HEADER.items() if key != "stride"}
    network = open_network(
        file_of(machine, tmp_path, cells_answer(), {**others, "names": NAMES, **header})
    )
    assert network.input.stride == stride


@pytest.mark.slow
@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"task": "segment"}, "is a model for the task 'segment'; only detection is supported"),
        ({"task": "pose"}, "is a model for the task 'pose'"),
        ({"imgsz": [640, 320]}, "its header says 320x640, but its input is 64x64"),
        ({"imgsz": 640}, "its header says 640x640"),
        ({"names": {"0": "ant", "1": "bee"}}, "2 class names are given, but its head has 3"),
        (
            {"args": {"nms": True}},
            r"does not say what its outputs mean \(output output0 float32 1x7x84\)",
        ),
    ],
)
def test_header_that_does_not_fit_is_refused_in_one_line(machine, tmp_path, header, message):
    file = file_of(machine, tmp_path, cells_answer(), {**HEADER, "names": NAMES, **header})
    with pytest.raises(ModelError, match=message) as caught:
        open_network(file)
    assert str(caught.value).startswith(file)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [None, {"0": "ant", "2": "bee"}, {"names": {}}, 7, "['ant', 'bee', 'cat']"]
)
def test_names_are_read_from_the_text_of_a_list_and_ignored_if_invalid(machine, tmp_path, names):
    network = open_network(file_of(machine, tmp_path, cells_answer(), {**HEADER, "names": names}))
    listed = "cat" in str(names)
    assert network.names == (("ant", "bee", "cat") if listed else ("class0", "class1", "class2"))


def test_names_are_ordered_by_number(machine, tmp_path):
    """As text, 10 comes before 2."""
    names = {str(at): f"class of {at}" for at in sorted(range(12), key=str)}
    network = open_network(file_of(machine, tmp_path, cells_answer(12), {**HEADER, "names": names}))
    assert network.names == tuple(f"class of {at}" for at in range(12))


def test_given_names_replace_the_names_in_the_header(machine, tmp_path):
    file = file_of(machine, tmp_path, cells_answer(), {**HEADER, "names": NAMES})
    assert open_network(file, class_names=["x", "y", "z"]).names == ("x", "y", "z")
    (tmp_path / "three.names").write_text("p\nq\nr\n")
    assert open_network(file, names=str(tmp_path / "three.names")).names == ("p", "q", "r")


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer", [cells_answer(), finished_answer()], ids=["anchor-free", "end-to-end"]
)
def test_run_writes_boxes_in_pixels_of_the_source(machine, tmp_path, monkeypatch, answer):
    """Every frame has the same box. The source is scaled and padded for the network."""
    monkeypatch.chdir(tmp_path)
    file_of(machine, tmp_path, answer, {**HEADER, "names": NAMES})
    clip = CHECKOUT / "videos/street.mp4"
    options = "--model yolo.engine --frames 2 --no-video --json".split()
    result = cli_runner().invoke(cli, ["detect", str(clip), *options])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    rows = [json.loads(line) for line in Path(summary["outputs"]["jsonl"]).read_text().splitlines()]
    with sources.open(str(clip)) as source:
        width, height = source.info.width, source.info.height
    scale = SIDE / max(width, height)
    top = (SIDE - round(height * scale)) // 2
    expected = [
        CORNERS[0] / scale,
        (CORNERS[1] - top) / scale,
        CORNERS[2] / scale,
        (CORNERS[3] - top) / scale,
    ]
    assert len(rows) == 2
    for row in rows:
        [detection] = row["detections"]
        np.testing.assert_allclose(detection["box"], expected, atol=0.51 / scale)
        assert detection["class"] in ("bee", "cat")
