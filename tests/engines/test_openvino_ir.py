"""OpenVINO IR, such as the folder that Ultralytics writes. Only the engine ``openvino`` runs IR."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from detector import Detector
from detector.core.engines._openvino_graph import read_stated_input
from detector.core.errors import EngineError, ModelError
from tests.cli.command import detect_video
from tests.known_answers import run_once
from tests.models import exports
from tests.models.exports import SIDE
from tests.models.test_onnx_evidence import rows_of_six
from tests.models.test_onnx_families import BOTH, CASES, COLOUR, bright, detect, picture
from tests.models.test_onnx_levels import convolve, pyramid
from tests.networks import open_network, refusal

pytestmark = pytest.mark.slow
pytest.importorskip("openvino", reason="needs openvino, which writes and reads the files")

from openvino import Layout, Type  # noqa: E402
from openvino.preprocess import ColorFormat, PrePostProcessor  # noqa: E402

METADATA = """\
description: Ultralytics YOLOv8n model
stride: 32
task: detect
imgsz: [64, 64]
names: {0: red, 1: green, 2: blue}
args: {half: false, nms: false}
"""
GREEN = [("green", 0.8, box) for box in BOTH]


def write(
    folder: Path, export: exports.Export, *, half: bool = False, text: str = METADATA
) -> Path:
    """Write a folder with .xml and .bin. ``text``: content of metadata.yaml; empty: no file."""
    inside = folder / "yolov8n_openvino_model"
    inside.mkdir()
    convert(export, inside / "yolov8n.xml", half=half)
    if text:
        (inside / "metadata.yaml").write_text(text)
    return inside


def convert(
    export: exports.Export,
    path: Path,
    prepare: Callable[[PrePostProcessor], object] | None = None,
    info: Mapping[str, object] = MappingProxyType({}),
    half: bool = False,
) -> Path:
    """Write an IR. ``prepare``: adds preprocessing to the model. ``info``: the IR's model_info."""
    import openvino

    model = openvino.convert_model(export.save(path.with_suffix(".onnx"), None))
    path.with_suffix(".onnx").unlink()
    if prepare is not None:
        steps = PrePostProcessor(model)
        steps.input().model().set_layout(openvino.Layout("NCHW"))
        prepare(steps.input())
        model = steps.build()
    for key, value in info.items():
        model.set_rt_info(value, ["model_info", key])
    openvino.save_model(model, path, compress_to_fp16=half)
    return path


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


OPEN_LENGTH = ("yolov7-nms", "yolov8-padded")


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_ir_is_recognised_like_its_onnx_file(tmp_path, case):
    name, make, family, layout, expected = case
    path = convert(make(), tmp_path / f"{name}.xml")
    (tmp_path / "metadata.yaml").write_text(METADATA.split("\n", 1)[1])
    if name in OPEN_LENGTH:
        with pytest.raises(ModelError, match="depends on the picture; export it without NMS"):
            open_network(str(path))
        return
    network = open_network(str(path))
    assert (network.family, network.details["layout"]) == (family, layout)
    assert sorted(found_in(path)) == sorted(
        (name, round(score, 2), box) for name, score, box in expected
    )


def test_rows_are_final_boxes_if_the_metadata_says_that_nms_ran(tmp_path):
    export = exports.finished(batch=1, count=exports.CELLS)
    folder = write(tmp_path, export, text=METADATA.replace("nms: false", "nms: true"))
    assert found_in(folder) == [("blue", 0.6, BOTH[0])] * 2


def varied(form: str) -> exports.Export:
    free = {"batch": "batch", "side": "side"} if form == "dynamic" else {}
    export, parts = exports.Export(**free), []
    for level in pyramid(export, 3):
        if form == "int8":
            scale = export.const([0.02]), export.const([0], np.uint8)
            level = export.add("QuantizeLinear", level, *scale)
            level = export.add("DequantizeLinear", level, *scale)
        box = export.add("Sigmoid", convolve(export, level, 8, 4, 1))
        box = export.add("Mul", box, export.const([60.0]))
        logits = export.add("Mul", convolve(export, level, 8, 3, 1), export.const([20.0]))
        both = export.add("Concat", box, export.add("Sigmoid", logits), axis=1)
        parts.append(export.add("Reshape", both, export.ints(0, 7, -1)))
    return export.out("output0", export.add("Concat", *parts, axis=2))


