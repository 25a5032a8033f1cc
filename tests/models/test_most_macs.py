"""Layers whose number of rows depends on the picture. We count the MACs of the maximum number of
rows. We refuse a file if nothing limits this number, or if there are too many MACs.

Each graph finds a box for every bright colour channel of the picture, at most three, and then
multiplies the boxes by a matrix, like the second stage of a two-stage detector."""

import json

import cv2
import numpy as np
import onnx
import pytest

from detector.core.errors import ModelError
from tests.cli.command import detect_video
from tests.lab.profile.budgets import with_short_budgets
from tests.models.exports import CORNERS, Export
from tests.models.test_onnx_families import BOTH, detect, picture
from tests.networks import open_network

THREE = (*CORNERS, (1.0, 2.0, 3.0, 4.0))
ROWS = 12288  # elements of the picture


def bright(export: Export, tensor: str) -> str:
    """Return the name of a tensor [n, axes]: the indices at which ``tensor`` is above 0.5."""
    kept = export.add("Greater", tensor, export.const([0.5]))
    return export.add("Transpose", export.add("NonZero", kept), perm=[1, 0])


def colours_found(export: Export) -> tuple[str, str]:
    """Return boxes [n, 4] and the channels' numbers [n]; n is at most 3."""
    flat = export.add("Reshape", export.colours(), export.ints(3))
    number = export.add("Reshape", bright(export, flat), export.ints(-1))
    return export.add("Gather", export.const(THREE), number, axis=0), number


def finished(export: Export, boxes: str, number: str) -> Export:
    matrix = export.const(np.eye(4))
    export.out("boxes", export.add("MatMul", boxes, matrix, name="/second"), [None, 4])
    flat = export.add("Reshape", export.colours(), export.ints(3))
    export.out("scores", export.add("Gather", flat, number), [None])
    labels = export.add("Add", number, export.ints(1))
    return export.out("labels", labels, [None], onnx.TensorProto.INT64)


def plain(export: Export) -> Export:
    return finished(export, *colours_found(export))


def cut(export: Export) -> Export:
    boxes, number = colours_found(export)
    places = bright(export, export.picture)  # [n, 4], n at most 12,288
    first = export.cut(places, 0, 2, axis=0)
    zeros = export.add("Mul", export.add("Cast", first, to=1), export.const([0.0]))
    more = export.add("MatMul", zeros, export.const(np.eye(4)), name="/places")
    zero = export.add("ReduceSum", more, export.ints(0), keepdims=1)
    return finished(export, export.add("Add", boxes, zero), number)


def best(export: Export) -> Export:
    """Take the best rows by TopK with k = min(n, 2)."""
    boxes, number = colours_found(export)
    count = export.add("Shape", number)
    few = export.add("Min", count, export.ints(2))
    order = export.add("TopK", export.add("Cast", number, to=1), few, outputs=2, axis=0)[1]
    return finished(export, export.add("Gather", boxes, order), export.add("Gather", number, order))


def by_nms(export: Export) -> Export:
    """Apply NMS, which keeps one box per class, to three boxes and three classes."""
    table = export.add("Add", export.zeros(export.colours()), export.const([list(THREE)]))
    scores = export.add("Mul", export.colours(), export.const(np.eye(3)[None]))  # class, box
    limits = export.ints(1), export.const([0.5]), export.const([0.5])
    kept = export.add("NonMaxSuppression", table, scores, *limits)
    number = export.add("Reshape", export.cut(kept, 2, 3, axis=1), export.ints(-1))
    return finished(export, export.add("Gather", export.const(THREE), number, axis=0), number)


COUNTED = {"plain": (plain, 3 * 16), "cut": (cut, 5 * 16), "best": (best, 2 * 16),
           "nms": (by_nms, 3 * 16)}  # fmt: skip


@pytest.mark.parametrize("case", COUNTED)
def test_macs_are_counted_for_the_maximum_number_of_rows(tmp_path, case):
    make, macs = COUNTED[case]
    path = make(Export()).save(tmp_path / "m.onnx")
    network = open_network(path, family="torchvision")
    assert (network.macs, network.macs_at_most) == (macs, True)
    [note] = [line for line in network.warnings if "the picture decides" in line]
    assert f" {macs / 1e9:.3g} GMACs" in note
    rows = detect(path, family="torchvision")
    assert sorted(row[2] for row in rows) == sorted(BOTH)
    assert detect(path, picture((0, 0, 0)), family="torchvision") == []


def test_exact_number_of_macs_is_not_called_a_bound(tmp_path):
    from tests.models import exports

    network = open_network(exports.anchor_free().save(tmp_path / "yolov8n.onnx"))
    assert not network.macs_at_most
    assert not [line for line in network.warnings if "the picture decides" in line]


