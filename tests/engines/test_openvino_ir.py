"""OpenVINO IR: a folder as Ultralytics writes it, read and run by engine openvino alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from detector import Detector
from detector.core.errors import EngineError, ModelError
from tests.cli.command import detect_video
from tests.known_answers import run_once
from tests.models import exports
from tests.models.exports import SIDE
from tests.models.test_onnx_evidence import rows_of_six
from tests.models.test_onnx_families import BOTH, COLOUR, picture
from tests.networks import open_network

pytestmark = pytest.mark.slow
pytest.importorskip("openvino", reason="needs openvino, which writes and reads the files")

METADATA = """\
description: Ultralytics YOLOv8n model
stride: 32
task: detect
batch: 1
imgsz:
- 64
- 64
names:
  0: red
  1: green
  2: blue
args:
  half: false
  nms: {nms}
"""
GREEN = [("green", 0.8, box) for box in BOTH]


def write(
    folder: Path,
    export: exports.Export,
    *,
    half: bool = False,
    nms: bool = False,
    text: str = METADATA,
) -> Path:
    """``NAME_openvino_model/`` with NAME.xml, NAME.bin and, with a text, metadata.yaml."""
    import openvino

    inside = folder / "yolov8n_openvino_model"
    inside.mkdir()
    source = export.save(folder / "source.onnx", None)
    model = openvino.convert_model(source)
    openvino.save_model(model, inside / "yolov8n.xml", compress_to_fp16=half)
    if text:
        (inside / "metadata.yaml").write_text(text.format(nms=str(nms).lower()))
    return inside


def found_in(model: Path, **options) -> list:
    with Detector(str(model), **options) as detector:
        assert detector.engine == "openvino"
        found = detector(picture())
    return [
        (
            found.name(at),
            round(float(found.scores[at]), 2),
            [round(float(v), 1) for v in found.boxes[at]],
        )
        for at in range(len(found))
    ]


@pytest.mark.parametrize(
    ("make", "about", "wanted"),
    [
        (exports.anchor_free, {}, GREEN),
        (exports.anchor_free, {"half": True}, GREEN),
        (lambda: exports.finished(batch=1), {"nms": True}, [("blue", 0.6, BOTH[0])] * 2),
        # as many as there are cells, so that only the metadata tells that they are finished
        (
            lambda: exports.finished(batch=1, count=exports.CELLS),
            {"nms": True},
            [("blue", 0.6, BOTH[0])] * 2,
        ),
        (exports.decoded, {}, [("green", 0.4, box) for box in BOTH]),
    ],
)
def test_a_folder_runs_on_openvino_with_the_names_of_its_metadata(tmp_path, make, about, wanted):
    assert found_in(write(tmp_path, make(), **about)) == wanted


def test_the_xml_itself_runs_too_and_free_sizes_take_those_of_the_metadata(tmp_path):
    folder = write(tmp_path, exports.anchor_free(batch="batch", side="side"))
    assert found_in(folder / "yolov8n.xml") == GREEN
    network = open_network(str(folder / "yolov8n.xml"), batch=3)
    assert network.input_shape == (3, SIDE, SIDE, 3)
    pictures = np.stack([picture(), picture((0, 0, 255)), picture()])[..., ::-1]
    (rows,) = run_once(network, pictures, "openvino")
    scores = rows[:, 4:, 0]
    assert np.allclose(scores, [np.divide(COLOUR, 255), [0, 0, 1], np.divide(COLOUR, 255)])


def test_a_division_by_255_inside_is_not_done_again(tmp_path):
    export = exports.anchor_free()
    for node in export.nodes:
        node.input[:] = ["scaled" if name == "images" else name for name in node.input]
    from onnx import helper

    export.nodes.insert(
        0, helper.make_node("Mul", ["images", export.const(np.float32(1 / 255))], ["scaled"])
    )
    assert found_in(write(tmp_path, export)) == GREEN


def test_a_list_of_six_columns_that_nothing_explains_is_refused(tmp_path):
    """SSD's and PaddleDetection's lists are as wide as YOLOv10's; ONNX files are refused alike."""
    from openvino import convert_model, save_model

    exports.finished(batch=1).save(tmp_path / "x.onnx")
    for name in ("model", "yolov10n"):
        save_model(convert_model(tmp_path / "x.onnx"), tmp_path / f"{name}.xml")
    with pytest.raises(ModelError, match=r"what its outputs mean .*--names"):
        open_network(str(tmp_path / "model.xml"))
    assert found_in(tmp_path / "yolov10n.xml") == [("car", 0.6, BOTH[0])] * 2
    names = tmp_path / "three.names"
    names.write_text("red\ngreen\nblue\n")
    assert open_network(str(tmp_path / "model.xml"), names=names).names == ("red", "green", "blue")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: scaled(1.0, 20.0), "outside 0..1"),
        (lambda: scaled(1 / SIDE, 1.0), "one pixel"),
        (lambda: rows_of_six("csb"), "a score is "),
        (lambda: rows_of_six("bsc"), None),
    ],
)
def test_raw_rows_that_nothing_proves_are_probed_as_those_of_onnx_files(tmp_path, make, said):
    """With class names of the user's alone; the metadata of Ultralytics would prove them."""
    folder = write(tmp_path, make(), text="")
    names = tmp_path / "three.names"
    names.write_text("red\ngreen\nblue\n")
    ended = detect_video("models", "show", folder, "--names", names, cwd=tmp_path)
    if said is None:
        assert ended.returncode == 0, ended.stderr
        return
    assert ended.returncode == 4
    [line] = ended.stderr.splitlines()
    assert said in line
    assert "ONNX file" in line


