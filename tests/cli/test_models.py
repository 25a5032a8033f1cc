"""The command ``models``: ``list``, ``show``, ``pull``, ``describe`` and ``families``."""

import json
import subprocess
import sys

import pytest
import yaml

from detector.core.jobs.models import facts, family_listing, listing
from detector.core.models import ModelRequest, known
from detector.core.models.catalogue import known_model
from detector.core.models.formats.darknet.cfg import read_cfg
from detector.core.models.formats.darknet.layers import read_architecture
from tests.cli.command import assert_one_line_error, detect_video, run_ok
from tests.conftest import CHECKOUT
from tests.golden.inputs import put
from tests.models import exports
from tests.models.exports import STATED

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
def test_listed_figures_of_a_model_equal_our_own_counts():
    for row in listing():
        if known_model(row["name"]).path.suffix == ".cfg":
            counted = facts(ModelRequest(row["name"]))
            assert (row["parameters"], row["macs"], row["input"]) == tuple(
                counted[key] for key in ("parameters", "macs", "input")
            ), row["name"]


def test_required_models_are_known():
    required = "yolov4-tiny yolov4-tiny-person-vehicle yolov7".split()
    assert {*required, *(f"yolov5{size}" for size in "nsmlx")} <= {*known()}
    tiny = known_model("yolov4-tiny").download
    assert tiny is not None
    assert tiny.sha256 == "cf9fbfd0f6d4869b35762f56100f50ed05268084078805f0e7989efe5bb8ca87"


def test_packaged_yolov4_tiny_has_the_layers_of_the_official_cfg(shared):
    plans = []
    for path in (known_model("yolov4-tiny").path, shared / "data/weights/yolov4-tiny.cfg"):
        sections, _ = read_cfg(path)
        plan = read_architecture(sections, size=None, batch=1)
        plans.append([str(layer).replace(f"line={layer.line},", "") for layer in plan.layers])
    assert plans[0] == plans[1]


def test_official_weights_have_a_known_licence_in_any_folder(shared):
    given = facts(ModelRequest(str(shared / "data/weights/yolov5n.pt")))
    assert given["licence"] == known_model("yolov5n").licence


KEYS = ("parameters", "parameters_fused", "macs", "flops", "family", "input", "names", "licence")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["street", "yolov4-tiny", "yolox_nano", "yolov5n"])
def test_show_prints_the_same_counts_as_text_and_json(tmp_path, model):
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
    done = run_ok("models", "show", path, "--json", "--size", "256x192", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert (document["family"], document["input"]) == ("yolox", [192, 256])
    assert document["parameters"] == sum(8 * 3 * stride**2 + 8 for stride in (8, 16, 32))
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
def test_wrong_arguments_of_models_are_refused_in_one_line(tmp_path, arguments, code, parts):
    done = detect_video("models", *arguments, cwd=tmp_path)
    assert_one_line_error(done, code, *parts)
    assert done.stdout == ""


@pytest.mark.slow
def test_run_reports_the_recognised_family(tmp_path):
    """The family is in the summary and in the printed text. The model's own batch is fixed at 1."""
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
        ("128", "fixed.onnx", [128, 128]),  # the file's input size is fixed, and a note says so
    ],
)
def test_size_option_is_the_longest_side_of_the_input(tmp_path, size, model, expected):
    if model == "fixed.onnx":
        model = exports.finished(side=128).save(tmp_path / model, STATED)
    elif model.endswith(".onnx"):
        model = exports.yolox().save(tmp_path / model)
    options = ("--model", model, "--size", size, "--frames", 1, "--engine", "ort")
    process = run_ok(STREET, *options, "--json", cwd=tmp_path)
    summary = json.loads(process.stdout)
    assert summary["model_input"] == expected
    noted = any("keeping the input at 128x128" in note for note in summary["notes"])
    assert noted == (size == "128")


def test_description_and_families_are_printed(tmp_path):
    put("dots.onnx", tmp_path)
    done = detect_video("models", "describe", "dots.onnx", "-o", "-", cwd=tmp_path)
    assert yaml.safe_load(done.stdout)["family"] == "yolov8"
    written = detect_video("models", "describe", "dots.onnx", cwd=tmp_path)
    assert written.stdout.startswith(done.stdout)
    assert (tmp_path / "dots.describe.yaml").read_text() == done.stdout
    done = detect_video("models", "families", cwd=tmp_path)
    assert all(one["name"] in done.stdout for one in family_listing())
