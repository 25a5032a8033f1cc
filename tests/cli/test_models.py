"""``models`` (list, show, describe, families) and ``infer-raw``."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml

from detector.core.jobs.models import facts, family_listing, listing
from detector.core.models import ModelRequest, known
from detector.core.models.catalogue import known_model
from tests.cli.command import assert_one_line_error, detect_video, run_ok
from tests.conftest import CHECKOUT
from tests.golden.inputs import put
from tests.models import exports
from tests.models.exports import STATED
from tests.networks import open_network

STREET = CHECKOUT / "videos/street.mp4"


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
def test_models_are_listed(tmp_path):
    process = run_ok("models", cwd=tmp_path)
    for name in known():
        assert name in process.stdout
    assert "pull yolov4-tiny" in process.stdout
    rows = json.loads(detect_video("models", "list", "--json", cwd=tmp_path).stdout)
    assert [row["name"] for row in rows] == known()
    for row in rows:
        assert row["licence"], row
        assert row["input"], row
        assert row["parameters"] or row["parameters_fused"], row


@pytest.mark.slow
def test_listed_model_figures_equal_counted_ones():
    for row in listing():
        if known_model(row["name"]).path.suffix == ".cfg":
            counted = facts(ModelRequest(row["name"]))
            assert (row["parameters"], row["macs"], row["input"]) == tuple(
                counted[key] for key in ("parameters", "macs", "input")
            ), row["name"]


def test_required_models_are_known():
    for name in (
        "yolov4-tiny",
        "yolov4-tiny-person-vehicle",
        "yolov7",
        *(f"yolov5{size}" for size in "nsmlx"),
    ):
        assert name in known()
    tiny = known_model("yolov4-tiny").download
    assert tiny is not None
    assert tiny.sha256 == "cf9fbfd0f6d4869b35762f56100f50ed05268084078805f0e7989efe5bb8ca87"


def test_packaged_yolov4_tiny_equals_the_official_one(shared):
    """Compare the layers of our description with those of the official cfg."""
    from detector.core.models.formats.darknet.cfg import read_cfg
    from detector.core.models.formats.darknet.layers import read_architecture

    plans = []
    for path in (known_model("yolov4-tiny").path, shared / "data/weights/yolov4-tiny.cfg"):
        sections, _ = read_cfg(path)
        plan = read_architecture(sections, size=None, batch=1)
        plans.append([str(layer).replace(f"line={layer.line},", "") for layer in plan.layers])
    assert plans[0] == plans[1]


KEYS = ("parameters", "parameters_fused", "macs", "flops", "family", "input", "names", "licence")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["street", "yolov4-tiny", "yolox_nano", "yolov5n"])
def test_show_json(tmp_path, model):
    process = run_ok("models", "show", model, "--json", cwd=tmp_path)
    document = json.loads(process.stdout)
    assert set(KEYS) <= set(document)
    assert document["family"] == known_model(model).family
    if document["macs"] is not None:
        assert document["flops"] == 2 * document["macs"]
    if model == "yolov5n":
        assert (document["parameters"], document["parameters_fused"]) == (1872157, 1867405)
    text = detect_video("models", "show", model, cwd=tmp_path).stdout
    assert f"{document['parameters']:,}" in text


@pytest.mark.slow
def test_show_describes_a_file(tmp_path):
    path = exports.yolox().save(tmp_path / "nano.onnx")
    document = json.loads(
        detect_video("models", "show", path, "--json", "--size", "256x192", cwd=tmp_path).stdout
    )
    assert (document["family"], document["input"], document["parameters"]) == (
        "yolox",
        [192, 256],
        sum(8 * 3 * stride**2 + 8 for stride in (8, 16, 32)),
    )
    assert document["outputs"] == [[1, 1008, 8]]
    assert "nano.onnx is yolox" in document["notes"][0]


@pytest.mark.slow
def test_models_command_does_not_import_torch(tmp_path):
    code = (
        "import sys; from detector.core.jobs.models import facts, listing; "
        "from detector.core.models.base import ModelRequest; "
        "listing(); facts(ModelRequest('street')); facts(ModelRequest('yolov5n')); "
        "heavy = {'torch', 'cv2', 'av', 'onnxruntime'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["show", "yolov5x9"], 4, ["unknown model 'yolov5x9'", "did you mean yolov5x?"]),
        (["show", "absent.onnx"], 4, ["absent.onnx: no such file"]),
        (["pull", "yolox_l"], 4, ["yolox_l: its checksum is unknown", "yolox_l.onnx at"]),
        (["pull", "street"], 4, ["street: nothing to pull"]),
        (["show", "street", "--family", "yolov8"], 2, ["--family yolov8: not for street.cfg"]),
    ],
)
def test_wrong_arguments_of_models(tmp_path, arguments, code, parts):
    done = detect_video("models", *arguments, cwd=tmp_path)
    assert_one_line_error(done, code, *parts)
    assert done.stdout == ""


@pytest.mark.slow
def test_run_reports_the_recognised_family(tmp_path):
    """The family is in the summary and in the output. The file has a fixed batch of 1."""
    model = exports.yolox().save(tmp_path / "nano.onnx", STATED)
    process = run_ok(
        STREET, "--model", model, "--frames", 6, "--batch", 4, "--engine", "ort", cwd=tmp_path
    )
    assert "nano.onnx is yolox" in process.stdout
    summary = json.loads((tmp_path / "runs/street-ort/summary.json").read_text())
    assert (summary["family"], summary["batch"], summary["model_input"]) == ("yolox", 4, [64, 64])
    assert summary["detections"]["by_class"]["red"] >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "model", "expected"),
    [
        ("320", "street", [192, 320]),  # 960x540 centred in 320x192
        ("320x320", "street", [320, 320]),
        ("320", "yolox.onnx", [320, 320]),  # YOLOX keeps square inputs
        ("128", "fixed.onnx", [128, 128]),  # the file's size is fixed, which is noted
    ],
)
def test_size_of_the_longest_side(tmp_path, size, model, expected):
    if model == "fixed.onnx":
        model = exports.finished(side=128).save(tmp_path / model, STATED)
    elif model.endswith(".onnx"):
        model = exports.yolox().save(tmp_path / model)
    options = ("--model", model, "--size", size, "--frames", 1, "--engine", "ort")
    process = run_ok(STREET, *options, "--json", cwd=tmp_path)
    summary = json.loads(process.stdout)
    assert summary["model_input"] == expected
    fixed_notes = [
        note
        for note in summary["notes"]
        if "keeping the input at 128x128: fixed: the file is fixed" in note
    ]
    assert len(fixed_notes) == (size == "128")


# ---- infer-raw


@pytest.mark.slow
def test_infer_raw_writes_every_decoded_row(tmp_path):
    path = exports.yolox().save(tmp_path / "m.onnx")
    given = np.random.default_rng(1).integers(0, 256, (3, 64, 96, 3), np.uint8)
    np.savez(
        tmp_path / "x.npz", input=given, input_planar=given.transpose(0, 3, 1, 2), other=np.zeros(3)
    )
    options = "--engine ort --batch 2 --input x.npz --output y.npz".split()
    process = run_ok("infer-raw", path, *options, cwd=tmp_path)
    assert process.stdout.splitlines() == ["y.npz: output 3x126x8", "y.npz: output_planar 3x126x8"]
    written = np.load(tmp_path / "y.npz")
    assert written["output"].dtype == np.float32
    np.testing.assert_allclose(written["output"], written["output_planar"])
    from tests.known_answers import run_once

    network = open_network(path, size=(64, 96))
    for at in range(3):
        [expected] = network.dense(run_once(network, given[at : at + 1]))
        np.testing.assert_allclose(written["output"][at], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_infer_raw_on_the_darknet_reference(shared, tmp_path):
    weights = shared / "data/weights"
    model = weights / "yolo-fastest-1.1.cfg"
    arrays = ("--input", weights / "yolo-fastest-1.1_reference.npz", "--output", "y.npz")
    run_ok("infer-raw", model, "--engine", "ort", *arrays, cwd=tmp_path)
    ours = np.load(tmp_path / "y.npz")["output"][0]
    reference = np.load(weights / "yolo-fastest-1.1_reference.npz")
    theirs = np.concatenate([reference["output_yolo_121"], reference["output_yolo_130"]])
    # The tolerance follows from epsilon 1e-6, see REFERENCE.md.
    np.testing.assert_allclose(ours[:, :4], theirs[:, :4] * 320, atol=0.32 * 2)
    np.testing.assert_allclose(ours[:, 4:5] * ours[:, 5:], theirs[:, 5:], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arrays", "code", "part"),
    [
        ({"input": np.zeros((1, 64, 64, 3), np.float32)}, 2, "contains no pictures"),
        ({"input": np.zeros((1, 64, 64, 4), np.uint8)}, 2, "input is [1, 64, 64, 4]"),
        ({"input": np.zeros((1, 48, 64, 3), np.uint8)}, 4, "both sides must be multiples of 32"),
        (None, 2, "x.npz: not an .npz"),
    ],
)
def test_wrong_input_of_infer_raw(tmp_path, arrays, code, part):
    path = exports.yolox().save(tmp_path / "m.onnx", STATED)
    if arrays is None:
        (tmp_path / "x.npz").write_text("no zip")
    else:
        np.savez(tmp_path / "x.npz", **arrays)
    process = detect_video(
        "infer-raw", path, "--engine", "ort", "--input", "x.npz", "--output", "y.npz", cwd=tmp_path
    )
    assert_one_line_error(process, code, part)
    assert not (tmp_path / "y.npz").exists()


def test_description_and_families_are_printed(tmp_path):
    put("dots.onnx", tmp_path)
    done = detect_video("models", "describe", "dots.onnx", "-o", "-", cwd=tmp_path)
    assert yaml.safe_load(done.stdout)["outputs"]
    written = detect_video("models", "describe", "dots.onnx", cwd=tmp_path)
    assert written.stdout.startswith(done.stdout)
    assert (tmp_path / "dots.describe.yaml").read_text() == done.stdout
    done = detect_video("models", "families", cwd=tmp_path)
    assert all(one["name"] in done.stdout for one in family_listing())
