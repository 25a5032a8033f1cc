"""Impossible results end a run if the meaning of the file's outputs is not proved."""

import cv2
import numpy as np
import onnx
import pytest

from detector import Detector
from detector.core.errors import ModelError
from detector.core.stages.doubt import describe_impossible
from detector.core.stages.readings import NOT_WHOLE
from detector.core.types import Candidates
from tests.cli.command import detect_video
from tests.models.exports import Export
from tests.models.test_onnx_evidence import (
    FRACTIONS,
    LIST,
    described,
    flat,
    labels,
    red,
    rows_of_six,
    zoo_ssd,
)
from tests.models.test_onnx_families import detect, picture
from tests.networks import open_network

GUARD = [
    # boxes, scores, classes, what is impossible
    ([[10, 10, 50, 60]], [0.9], [1], None),
    ([[10, 10, 50, 60]], [1.0005], [1], None),  # rounded in half precision
    ([[10, 10, 50, 60]], [275.36], [1], "a score of 275.4"),
    ([[10, 10, 50, 60]], [0.9], [181], "class 181"),
    ([[0.1, 0.1, 0.5, 0.6]], [0.9], [1], "within one pixel"),
    ([[0.1, 0.1, 0.5, 0.6], [10, 10, 50, 60]], [0.9, 0.9], [1, 1], None),
    ([[20, 30, 20.5, 30.5]], [0.9], [1], None),  # possible for a single box
    ([[20, 30, 20.5, 30.5]] * 8, [0.9] * 8, [1] * 8, "all 8 boxes"),
    ([[10, 10, 50, 60]] * 2, [0.9] * 2, [3, -1], "is 1 below the number of the first name"),
    ([[10, 10, 50, 60]], [0.9], [NOT_WHOLE], "not a whole number"),
]


@pytest.mark.parametrize(("boxes", "scores", "classes", "words"), GUARD)
def test_impossible_results_are_recognised(boxes, scores, classes, words):
    found = Candidates(np.float32(boxes), np.float32(scores), np.int64(classes))
    reason = describe_impossible(found, 80)
    assert (reason is None) if words is None else (words in reason)


def test_run_ends_at_a_class_beyond_the_names(tmp_path):
    """The network finds a third class, but there are only two names."""
    names = tmp_path / "two.names"
    names.write_text("a\nb\n")
    path = rows_of_six("bsc").save(tmp_path / "yolov10n.onnx")
    with (
        Detector(path, engine="ort", names=str(names)) as detector,
        pytest.raises(ModelError, match="0 to 1"),
    ):
        detector(picture())


def late_zoo_ssd(numbers=(0, 3), score: float = 1.0) -> Export:
    """Make an SSD of the ONNX zoo that finds nothing in the probe (a test run on a drawn picture):
    red raises a score only at low green. ``numbers``: the labels. ``score``: the largest score."""
    export = Export()
    colours = export.colours()
    export.out("bboxes", export.table(colours, FRACTIONS, LIST))
    number = export.add("Cast", flat(export, labels(export, numbers)), to=onnx.TensorProto.INT64)
    export.out("labels", number, None, onnx.TensorProto.INT64)
    green = export.cut(colours, 1, 2, axis=2)
    none = export.add("Relu", export.add("Neg", export.add("Sub", green, export.const([0.2]))))
    seen = export.add("Mul", red(export), export.add("Mul", none, export.const([5.0])))
    seen = export.add("Clip", seen, export.const(0.0), export.const(score))
    return export.out("scores", flat(export, seen))


RED_ALONE = (255, 0, 0)
DESCRIPTION = """
family: mine
input: {fit: stretch}
outputs:
  boxes: {tensor: bboxes, unit: fraction}
  scores: {tensor: scores%s}
  classes: {tensor: labels, first: %d}
  nms: inside
names: coco-80
"""


@pytest.mark.slow
def test_run_ends_at_a_class_below_the_first_name(tmp_path):
    """The labels begin at 0, but this family's names begin at 1, so the exit code is 4."""
    path = late_zoo_ssd().save(tmp_path / "ssd.onnx")
    cv2.imwrite(str(tmp_path / "red.png"), picture(RED_ALONE))
    ended = detect_video("red.png", "--model", path, "--engine", "ort", cwd=tmp_path)
    assert ended.returncode == 4
    [line] = [line for line in ended.stderr.splitlines() if "misread" in line]
    assert "1 below the number" in line
    assert "models describe ssd.onnx" in line


def test_description_states_the_first_class_or_the_background(tmp_path):
    path = late_zoo_ssd().save(tmp_path / "ssd.onnx")
    seen = picture(RED_ALONE)
    from_zero = described(tmp_path, DESCRIPTION % ("", 0))
    names = [name for name, _, _ in detect(path, seen, describe=str(from_zero))]
    assert names == ["person", "motorbike"]
    background = described(tmp_path, DESCRIPTION % (", background: first", 1))
    assert [name for name, _, _ in detect(path, seen, describe=str(background))] == ["car"]


def test_padding_of_a_list_does_not_end_a_run(tmp_path):
    """A row of padding has label -1 and a score below the threshold."""
    path = late_zoo_ssd((1, -1), 0.1).save(tmp_path / "ssd.onnx")
    assert detect(path, picture(RED_ALONE)) == []
    assert detect(zoo_ssd().save(tmp_path / "zoo.onnx")) != []


@pytest.mark.parametrize("batch", [1, 2])
def test_probe_refuses_labels_that_begin_at_zero(tmp_path, batch):
    path = zoo_ssd((0, 3)).save(tmp_path / "ssd.onnx")
    with pytest.raises(ModelError, match=r"class 0, but the first class is 1"):
        open_network(path, batch=batch)


@pytest.mark.slow
def test_built_file_keeps_the_check(tmp_path):
    late_zoo_ssd().save(tmp_path / "ssd.onnx")
    cv2.imwrite(str(tmp_path / "red.png"), picture(RED_ALONE))
    command = "build", "ssd.onnx", "--to", "onnx", "-o", "own.onnx"
    assert detect_video(*command, cwd=tmp_path).returncode == 0
    ended = detect_video("red.png", "--model", "own.onnx", "--engine", "ort", cwd=tmp_path)
    assert ended.returncode == 4
    assert "build it again" in ended.stderr
