"""compare, whole: real processes, a real clip, and variants that fail in every way."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.command import assert_one_line_error, detect_video, run_ok, start
from tests.conftest import CHECKOUT, night
from tests.lab.datasets import made
from tests.outside_engines import with_engines
from tests.processes import children_of, is_alive
from tests.waiting import wait_for

CLIP = CHECKOUT / "videos/street.mp4"
LABELS = CLIP.with_suffix(".json")
KEYS = (
    "engine",
    "precision",
    "precision_executed",
    "batch",
    "fps",
    "ratio",
    "agreement",
    "memory_mb",
    "load_s",
    "build_s",
    "error",
)


def compare(tmp_path, *arguments, **more):
    short = (
        "--frames",
        6,
        "--rounds",
        2,
        "--engines-dir",
        tmp_path / "engines",
        "--size",
        "128x64",
    )
    return detect_video("compare", CLIP, *short, *arguments, cwd=tmp_path, **more)


def left_behind(tmp_path):
    """List our files only: onnxruntime 1.31 leaves a file ``.ses`` of its own there."""
    return [
        path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith("detect-video")
    ]


@pytest.fixture
def own_tmp(tmp_path):
    (tmp_path / "tmp").mkdir()
    return {"TMPDIR": str(tmp_path / "tmp")}


@pytest.mark.slow
def test_rounds_go_on_until_decided_or_the_time_is_up(tmp_path, own_tmp):
    """The first row also runs in a second process, which is not listed as a row."""
    until = ("--frames", 2, "--rounds", "auto", "--seconds", 1, "--no-video", "--size", "128x64")
    process = run_ok(
        *("compare", CLIP, "--engine", "null,null", *until, "--json"), cwd=tmp_path, env=own_tmp
    )
    document = json.loads(process.stdout)
    noise = document["noise"]
    assert [row["name"] for row in document["rows"]] == ["null fp32", "null fp32 #2"]
    assert noise["measured"]
    assert noise["stopped"] in ("time", "decided", "most")
    assert noise["rounds"] == document["rounds"] >= 1
    assert noise["floor"]["end_to_end"] >= 0.01
    assert document["rows"][0]["verdict"] == {}
    assert {*document["rows"][1]["verdict"]} == {"inference", "end_to_end"}
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("rounds", ["0", "1001", "some"])
def test_other_rounds_are_refused(tmp_path, rounds):
    process = detect_video("compare", CLIP, "--rounds", rounds, cwd=tmp_path)
    assert process.returncode == 2
    assert "--rounds" in process.stderr
    assert len(process.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_document_and_what_stays(tmp_path, own_tmp):
    process = compare(
        tmp_path, "--engine", "ort,null", "--batch", "1,2", "--use", "--json", env=own_tmp
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    document = json.loads(process.stdout)
    rows = document["rows"]
    assert [(row["engine"], row["batch"]) for row in rows] == [
        ("ort", 1),
        ("ort", 2),
        ("null", 1),
        ("null", 2),
    ]
    for row in rows:
        assert set(KEYS) <= set(row)
        assert row["error"] is None
        assert row["memory_mb"] > 20
        for metric in ("inference", "end_to_end"):
            fps = row["fps"][metric]
            assert 0 < fps["low"] <= fps["median"] <= fps["high"]
            assert row["ratio"][metric] > 0
    assert rows[0]["ratio"] == {"inference": 1.0, "end_to_end": 1.0}
    assert document["baseline"] == "ort fp32"
    assert isinstance(document["comparable"], bool)
    assert document["reference"] == "ort fp32"
    assert (document["labels"], {row["ap"] for row in rows}) == (None, {None})
    assert (document["frames"], document["rounds"]) == (6, 2)
    assert rows[1]["agreement"]["frames"] == 6
    if rows[0]["agreement"]["detections"]:
        assert rows[0]["agreement"]["matched"] == 1.0
        assert rows[1]["agreement"]["matched"] > 0.99, "the batch changes nothing"
    assert left_behind(tmp_path) == []
    kept = json.loads((tmp_path / "engines/measured.json").read_text())
    assert [row["engine"] for row in kept["measurements"][0]["rows"]] == ["ort", "ort"], (
        "null is not a measurement"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engines", "tmp"]


@pytest.mark.slow
def test_a_variant_that_dies_loses_itself_and_nothing_else(tmp_path, own_tmp):
    env = {**own_tmp, **with_engines(tmp_path, "crashing")}
    process = compare(
        tmp_path, "--engine", "crashing,ort", "--precision", "fp32,bf16", "--json", env=env
    )
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    crashed, refused, ran, _ = document["rows"]
    assert "SIGSEGV" in crashed["error"]
    assert "a library's last words" in crashed["error"]
    assert "cannot run bf16" in refused["error"]
    assert ran["error"] is None
    assert ran["fps"]["inference"]["median"] > 0
    assert document["baseline"] == "ort fp32"
    assert left_behind(tmp_path) == []
    assert not (tmp_path / "engines/measured.json").exists()


@pytest.mark.slow
def test_a_variant_that_cannot_run_leaves_the_others_their_folder(tmp_path, own_tmp):
    """Its worker's pipe is closed while the parent lives: no orphan, and nothing is removed."""
    for _ in range(3):
        process = compare(
            tmp_path, "--engine", "ort", "--precision", "bf16,fp32", "--json", env=own_tmp
        )
        assert process.returncode == 0, process.stderr
        refused, ran = json.loads(process.stdout)["rows"]
        assert refused["error"] is not None
        assert ran["error"] is None
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_where_nothing_runs_the_exit_code_is_the_rows(tmp_path):
    process = compare(tmp_path, "--engine", "ort", "--model", "none.cfg")
    assert process.returncode == 4
    assert "none.cfg" in process.stdout
    (line,) = process.stderr.splitlines()
    assert line.startswith("detect-video: ")
    assert "none.cfg" in line