def scaled(boxes: float, scores: float) -> exports.Export:
    """YOLOv8's rows, with boxes and scores times a factor each."""
    export = exports.anchor_free()
    end = export.nodes.pop()
    export.outputs.clear()
    factors = np.float32([boxes] * 4 + [scores] * 3).reshape(1, 7, 1)
    return export.out("output0", export.add("Mul", end.input[0], export.const(factors)))


def test_metadata_that_proves_its_rows_spares_the_probe(tmp_path, monkeypatch):
    from detector.core import engines

    def never(*_: object) -> None:
        raise AssertionError("an engine was opened")

    folder = write(tmp_path, exports.anchor_free())
    monkeypatch.setattr(engines, "open", never)
    assert open_network(str(folder)).names == ("red", "green", "blue")


def test_a_run_of_an_ir_that_is_read_wrongly_says_to_give_the_onnx_file(tmp_path):
    """The user's names are taken at their word where the probe shows nothing."""
    export = rows_of_six("bsc")
    folder = write(tmp_path, export, text="")
    names = tmp_path / "two.names"
    names.write_text("red\ngreen\n")
    with (
        Detector(str(folder), names=str(names)) as detector,
        pytest.raises(ModelError, match=r"class 2.* names.* ONNX file"),
    ):
        detector(picture())


def test_other_arithmetic_inside_is_refused(tmp_path):
    export = exports.anchor_free()
    for node in export.nodes:
        node.input[:] = ["scaled" if name == "images" else name for name in node.input]
    from onnx import helper

    mean = export.const(np.array([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1))
    export.nodes.insert(0, helper.make_node("Sub", ["images", mean], ["scaled"]))
    with pytest.raises(ModelError, match="only a division by 255"):
        open_network(str(write(tmp_path, export)))


def _no_weights(folder: Path) -> None:
    (folder / "yolov8n.bin").unlink()


def _other_weights(folder: Path) -> None:
    (folder / "yolov8n.bin").write_bytes(b"short")


def _text(folder: Path) -> None:
    (folder / "yolov8n.xml").write_text("junk")


def _half_an_xml(folder: Path) -> None:
    whole = (folder / "yolov8n.xml").read_bytes()
    (folder / "yolov8n.xml").write_bytes(whole[: len(whole) // 2])


def _another_task(folder: Path) -> None:
    (folder / "metadata.yaml").write_text("task: segment\n")


def _no_yaml(folder: Path) -> None:
    (folder / "metadata.yaml").write_text("names: {0: [\n")


def _two(folder: Path) -> None:
    shutil.copy(folder / "yolov8n.xml", folder / "other.xml")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_no_weights, "yolov8n.bin"),
        (_other_weights, "damaged"),
        (_text, "not an OpenVINO IR"),
        (_half_an_xml, "damaged"),
        (_another_task, "segment"),
        (_no_yaml, "metadata.yaml"),
        (_two, "2 models: other.xml, yolov8n.xml"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, damage, said):
    folder = write(tmp_path, exports.anchor_free())
    damage(folder)
    with pytest.raises(ModelError) as caught:
        open_network(str(folder))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_and_batches_that_are_fixed_are_said(tmp_path):
    folder = write(tmp_path, exports.anchor_free())
    with pytest.raises(ModelError, match="fixed at 64x64"):
        open_network(str(folder), size=(96, 96))
    with pytest.raises(ModelError, match="fixed at batch 1"):
        open_network(str(folder), batch=2)


def test_other_engines_and_int8_are_refused_with_what_to_use(tmp_path):
    folder = write(tmp_path, exports.anchor_free())
    with pytest.raises(EngineError, match="engine openvino"):
        Detector(str(folder), engine="ort")
    with pytest.raises(EngineError, match="int8"):
        Detector(str(folder), precision="int8")


def test_models_show_opens_it_and_build_says_that_there_is_nothing_to_build(tmp_path):
    folder = write(tmp_path, exports.anchor_free())
    shown = detect_video("models", "show", folder, "--json", cwd=tmp_path)
    facts = json.loads(shown.stdout)
    assert (facts["input"], facts["names"]) == ([SIDE, SIDE], ["red", "green", "blue"])
    assert facts["outputs"] == [[1, 7, 84]]
    assert facts["macs"] is None
    for what in (("--to", "onnx"), ("--engine", "openvino")):
        done = detect_video("build", folder, *what, cwd=tmp_path)
        assert done.returncode == 4
        assert "no graph" in done.stderr
