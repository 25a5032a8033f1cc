"""``eval``: accuracy and speed of its own runs, scores of written detections, gates, errors."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from detector.core.models import front_ends
from tests.cli.command import assert_one_line_error, detect_video, run_ok, summary_of
from tests.conftest import CHECKOUT, night
from tests.lab.datasets import samples

pytestmark = pytest.mark.slow
pytest.importorskip("faster_coco_eval", reason="machine: faster-coco-eval is not installed")

STREET = CHECKOUT / "videos/street.mp4"
LABELS = STREET.with_suffix(".json")
SETTINGS = ("--conf", 0.001, "--iou", 0.65)


def figures(process):
    assert process.returncode == 0, process.stderr
    return summary_of(process)["results"]


def test_video_is_scored_with_the_labels_next_to_it(tmp_path):
    (row,) = figures(
        detect_video("eval", STREET, "--frames", 12, "--engine", "ort", "--json", cwd=tmp_path)
    )
    assert row["engine"] == "ort"
    assert row["frames"]["written"] == 12
    assert row["fps"]["inference"] > 0
    assert row["fps"]["end_to_end"] > 0
    assert 0.7 < row["ap50"] < 1
    assert row["ap"] < row["ap50"]
    low, high = row["ap50_interval"]
    assert low <= row["ap50"] <= high
    assert {name: one["pictures"] for name, one in row["per_class"].items()} == {
        "person": 12,
        "vehicle": 12,
    }


def test_session_contains_ledger_figures_and_plots(tmp_path):
    process = run_ok(
        *("eval", LABELS, *"--frames 3 --engine ort --run-dir run --table t.csv".split()),
        cwd=tmp_path,
    )
    table = (tmp_path / "t.csv").read_text().splitlines()
    assert (table[0].split(",")[:4], len(table)) == (["engine", "precision", "ap", "ap50"], 2)
    printed = " ".join(process.stdout.split())
    for text in ("AP50", "inference FPS", "end-to-end FPS", "person", "scores from 0.001"):
        assert text in printed
    for text in ("NMS IoU 0.65", "300 detections per frame"):
        assert text in printed
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["stages"]["infer"]["calls"] == 3
    assert summary["outputs"] == {}
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert len(evaluation["curves"]["person"]) == 101
    assert evaluation["confusion"]["names"] == ["person", "vehicle", "background"]
    for name in ("precision-recall", "confusion"):
        drawing = ElementTree.parse(run / f"{name}.svg").getroot()
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        assert f"{name}: run/{name}.svg\n" in process.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"run", "t.csv"}


def test_several_engines_show_their_difference(tmp_path):
    pytest.importorskip("torch", reason="machine: torch is not installed")
    process = detect_video(
        "eval", LABELS, *"--frames 4 --engine ort,torch --json --run-dir r".split(), cwd=tmp_path
    )
    first, second = figures(process)
    assert (first["engine"], second["engine"]) == ("ort", "torch")
    assert "difference" not in first
    assert second["difference"]["ap50"] == pytest.approx(second["ap50"] - first["ap50"])
    assert abs(second["difference"]["ap50"]) < 0.01
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == ["ort", "torch"]


def test_written_detections_score_like_the_run_itself(tmp_path):
    """``detect`` writes detections in each format. ``eval`` must compute the same figures from the
    files as in its own run (with or without --sync), except for rounding."""
    line = ("eval", LABELS, "--frames", 10, "--engine", "ort", "--json")
    (direct,) = figures(detect_video(*line, cwd=tmp_path))
    (in_turn,) = figures(detect_video(*line, "--sync", "--batch", 4, cwd=tmp_path))
    saved = ("--save", "coco,mot,yolo,jsonl,csv", "--save-conf", "-o", "out/")
    run_ok(STREET, "--frames", 10, "--engine", "ort", *SETTINGS, *saved, cwd=tmp_path)
    files = sorted((tmp_path / "out").iterdir())
    endings = ["-labels", ".coco-results.json", ".coco.json", ".csv", ".jsonl", ".mot.txt"]
    assert [path.name.removeprefix("street-ort-detected") for path in files] == endings
    for path in files:
        names = ("--names", "person-vehicle") if path.name.endswith(".mot.txt") else ()
        given = ("--frames", 10, "--detections", path, *names, "--json")
        (row,) = figures(detect_video("eval", LABELS, *given, cwd=tmp_path))
        # Files round pixels to two decimals; jsonl and csv round scores to four.
        for key in ("ap", "ap50", "ap75"):
            assert row[key] == pytest.approx(direct[key], abs=0.01), path
            assert row[key] == pytest.approx(in_turn[key], abs=0.01), path
        assert row["notes"] == []


def test_list_of_results_is_written_with_the_ids_of_the_labels(tmp_path):
    rows = [
        {"image_id": 10, "category_id": 1, "bbox": [1.0, 2.0, 10.5, 20.0], "score": 0.5},
        {"image_id": 20, "category_id": 3, "bbox": [1.0, 2.0, 3.0, 4.0], "score": 0.25},
    ]
    labels = samples.coco(tmp_path)
    results = tmp_path / "results.json"
    results.write_text(json.dumps(rows))
    (row,) = figures(detect_video("eval", labels, "--detections", results, "--json", cwd=tmp_path))
    assert json.loads((tmp_path / row["coco_results"]).read_text()) == rows
    loaded = (
        pytest.importorskip("faster_coco_eval")
        .COCO(str(labels))
        .loadRes(str(tmp_path / row["coco_results"]))
    )
    assert loaded.getImgIds(catIds=[3]) == [20]


def test_each_sequence_is_tracked_on_its_own(tmp_path):
    for name, frames in (("one", 2), ("two", 3)):
        samples.mot(tmp_path / "set" / name, frames)
    words = ("eval", "set", *"--track sort --mapping person-vehicle --engine null --json".split())
    (row,) = figures(detect_video(*words, cwd=tmp_path))
    assert (list(row["tracking"]["sequences"]), row["frames"]["written"]) == (["one", "two"], 5)
    session = json.loads((tmp_path / row["session"] / "session.json").read_text())
    assert [one["frames"]["written"] for one in session["sources"]] == [2, 3]


def test_gate_fails_below_the_minimum(tmp_path):
    # The first three frames would pass, since all their objects are found. So use later ones, too.
    arguments = ("eval", LABELS, *"--frames 3 --stride 8 --engine ort -q".split())
    assert detect_video(*arguments, "--min-ap50", 0.5, cwd=tmp_path).returncode == 0
    process = detect_video(*arguments, "--min-ap50", 0.999, cwd=tmp_path)
    assert_one_line_error(process, 8, "gate failed", "AP50", "0.999", "AP50 is 0.", "(ort)")


def test_unreadable_picture_is_not_scored_and_wrong_size_is_noted(tmp_path):
    path = samples.coco(tmp_path)
    samples.picture(tmp_path / "a.jpg", 128, 96)
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    process = detect_video("eval", path, "--engine", "null", "--json", cwd=tmp_path)
    assert process.returncode == 7
    (row,) = summary_of(process)["results"]
    assert "a.jpg is 128x96" in row["notes"][-2]
    assert row["notes"][-1].startswith("1 picture")
    assert row["per_class"]["person"]["pictures"] == 1


def test_labels_without_boxes_are_refused_before_the_run(tmp_path):
    document = samples.coco_document() | {"annotations": []}
    process = detect_video(
        "eval", samples.coco(tmp_path, document), "--engine", "ort", cwd=tmp_path
    )
    assert_one_line_error(process, 3, "no box of person in its 2 pictures")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_repeated_eval_keeps_the_options_for_labels(tmp_path):
    mapping = tmp_path / "one.yaml"
    mapping.write_text("classes: {someone: [person]}")
    words = ("eval", STREET, "--engine", "ort", "--frames", 2, "--json")
    (row,) = figures(detect_video(*words, "--mapping", mapping, "--run-dir", "a", cwd=tmp_path))
    assert list(row["per_class"]) == ["someone"]
    words = ("eval", STREET, "--config", "a/session.json", "--json")
    (again,) = figures(detect_video(*words, cwd=tmp_path))
    assert again["per_class"] == row["per_class"]
    (other,) = figures(detect_video(*words, "--mapping", "person-vehicle", cwd=tmp_path))
    assert list(other["per_class"]) == ["person", "vehicle"]


def test_corrupt_json_is_a_one_line_error(tmp_path):
    (tmp_path / "labels.json").write_text('{"images": [{"id": 1,\n "file')
    process = detect_video("eval", "labels.json", cwd=tmp_path)
    assert_one_line_error(process, 3, "labels.json:2: not valid JSON")
    process = detect_video("eval", "labels.json", "--json", cwd=tmp_path)
    assert summary_of(process)["exit"]["code"] == process.returncode == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--mapping", "nowhere"), 2, "--mapping nowhere: no such file"),
        (("--subset", "dusk"), 2, "--subset dusk"),
        (("--engine", "ort,ort"), 2, "--engine ort,ort"),
        (("--engine", "nonsense"), 2, "nonsense"),
        (("--model", "nowhere.cfg"), 4, "nowhere.cfg"),
        (("--detections", "nowhere.json"), 3, "nowhere.json: no such file"),
        (("--detections", "x.txt,y.txt", "--track", "sort"), 2, "--track has no effect on"),
        (("--track", "sort"), 2, "coco labels have no tracks"),
        (("--images", "nowhere"), 3, "--images nowhere: no such folder or video"),
        (("--min-ap50", 2), 2, "min-ap50"),
        (("--conf", 2), 2, "--conf"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(tmp_path, arguments, code, message):
    process = detect_video("eval", samples.coco(tmp_path), *arguments, cwd=tmp_path)
    assert_one_line_error(process, code, message)


def test_labels_of_another_video_are_refused(tmp_path):
    document = json.loads(LABELS.read_text())
    document["images"][5]["frame_index"] = 9999
    (tmp_path / "labels.json").write_text(json.dumps(document))
    process = detect_video(
        "eval", "labels.json", "--images", STREET, "--engine", "null", cwd=tmp_path
    )
    assert_one_line_error(process, 3, "1 of its frames (the first", "the wrong video")


# The number of threads does not change the figures, and one thread uses the least CPU time.
ONE_THREAD = ("--threads", 1, "--concurrency", 1)
SUBSETS = ("coco/val", "highway/valid/road", "highway/valid/overpass", "highway/valid/elevated")
# File, NMS options of the reference, and tolerance for rounding. The tolerance of yolov5n is
# larger, because the reference used rectangular inputs and we use square ones.
MODELS = {
    "yolo-fastest-1.1-xl": ("yolo-fastest-1.1-xl.cfg", ("--iou", 0.45), 0.002),
    "yolox_nano": ("yolox_nano.onnx", (), 0.002),
    "yolov5n": ("yolov5n.pt", ("--iou", 0.6, "--size", "640x640"), 0.02),
}
# Outside of nightly runs, test each model on one of the subsets.
BY_DAY = {
    ("yolo-fastest-1.1-xl", "coco/val"),
    ("yolox_nano", "highway/valid/road"),
    ("yolov5n", "highway/valid/elevated"),
}


@pytest.mark.parametrize(
    ("model", "subset"),
    [
        (name, subset) if (name, subset) in BY_DAY else night(name, subset)
        for name, (file, *_) in MODELS.items()
        if Path(file).suffix in front_ends()
        for subset in SUBSETS
    ],
)
def test_figures_equal_the_reference(shared, tmp_path, model, subset):
    """The reference comes from other implementations of the networks and from pycocotools."""
    text = (shared / "data/reference_ap.json").read_text()
    reference = json.loads(text)["results"][subset][model]
    file, options, tolerance = MODELS[model]
    part, split, *names = subset.split("/")
    process = detect_video(
        *("eval", shared / f"data/labelled/{part}/{split}.json"),
        *("--model", shared / "data/weights" / file),
        *"--mapping person-vehicle --engine ort --json".split(),
        *(*ONE_THREAD, *options),
        *(("--subset", *names) if names else ()),
        cwd=tmp_path,
    )
    (row,) = figures(process)
    if mean := reference.get("mean"):
        assert row["ap50"] == pytest.approx(mean["ap50"], abs=tolerance)
        assert row["ap"] == pytest.approx(mean["ap50_95"], abs=tolerance)
        assert row["ap50_interval"] == pytest.approx(mean["ap50_interval"], abs=tolerance)
    for name, expected in reference["per_class"].items():
        ours = {**row["per_class"][name], "ap50_95": row["per_class"][name]["ap"]}
        for key in ("pictures", "boxes", "ignored_boxes"):
            assert ours[key] == expected[key], (name, key)
        for key in ("ap50", "ap50_95", "recall", "recall_conf25", "precision_conf25"):
            if key in expected:
                assert ours[key] == pytest.approx(expected[key], abs=tolerance), (name, key)