@pytest.mark.slow
def test_the_table(tmp_path):
    process = compare(
        tmp_path, "--engine", "ort", "--random-weights", 0, "--model", "yolov4-tiny-person-vehicle"
    )
    assert process.returncode == 0, process.stderr
    assert max(map(len, process.stdout.splitlines())) <= 100
    for word in (
        "inference FPS",
        "end-to-end FPS",
        "agreement",
        "peak MB",
        "random weights",
        "2 rounds of 6 frames",
    ):
        assert word in " ".join(process.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--engine", "tensorflow"], 2, ["tensorflow", "ort", "torch"]),
        (["--precision", "fp31"], 2, ["fp31", "fp32", "int8"]),
        (["--batch", "1,x"], 2, ["--batch x"]),
        (["--engine", ","], 2, ["--engine"]),
        (["--conf", "2"], 2, ["--conf"]),
    ],
)
def test_wrong_arguments(tmp_path, arguments, code, words):
    assert_one_line_error(compare(tmp_path, *arguments), code, *words)


def ap_of(process):
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    return document["labels"], {row["name"]: row["ap"] for row in document["rows"]}, document


@pytest.mark.slow
def test_labels_give_evals_own_figures(tmp_path):
    """AP does not depend on --conf of the rounds, and their speed is that of the plain network."""
    pytest.importorskip("faster_coco_eval", reason="machine: faster-coco-eval is not installed")
    arguments = (
        "--engine",
        "ort,null",
        "--labels",
        LABELS,
        "--conf",
        0.6,
        "--classes",
        "person",
        "--json",
    )
    labels, ap, document = ap_of(compare(tmp_path, *arguments, "--stride", 2))
    process = detect_video(
        "eval",
        LABELS,
        *"--frames 6 --stride 2 --size 128x64 --engine ort --json".split(),
        cwd=tmp_path,
    )
    (wanted,) = json.loads(process.stdout)["results"]
    found = ap["ort fp32"]
    assert found == {key: wanted[key] for key in found}
    assert set(found) >= {"ap", "ap50", "ap50_interval", "per_class"}
    assert 0 < found["ap50"] < 1
    assert ap["null fp32"]["ap50"] == 0
    assert (labels["pictures"], labels["classes"], labels["conf"]) == (
        6,
        ["person", "vehicle"],
        0.001,
    )
    assert labels["boxes"] == sum(one["boxes"] for one in found["per_class"].values())
    sure = document["rows"][0]["agreement"]["detections"]
    assert sure < 10, "the rounds and the agreement stay at --conf"


@pytest.mark.slow
def test_labels_of_pictures_and_a_mapping(tmp_path):
    pytest.importorskip("faster_coco_eval", reason="machine: faster-coco-eval is not installed")
    document = made.coco_document()
    document["categories"][0]["name"] = "pedestrian"
    labels = made.coco(tmp_path, document)
    (tmp_path / "pictures").mkdir()
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).rename(tmp_path / "pictures" / name)
    made.picture(tmp_path / "pictures" / "c.jpg", 64, 48)
    (tmp_path / "map.yaml").write_text("classes: {person: [pedestrian]}\n")
    process = detect_video(
        *"compare pictures --labels".split(),
        labels,
        *"--mapping map.yaml --engine null --rounds 1 --json".split(),
        cwd=tmp_path,
    )
    labels, ap, _ = ap_of(process)
    assert (labels["pictures"], labels["classes"]) == (2, ["person"])
    assert ap["null fp32"]["per_class"]["person"]["pictures"] == 1, "the other is labelled for cars"


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--labels", "--dataset"])
def test_a_row_that_dies_while_it_is_judged_keeps_its_speed(tmp_path, own_tmp, option):
    pytest.importorskip("faster_coco_eval", reason="machine: faster-coco-eval is not installed")
    env = {**own_tmp, **with_engines(tmp_path, "mortal", "forgetful")}
    process = compare(
        tmp_path, "--engine", "mortal,forgetful,ort", option, LABELS, "--json", env=env
    )
    _, ap, document = ap_of(process)
    assert ap["ort fp32"]["ap50"] > 0
    for lost, why in zip(document["rows"], ("SIGSEGV", "lost its weights"), strict=False):
        assert (lost["error"], lost["ap"]) == (None, None)
        assert lost["fps"]["inference"]["median"] > 0
        assert why in lost["notes"][-1]
    assert document["labels"]["boxes"] > 0
    assert left_behind(tmp_path) == []


