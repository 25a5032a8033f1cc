"""``--engine trt`` on a fake TensorRT gives the detections of ONNX Runtime for a real network."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from detector import Detector
from detector.core.engines.trt import driver
from tests.cli.command import invoke
from tests.conftest import CHECKOUT
from tests.fakes.install import MAJORS, install_fake_tensorrt
from tests.fakes.packages import PACKAGES
from tests.fakes.plans import as_exported, plan_of
from tests.networks import open_network

pytestmark = pytest.mark.usefixtures("place")

STREET = CHECKOUT / "videos/street.mp4"


def run(*arguments: object, code: int = 0) -> dict:
    result = invoke("detect", *arguments, "--json", "--engines-dir", "built")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def rows(path: str) -> list[list[dict]]:
    return [json.loads(line)["detections"] for line in Path(path).read_text().splitlines()]


def assert_same(ours: list[list[dict]], theirs: list[list[dict]]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert [item["class"] for item in a] == [item["class"] for item in b]
        for key, tolerance in (("score", 2e-3), ("box", 0.1)):
            np.testing.assert_allclose(
                [item[key] for item in a], [item[key] for item in b], atol=tolerance
            )


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> list[list[dict]]:
    place = tmp_path_factory.mktemp("ort")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        summary = run(STREET, "--engine", "ort", "--frames", 8, "--no-video")
        assert summary["fps"]["device"] is None
        rows_found = rows(summary["outputs"]["jsonl"])
    assert sum(map(len, rows_found)) > 50
    return rows_found


@pytest.mark.slow
@pytest.mark.parametrize("memory", PACKAGES)
@pytest.mark.parametrize("major", MAJORS)
def test_detections_are_the_same_as_with_onnx_runtime(monkeypatch, reference, major, memory):
    machine = install_fake_tensorrt(monkeypatch, major, memory)
    words = (STREET, *"--engine trt --no-video --batch 2 --device-memory".split(), memory)
    summary = run(*words, "--frames", 8)
    assert_same(rows(summary["outputs"]["jsonl"]), reference)
    assert machine.device.allocations == {}
    assert len(machine.fake.builds) == 1
    assert f"device memory by {memory}" in " ".join(summary["notes"])
    assert summary["fps"]["device"] > 0
    run(*words, "--frames", 1)
    assert len(machine.fake.builds) == 1  # the second run reuses the plan


@pytest.mark.slow
@pytest.mark.parametrize(("major", "precision"), [(10, "fp16"), (11, "bf16"), (10, "int8")])
def test_summary_reports_whether_the_precision_took_effect(
    monkeypatch, reference, major, precision
):
    machine = install_fake_tensorrt(monkeypatch, major)
    asked = [STREET, "--engine", "trt", "--frames", 8, "--no-video", "--precision", precision]
    summary = run(
        *asked, *(["--calibrate", STREET, "--calibrate-frames", 8] if precision == "int8" else [])
    )
    assert (summary["precision"], summary["precision_effect"]) == (precision, None)
    assert summary["precision_executed"][precision]["macs"] > 0.5
    counts = [sum(map(len, found)) for found in (rows(summary["outputs"]["jsonl"]), reference)]
    assert counts[0] == pytest.approx(counts[1], rel=0.1)
    if precision == "int8":
        machine.fake.int8_kernels = False
        summary = run(*asked, "--engine-options", "level=1")  # builds another plan
        assert "executed as fp32 100%" in summary["precision_effect"]


@pytest.mark.slow
def test_auto_chooses_trt_with_a_reason(monkeypatch, reference):
    install_fake_tensorrt(monkeypatch)
    summary = run(STREET, "--frames", 2, "--no-video")
    assert summary["engine"] == "trt"
    assert summary["engine_reason"].startswith("engine trt: tensorrt ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "yaml",
    [
        "cfg: yolov4-tiny-person-vehicle.cfg\nnames: [person, vehicle]\n",
        "network:\n  cfg: yolov4-tiny-person-vehicle.cfg\n  names: {0: person, 1: vehicle}\n"
        "selection:\n  conf: 0.25\n",
        "cfg: yolov4-tiny-person-vehicle.cfg\nnames: the.names\nsize: 608x352\n",
    ],
)
def test_plan_that_a_yaml_file_describes_is_read(monkeypatch, place, reference, yaml):
    """Run ``detect-video in.mp4 --engine trt --model NAME.trt --config NAME.yaml``.

    The plan was built from the model ``street``, but it has another name and another folder.
    """
    machine = install_fake_tensorrt(monkeypatch)
    models = place / "models"
    models.mkdir()
    name = models / "yolov4-tiny-person-vehicle"
    name.with_suffix(".cfg").write_text((CHECKOUT / "cfg/darknet/street.cfg").read_text())
    (models / "the.names").write_text("person\nvehicle\n")
    name.with_suffix(".yaml").write_text(yaml)
    name.with_suffix(".trt").write_bytes(plan_of(machine, as_exported(open_network("street"))))
    plan = ("--model", name.with_suffix(".trt"), "--no-video")
    config = ("--config", name.with_suffix(".yaml"))
    summary = run(STREET, "--engine", "trt", *plan, *config, "--frames", 8)
    assert_same(rows(summary["outputs"]["jsonl"]), reference)
    # Without options, the program finds the YAML next to the plan, and chooses the engine.
    summary = run(STREET, *plan, "--frames", 1)
    assert summary["engine_reason"].startswith("engine trt: the only one")


def assert_one_line(result, code: int, *parts: str) -> None:
    assert result.exit_code == code, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    for part in parts:
        assert part in lines[0]


def test_plan_without_a_description_exits_4_and_lists_its_tensors(monkeypatch, place):
    machine = install_fake_tensorrt(monkeypatch)
    (place / "bare.trt").write_bytes(plan_of(machine, as_exported(open_network("street"))))
    result = invoke(STREET, "--engine", "trt", "--model", "bare.trt")
    assert_one_line(result, 4, "bare.trt", "float32 1x7x44x76", "in --config)", "(--names")


@pytest.mark.slow
def test_plan_is_loaded_on_the_chosen_gpu(monkeypatch, place, reference):
    machine = install_fake_tensorrt(monkeypatch, gpus=(("Fake T4", (7, 5)), ("Fake L4", (8, 9))))
    (place / "x.cfg").write_text((CHECKOUT / "cfg/darknet/street.cfg").read_text())
    (place / "x.names").write_text("person\nvehicle\n")
    with driver.current(1):
        (place / "x.trt").write_bytes(plan_of(machine, as_exported(open_network("street"))))
    plan = ["--model", "x.trt", "--frames", 1, "--no-video"]
    summary = run(STREET, *plan, "--device", "cuda:1")
    assert_same(rows(summary["outputs"]["jsonl"]), reference[:1])
    assert " on Fake L4, " in " ".join(summary["notes"])
    result = invoke(STREET, *plan)
    assert_one_line(result, 4, "x.trt: TensorRT ", "it was built for another GPU")
    result = invoke(STREET, *plan, "--device", "cpu")
    assert_one_line(result, 5, "x.trt: a plan of TensorRT runs on a GPU: --device cpu is not a GPU")


def test_error_for_a_plan_on_another_engine_names_the_fix(monkeypatch, place):
    (place / "x.trt").write_bytes(b"ftrt")
    for engine in ("ort", "torch", "null"):
        result = invoke(STREET, "--engine", engine, "--model", "x.trt")
        assert_one_line(result, 5, f"engine {engine}: x.trt is a TensorRT plan", "use --engine trt")


def test_missing_tensorrt_or_driver_exits_5(place):
    result = invoke(STREET, "--engine", "trt")
    assert_one_line(result, 5, "engine trt: ")


@pytest.mark.slow
@pytest.mark.parametrize("major", MAJORS)
def test_detector_returns_the_detections_of_onnx_runtime(monkeypatch, place, major):
    install_fake_tensorrt(monkeypatch, major)
    capture, found = cv2.VideoCapture(str(STREET)), 0
    with (
        Detector("street-1", engine="ort", size="320x192", engines_dir=str(place)) as theirs,
        Detector("street-1", engine="trt", size="320x192", engines_dir=str(place)) as ours,
    ):
        for width in (960, 540, 300, 720, 380, 900):
            image = capture.read()[1][:, :width]
            a, b = ours(image), theirs(image)
            np.testing.assert_array_equal(a.class_ids, b.class_ids)
            np.testing.assert_allclose(a.boxes, b.boxes, atol=0.05)
            np.testing.assert_allclose(a.scores, b.scores, atol=1e-4)
            found += len(a)
    assert found > 30