@pytest.mark.parametrize("form", ["dynamic", "half", "int8"])
def test_rows_of_an_unnamed_output_are_decoded(tmp_path, form):
    """Ultralytics (in YOLO11, YOLOv10 and YOLO26) and NNCF (in INT8 files) give outputs no name."""
    import openvino

    folder = write(tmp_path, varied(form), half=form == "half")
    model = openvino.Core().read_model(folder / "yolov8n.xml")
    model.output(0).get_tensor().set_names(set())
    openvino.save_model(model, tmp_path / "yolov8n.xml", compress_to_fp16=form == "half")
    for suffix in (".xml", ".bin"):
        shutil.move(tmp_path / f"yolov8n{suffix}", folder / f"yolov8n{suffix}")
    kinds = {op.get_type_name() for op in model.get_ops()}
    assert ("FakeQuantize" in kinds) == (form == "int8")
    image = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    pixels = (image[..., ::-1] / 255).transpose(2, 0, 1)[None].astype(np.float32)
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    ((rows,),) = openvino.compile_model(model, "CPU", exact)(pixels).values()
    (x, y, w, h), scores = rows[:4], rows[4:]
    corners = np.clip([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 0, SIDE)
    expected = np.stack([*corners, scores.max(0), scores.argmax(0)], axis=1)[scores.max(0) >= 0.5]
    assert len(expected) > 10
    assert len(set(expected[:, 5])) > 1
    with Detector(str(folder), conf=0.5, iou=1.0, max_det=100) as detector:
        found = detector(image)
    ours = np.column_stack([found.boxes, found.scores, found.class_ids])
    assert np.allclose(sorted(ours.tolist()), sorted(expected.tolist()), atol=0.02)


def _bytes_bgr(pixels) -> None:  # the example in OpenVINO's documentation
    pixels.tensor().set_element_type(Type.u8).set_layout(Layout("NHWC"))
    pixels.tensor().set_color_format(ColorFormat.BGR)
    pixels.preprocess().convert_element_type(Type.f32).convert_color(ColorFormat.RGB).scale(255.0)


def _planar_bytes(pixels) -> None:
    pixels.tensor().set_element_type(Type.u8)
    pixels.preprocess().convert_element_type(Type.f32).scale(255.0)


def _reversed(pixels) -> None:
    pixels.preprocess().reverse_channels().scale(255.0)


INSIDE = {
    "u8 BGR input": _bytes_bgr,
    "u8 planar input": _planar_bytes,
    "scaled by 1/255": lambda pixels: pixels.preprocess().scale(255.0),
    "reversed channels and scaled": _reversed,
    "only reversed channels": lambda pixels: pixels.preprocess().reverse_channels(),
    "mean and scale": lambda pixels: pixels.preprocess().mean([0.0] * 3).scale([255.0] * 3),
    "channels in the last axis": lambda pixels: pixels.tensor().set_layout(Layout("NHWC")),
}


@pytest.mark.parametrize("case", INSIDE)
@pytest.mark.parametrize("folds", [False, True])
def test_preprocessing_in_the_file_is_not_repeated(tmp_path, case, folds):
    """``folds``: whether OpenVINO moves the preprocessing into the first convolution's weights."""
    export = exports.anchor_free(pixels="convolved" if folds else "")
    path = convert(export, tmp_path / "yolov8n.xml", INSIDE[case])
    (tmp_path / "yolov8n.names").write_text("red\ngreen\nblue\n")
    assert found_in(path) == GREEN
    description = tmp_path / "d.yaml"
    done = detect_video("models", "describe", path, "-o", description, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert found_in(path, describe=str(description)) == GREEN


def test_weights_for_pixels_of_0_to_255_are_refused_unless_described(tmp_path):
    """Old versions of Model Optimizer folded the scale into the weights without saying so."""
    export = exports.anchor_free(pixels="convolved", scale=1 / 255)
    path = convert(export, tmp_path / "yolov8n.xml")
    names = tmp_path / "yolov8n.names"
    names.write_text("red\ngreen\nblue\n")
    for option in ((), ("--family", "yolov8")):
        ended = detect_video("models", "show", "yolov8n.xml", *option, cwd=tmp_path)
        assert ended.returncode == 4
        assert "pixels of 0..255, not 0..1" in ended.stderr
        assert "detect-video models describe" in ended.stderr
    done = detect_video("models", "describe", "yolov8n.xml", "-o", "d.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    description = tmp_path / "d.yaml"  # then correct a wrong guess, as a user would
    description.write_text(description.read_text().replace("form: xyxy", "form: cxcywh"))
    assert found_in(path, describe=str(description)) == GREEN


MODEL_INFO = {
    "model_type": "YOLO",
    "labels": ["red", "dark_green", "blue"],
    "scale_values": [255.0],
    "reverse_input_channels": True,
    "resize_type": "fit_to_window",
    "pad_value": 7,
}


@pytest.mark.parametrize(
    ("more", "colour"),
    [({}, COLOUR), ({"reverse_input_channels": False}, COLOUR[::-1]), ({"pad_value": "x"}, COLOUR)],
)
def test_model_info_states_classes_and_pixels(tmp_path, more, colour):
    path = convert(exports.anchor_free(), tmp_path / "m.xml", info=MODEL_INFO | more)
    network = open_network(str(path))
    assert network.names == ("red", "dark green", "blue")
    assert network.input.geometry == "top-left"
    assert network.input.pad_value == (114 if more.get("pad_value") else 7)
    with Detector(str(path)) as detector:
        found = detector(picture(colour))
    assert {found.name(at) for at in range(len(found))} == {"dark green"}


def test_mean_in_the_model_info_may_be_zero_in_a_channel():
    found = read_stated_input({"mean_values": "9 0 7", "scale_values": "255"})
    assert (found["mean"], found["deviation"]) == ((9.0, 0.0, 7.0), (255.0,) * 3)
    assert (
        read_stated_input({"scale_values": "1 0 1"})
        == read_stated_input({"mean_values": "nan"})
        == {}
    )


@pytest.mark.parametrize("decode", [False, True])
def test_yolox_gets_bgr_pixels_of_0_to_255(tmp_path, decode):
    names = tmp_path / "m.names"
    names.write_text("blue\ngreen\nred\n")
    path = convert(exports.yolox(decode), tmp_path / "m.xml")
    network = open_network(str(path))
    assert network.details["layout"] == ("decoded" if decode else "grid")
    onnx = exports.yolox(decode).save(tmp_path / "m.onnx")
    for options in ({}, {"family": "yolox"}, {"names": str(names)}):
        found = detect(str(path), bright(), engine="openvino", **options)
        assert found == detect(onnx, bright(), **options)


def test_ssd_of_open_model_zoo_runs_with_and_without_description(tmp_path):
    path = tmp_path / "person-detection-retail.xml"
    write_ssd(path)
    image = np.zeros((96, 192, 3), np.uint8)
    image[32:48, 32:64] = (0, 0, 255)
    description = tmp_path / "d.yaml"
    done = detect_video("models", "describe", path, "-o", description, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for options in ({}, {"family": "ssd-openvino"}, {"describe": str(description)}):
        with Detector(str(path), **options) as detector:
            found = detector(image)
        assert np.allclose(found.boxes, [[32, 32, 64, 48]], atol=1e-3)
        assert found.class_ids.tolist() == [0], "class 0 of the file, the background, is dropped"


def write_ssd(path: Path) -> None:
    """Write an SSD with BGR input. Its boxes are cells of 16 pixels; a score is red - blue."""
    import openvino
    from openvino import opset8 as op

    picture = op.parameter([1, 3, 96, 96], np.float32, name="image")
    mean = np.zeros((1, 3, 16, 16), np.float32)
    mean[0, 0], mean[0, 2] = -1 / 255 / 256, 1 / 255 / 256
    score = op.clamp(
        op.convolution(picture, op.constant(mean), [16] * 2, [0] * 2, [0] * 2, [1] * 2), 0.0, 1.0
    )
    score = op.reshape(score, op.constant([1, 36, 1]), False)
    background = op.subtract(op.constant(np.float32(1)), score)
    classes = op.reshape(op.concat([background, score], 2), op.constant([1, 72]), False)
    corners = [[x / 6, y / 6, (x + 1) / 6, (y + 1) / 6] for y in range(6) for x in range(6)]
    priors = np.float32([np.ravel(corners), [0.1, 0.1, 0.2, 0.2] * 36])[None]
    boxes = op.multiply(op.tile(score, op.constant([1, 1, 4])), op.constant(np.float32(0)))
    found = op.detection_output(
        op.reshape(boxes, op.constant([1, 144]), False),
        classes,
        op.constant(priors),
        {
            "background_label_id": 0,
            "top_k": 100,
            "keep_top_k": [20],
            "code_type": "caffe.PriorBoxParameter.CENTER_SIZE",
            "share_location": True,
            "nms_threshold": 0.45,
            "confidence_threshold": 0.2,
            "normalized": True,
        },
    )
    model = openvino.Model([op.result(found)], [picture], "ssd")
    openvino.save_model(model, path, compress_to_fp16=False)


def test_ir_opens_by_its_xml_path_and_gets_dynamic_sizes_from_metadata(tmp_path):
    folder = write(tmp_path, exports.anchor_free(batch="batch", side="side"))
    assert found_in(folder / "yolov8n.xml") == GREEN
    network = open_network(str(folder / "yolov8n.xml"), batch=3)
    assert network.input_shape == (3, SIDE, SIDE, 3)
    pictures = np.stack([picture(), picture((0, 0, 255)), picture()])[..., ::-1]
    (rows,) = run_once(network, pictures, "openvino")
    scores = rows[:, 4:, 0]
    assert np.allclose(scores, [np.divide(COLOUR, 255), [0, 0, 1], np.divide(COLOUR, 255)])


def test_rows_of_six_unexplained_columns_are_refused(tmp_path):
    """SSD, PaddleDetection and YOLOv10 all return six columns. Such ONNX files are refused, too."""
    from openvino import convert_model, save_model

    exports.finished(batch=1).save(tmp_path / "x.onnx")
    for name in ("model", "yolov10n"):
        save_model(convert_model(tmp_path / "x.onnx"), tmp_path / f"{name}.xml")
    with pytest.raises(ModelError, match=r"not certain .*--family"):
        open_network(str(tmp_path / "model.xml"))
    assert found_in(tmp_path / "yolov10n.xml") == [("car", 0.6, BOTH[0])] * 2
    names = tmp_path / "three.names"
    names.write_text("red\ngreen\nblue\n")
    network = open_network(str(tmp_path / "model.xml"), names=names, family="yolov10")
    assert network.names == ("red", "green", "blue")


def test_rows_identified_by_metadata_are_not_probed(tmp_path, monkeypatch):
    from detector.core import engines

    def never(*_: object) -> None:
        raise AssertionError("an engine was opened")

    folder = write(tmp_path, exports.anchor_free())
    monkeypatch.setattr(engines, "open", never)
    assert open_network(str(folder)).names == ("red", "green", "blue")


def test_error_for_a_misread_ir_says_how_to_describe_it(tmp_path):
    """The probe before the run cannot notice that the user's names are wrong. Only the run can."""
    export = rows_of_six("bsc")
    folder = write(tmp_path, export, text="")
    names = tmp_path / "two.names"
    names.write_text("red\ngreen\n")
    with (
        Detector(str(folder), names=str(names)) as detector,
        pytest.raises(ModelError, match=r"class 2.* names.* models describe"),
    ):
        detector(picture())


def _no_weights(folder: Path) -> None:
    (folder / "yolov8n.bin").unlink()


def _other_weights(folder: Path) -> None:
    (folder / "yolov8n.bin").write_bytes(b"short")


def _junk_xml(folder: Path) -> None:
    (folder / "yolov8n.xml").write_text("junk")


def _half_an_xml(folder: Path) -> None:
    whole = (folder / "yolov8n.xml").read_bytes()
    (folder / "yolov8n.xml").write_bytes(whole[: len(whole) // 2])


def _another_task(folder: Path) -> None:
    (folder / "metadata.yaml").write_text("task: segment\n")


def _junk_yaml(folder: Path) -> None:
    (folder / "metadata.yaml").write_text("names: {0: [\n")


def _two_models(folder: Path) -> None:
    shutil.copy(folder / "yolov8n.xml", folder / "other.xml")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_no_weights, "yolov8n.bin"),
        (_other_weights, "damaged"),
        (_junk_xml, "not an OpenVINO IR"),
        (_half_an_xml, "damaged"),
        (_another_task, "segment"),
        (_junk_yaml, "metadata.yaml"),
        (_two_models, "2 models: other.xml, yolov8n.xml"),
    ],
)
def test_damaged_folder_is_refused_in_one_line(tmp_path, damage, message):
    folder = write(tmp_path, exports.anchor_free())
    damage(folder)
    assert message in refusal(str(folder))


def test_size_or_batch_that_differs_from_the_fixed_one_is_refused(tmp_path):
    folder = write(tmp_path, exports.anchor_free())
    with pytest.raises(ModelError, match="fixed at 64x64"):
        open_network(str(folder), size=(96, 96))
    with pytest.raises(ModelError, match="fixed at batch 1"):
        open_network(str(folder), batch=2)


def test_error_for_another_engine_or_int8_says_what_to_use(tmp_path):
    folder = write(tmp_path, exports.anchor_free())
    with pytest.raises(EngineError, match="engine openvino"):
        Detector(str(folder), engine="ort")
    with pytest.raises(EngineError, match="cannot be quantised here"):
        Detector(str(folder), precision="int8")


def test_ir_is_accepted_by_models_show_and_refused_by_build(tmp_path):
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