def grown(export: Export, sides) -> Export:
    """Add a second stage: the mean of a table of zeros. ``sides`` gets the count of bright elements
    ([1], int64), and computes the length of the table."""
    boxes, number = colours_found(export)
    count = export.cut(export.add("Shape", bright(export, export.picture)), 0, 1, axis=0)
    rows = sides(export, count)
    shape = export.add("Concat", rows, export.ints(64), axis=0)
    table = export.add("Expand", export.zeros(export.colours()), shape)
    much = export.add("MatMul", table, export.const(np.zeros((64, 64))), name="/much")
    mean = export.add("ReduceMean", much, axes=[0, 1, 2], keepdims=0)
    return finished(export, export.add("Add", boxes, mean), number)


def by_values(export: Export, count: str) -> str:
    total = export.add("ReduceSum", export.picture, keepdims=0)
    return export.add("Reshape", export.add("Cast", total, to=7), export.ints(1))


def cube(export: Export, count: str) -> str:
    return export.add("Mul", export.add("Mul", count, count), count)


def millions(export: Export, count: str) -> str:
    return export.add("Mul", count, export.ints(10**8))


def dark_elements(export: Export, count: str) -> str:
    rest = export.add("Sub", export.ints(ROWS), count)
    return export.add("Mul", rest, export.ints(10**8))


def slice_from_count(export: Export, count: str) -> str:
    """Return 10^8 x the length of a Slice that starts at ``count`` and ends at 12,288."""
    ramp = export.add("Slice", export.const(np.zeros(ROWS)), count, export.ints(ROWS))
    return export.add("Mul", export.add("Shape", ramp), export.ints(10**8))


def through_a_float(export: Export, count: str) -> str:
    """Return 10^12 / (1 + count), computed as a float."""
    more = export.add("Add", export.add("Cast", count, to=1), export.const([1.0]))
    return export.add("Cast", export.add("Div", export.const([1e12]), more), to=7)


def if_none(export: Export, count: str) -> str:
    none = export.add("Equal", count, export.ints(0))
    return export.add("Where", none, export.ints(10**12), export.ints(1))


HOSTILE = {
    "cube of the count": (cube, r"takes 7\.6e\+15 multiply-accumulates"),
    "count x 10^8": (millions, r"takes 5\.0e\+15 multiply-accumulates"),
    "rows from values": (by_values, "nothing in the file limits how many rows"),
    "number of dark elements": (dark_elements, "nothing in the file limits how many rows"),
    "length of a slice from count": (slice_from_count, "nothing in the file limits how many rows"),
    "10^12 / (1 + count)": (through_a_float, "nothing in the file limits how many rows"),
    "many rows if the count is 0": (if_none, "nothing in the file limits how many rows"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_file_with_unlimited_work_is_refused(tmp_path, case):
    sides, words = HOSTILE[case]
    path = grown(Export(), sides).save(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=words):
        open_network(path, family="torchvision")


def test_table_with_a_row_for_each_bright_element_is_accepted(tmp_path):
    path = grown(Export(), lambda export, count: count).save(tmp_path / "m.onnx")
    network = open_network(path, family="torchvision")
    assert network.macs == ROWS * 64 * 64 + 3 * 16


@pytest.mark.slow
def test_command_models_show_marks_macs_as_a_bound(tmp_path):
    path = plain(Export()).save(tmp_path / "m.onnx")
    shown = detect_video("models", "show", path, "--family", "torchvision", cwd=tmp_path)
    assert "MACs              at most 48" in shown.stdout
    listed = detect_video("models", "show", path, "--family", "torchvision", "--json", cwd=tmp_path)
    assert '"macs_at_most": true' in json.dumps(json.loads(listed.stdout))


def test_built_file_has_the_same_macs(tmp_path):
    path = plain(Export()).save(tmp_path / "m.onnx")
    command = "build", path, "--family", "torchvision", "--to", "onnx", "-o", "own.onnx"
    made = detect_video(*command, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    network = open_network(str(tmp_path / "own.onnx"))
    assert (network.macs, network.macs_at_most) == (48, True)


@pytest.mark.slow
def test_profile_says_that_a_node_of_unknown_size_is_not_counted(tmp_path):
    path = plain(Export()).save(tmp_path / "m.onnx")
    cv2.imwrite(str(tmp_path / "p.png"), picture())
    made = detect_video(
        "profile", "p.png", "--model", path, "--family", "torchvision", "--engine", "ort",
        "--only", "layers,roofline", "--run-dir", "s", "-v",
        cwd=tmp_path, env=with_short_budgets(tmp_path),
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    output = " ".join(made.stdout.split())
    assert "0.000" in output
    assert output.count("output size of 1 node") == 2
    page = (tmp_path / "s/report.html").read_text()
    assert page.count("output size of 1 node") >= 1