def another_clip(document):
    document["images"][5]["frame_index"] = 9999


def other_classes(document):
    for category in document["categories"]:
        category["name"] += " of another world"


def no_boxes(document):
    document["annotations"] = []


def pictures(document):
    for image in document["images"]:
        image["file_name"] = image.pop("frame_index") and "a.jpg"


def late(document):
    for image in document["images"]:
        image["frame_index"] += 100
    document["images"] = document["images"][:50]
    known = {image["id"] for image in document["images"]}
    document["annotations"] = [row for row in document["annotations"] if row["image_id"] in known]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (
            another_clip,
            3,
            ["1 of its frames are not in", "which has 250, first street.mp4#5", "another clip"],
        ),
        (other_classes, 2, ["have no name in common", "--mapping"]),
        (no_boxes, 3, ["no box of person, vehicle"]),
        (pictures, 3, ["has no frame_index"]),
        (late, 2, ["select no labelled frame of the video"]),
    ],
)
def test_labels_that_do_not_fit(tmp_path, own_tmp, change, code, words):
    pytest.importorskip("faster_coco_eval", reason="machine: faster-coco-eval is not installed")
    document = json.loads(LABELS.read_text())
    change(document)
    (tmp_path / "labels.json").write_text(json.dumps(document))
    process = compare(tmp_path, "--engine", "null", "--labels", "labels.json", env=own_tmp)
    assert_one_line_error(process, code, *words)
    assert process.stdout == ""
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_labels_that_are_none(tmp_path):
    pytest.importorskip("faster_coco_eval", reason="machine: faster-coco-eval is not installed")
    (tmp_path / "labels.json").write_text('{"images": [{"id": 1,\n "file')
    process = compare(tmp_path, "--engine", "null", "--labels", "labels.json")
    assert_one_line_error(process, 3, "labels.json:2: not valid JSON")
    assert_one_line_error(
        compare(tmp_path, "--labels", "nowhere.json"), 3, "nowhere.json: no such file"
    )
    assert_one_line_error(compare(tmp_path, "--mapping", "person-vehicle"), 2, "add --labels FILE")


@pytest.mark.slow
def test_labels_of_other_pictures(tmp_path):
    pytest.importorskip("faster_coco_eval", reason="machine: faster-coco-eval is not installed")
    labels = made.coco(tmp_path)
    (tmp_path / "others").mkdir()
    made.picture(tmp_path / "others" / "z.jpg", 64, 48)
    others = ("compare", "others", "--engine", "null", "--labels")
    assert_one_line_error(
        detect_video(*others, labels, cwd=tmp_path),
        3,
        "labels none of 1 picture of others",
        "z.jpg",
    )
    assert_one_line_error(
        detect_video(*others, LABELS, cwd=tmp_path), 3, "labels frames of street.mp4", "others"
    )


@pytest.mark.slow
def test_a_source_that_is_none_costs_no_loading(tmp_path):
    (tmp_path / "in.mp4").write_text("no video")
    process = detect_video("compare", "in.mp4", "--engine", "ort", cwd=tmp_path)
    assert_one_line_error(process, 3, "in.mp4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), night(signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_signal_leaves_neither_process_nor_file(tmp_path, own_tmp, number, code):
    """SIGKILL lets the parent do nothing; its children notice that it is gone."""
    command = [
        "compare",
        str(CLIP),
        *"--engine ort,null --rounds 1000 --engines-dir engines".split(),
    ]
    process = start(*command, cwd=tmp_path, env=own_tmp)
    try:
        wait_for(lambda: any((tmp_path / "tmp").glob("*/*/round")))
        wait_for(lambda: len(children_of(process.pid)) == 2)
        children = children_of(process.pid)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == code
    assert "Traceback" not in stderr
    wait_for(lambda: not any(map(is_alive, children)))
    assert not (tmp_path / "engines/measured.json").exists()
    if number != signal.SIGKILL:
        assert left_behind(tmp_path) == []
