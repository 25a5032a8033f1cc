"""``compare`` with real processes, a real clip, and variants that fail in many ways."""

import json
import signal
from importlib.util import find_spec

import pytest

from tests.cli.command import assert_one_line_error, detect_video, run_ok, start
from tests.conftest import CHECKOUT, night
from tests.lab.datasets import samples
from tests.outside_engines import with_engines
from tests.processes import children_of, is_alive
from tests.waiting import wait_for

needs_coco_eval = pytest.mark.skipif(
    find_spec("faster_coco_eval") is None, reason="machine: faster-coco-eval is not installed"
)
CLIP = CHECKOUT / "videos/street.mp4"
LABELS = CLIP.with_suffix(".json")
KEYS = (
    "engine precision precision_executed batch fps ratio agreement memory_mb load_s build_s error"
)


def compare(tmp_path, *arguments, **more):
    short = ("--frames", 6, "--rounds", 2, "--size", "128")
    engines = ("--engines-dir", tmp_path / "engines")
    return detect_video("compare", CLIP, *short, *engines, *arguments, cwd=tmp_path, **more)


def our_temporary_files(tmp_path):
    """List only our files in the temporary folder. onnxruntime 1.31 leaves ``.ses`` files there."""
    return [*(tmp_path / "tmp").glob("detect-video*")]


@pytest.fixture
def own_tmp(tmp_path):
    (tmp_path / "tmp").mkdir()
    return {"TMPDIR": str(tmp_path / "tmp")}


@pytest.mark.slow
def test_rounds_continue_until_there_is_a_verdict_or_no_time(tmp_path, own_tmp):
    """A second process repeats the first row, to measure noise. The table has no row for it."""
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
    assert our_temporary_files(tmp_path) == []


@pytest.mark.parametrize("rounds", ["0", "1001", "some"])
def test_invalid_number_of_rounds_is_refused(tmp_path, rounds):
    process = detect_video("compare", CLIP, "--rounds", rounds, cwd=tmp_path)
    assert_one_line_error(process, 2, "--rounds")


@pytest.mark.slow
def test_document_and_files_after_a_comparison(tmp_path, own_tmp):
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
        assert set(KEYS.split()) <= set(row)
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
    assert document["model_input"] == [96, 128]  # --size 128 means 128x72 here; 72 is rounded up
    assert rows[1]["agreement"]["frames"] == 6
    if rows[0]["agreement"]["detections"]:
        assert rows[0]["agreement"]["matched"] == 1.0
        assert rows[1]["agreement"]["matched"] > 0.99, "another batch size changed the boxes"
    assert our_temporary_files(tmp_path) == []
    measured = json.loads((tmp_path / "engines/measured.json").read_text())
    assert [row["engine"] for row in measured["measurements"][0]["rows"]] == ["ort", "ort"], (
        "results of null were stored"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engines", "tmp"]


@pytest.mark.slow
def test_variant_that_crashes_does_not_affect_the_others(tmp_path, own_tmp):
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
    assert our_temporary_files(tmp_path) == []
    assert not (tmp_path / "engines/measured.json").exists()


@pytest.mark.slow
def test_exit_code_without_a_successful_row_is_that_of_the_error(tmp_path):
    process = compare(tmp_path, "--engine", "ort", "--model", "none.cfg")
    assert "none.cfg" in process.stdout
    assert_one_line_error(process, 4, "detect-video: ", "none.cfg")


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
def test_wrong_arguments_are_refused_in_one_line(tmp_path, arguments, code, words):
    assert_one_line_error(compare(tmp_path, *arguments), code, *words)


def ap_of(process):
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    return document["labels"], {row["name"]: row["ap"] for row in document["rows"]}, document


@pytest.mark.slow
@needs_coco_eval
def test_compare_with_labels_gives_the_same_figures_as_eval(tmp_path):
    """--conf applies to the rounds and the agreement, but not to the AP."""
    options = ("--labels", LABELS, "--conf", 0.6, "--classes", "person", "--stride", 2, "--json")
    labels, ap, document = ap_of(compare(tmp_path, "--engine", "ort,null", *options))
    process = detect_video(
        *("eval", LABELS),
        *"--frames 6 --stride 2 --size 128x96 --engine ort --json".split(),
        cwd=tmp_path,
    )
    (expected,) = json.loads(process.stdout)["results"]
    actual = ap["ort fp32"]
    assert actual == {key: expected[key] for key in actual}
    assert set(actual) >= {"ap", "ap50", "ap50_interval", "per_class"}
    assert 0 < actual["ap50"] < 1
    assert ap["null fp32"]["ap50"] == 0
    assert (labels["pictures"], labels["conf"]) == (6, 0.001)
    assert labels["classes"] == ["person", "vehicle"]
    assert labels["boxes"] == sum(one["boxes"] for one in actual["per_class"].values())
    confident = document["rows"][0]["agreement"]["detections"]
    assert confident < 10, "the rounds and the agreement ignored --conf"


@pytest.mark.slow
@needs_coco_eval
def test_pictures_are_scored_with_a_mapping(tmp_path):
    document = samples.coco_document()
    document["categories"][0]["name"] = "pedestrian"
    labels = samples.coco(tmp_path, document)
    (tmp_path / "pictures").mkdir()
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).rename(tmp_path / "pictures" / name)
    samples.picture(tmp_path / "pictures" / "c.jpg", 64, 48)
    (tmp_path / "map.yaml").write_text("classes: {person: [pedestrian]}\n")
    process = detect_video(
        *"compare pictures --labels".split(),
        labels,
        *"--mapping map.yaml --engine null --rounds 1 --json".split(),
        cwd=tmp_path,
    )
    labels, ap, _ = ap_of(process)
    assert (labels["pictures"], labels["classes"]) == (2, ["person"])
    assert ap["null fp32"]["per_class"]["person"]["pictures"] == 1, (
        "the other picture is labelled for cars only"
    )


@pytest.mark.slow
@needs_coco_eval
@pytest.mark.parametrize("option", ["--labels", "--dataset"])
def test_row_that_crashes_during_scoring_keeps_its_speed(tmp_path, own_tmp, option):
    env = {**own_tmp, **with_engines(tmp_path, "mortal", "forgetful")}
    process = compare(
        tmp_path, "--engine", "mortal,forgetful,ort", option, LABELS, "--json", env=env
    )
    _, ap, document = ap_of(process)
    assert ap["ort fp32"]["ap50"] > 0
    for failed, reason in zip(document["rows"], ("SIGSEGV", "lost its weights"), strict=False):
        assert (failed["error"], failed["ap"]) == (None, None)
        assert failed["fps"]["inference"]["median"] > 0
        assert reason in failed["notes"][-1]
    assert document["labels"]["boxes"] > 0
    assert our_temporary_files(tmp_path) == []


def another_clip(document):
    document["images"][5]["frame_index"] = 9999


def other_classes(document):
    for category in document["categories"]:
        category["name"] += " of another world"


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
@needs_coco_eval
@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (
            another_clip,
            3,
            ["1 of its frames (the first is street.mp4#5", "which has 250 frames", "another clip"],
        ),
        (other_classes, 2, ["have no name in common", "--mapping"]),
        (pictures, 3, ["has no frame_index"]),
        (late, 2, ["select no labelled frame of the video"]),
    ],
)
def test_labels_that_do_not_match_are_refused(tmp_path, own_tmp, change, code, words):
    document = json.loads(LABELS.read_text())
    change(document)
    (tmp_path / "labels.json").write_text(json.dumps(document))
    process = compare(tmp_path, "--engine", "null", "--labels", "labels.json", env=own_tmp)
    assert_one_line_error(process, code, *words)
    assert process.stdout == ""
    assert our_temporary_files(tmp_path) == []


@pytest.mark.slow
@needs_coco_eval
def test_missing_or_invalid_labels_are_refused(tmp_path):
    (tmp_path / "labels.json").write_text('{"images": [{"id": 1,\n "file')
    for options, code, message in (
        (("--labels", "labels.json"), 3, "labels.json:2: not valid JSON"),
        (("--labels", "nowhere.json"), 3, "nowhere.json: no such file"),
        (("--mapping", "person-vehicle"), 2, "add --labels FILE"),
    ):
        assert_one_line_error(compare(tmp_path, "--engine", "null", *options), code, message)


@pytest.mark.slow
@needs_coco_eval
def test_labels_of_other_pictures_are_refused(tmp_path):
    labels = samples.coco(tmp_path)
    (tmp_path / "others").mkdir()
    samples.picture(tmp_path / "others" / "z.jpg", 64, 48)
    for path, *words in (
        (labels, "no labels for the 1 picture of others", "z.jpg"),
        (LABELS, "labels are for frames of street.mp4", "others"),
    ):
        command = ("compare", "others", "--engine", "null", "--labels", path)
        assert_one_line_error(detect_video(*command, cwd=tmp_path), 3, *words)


@pytest.mark.slow
def test_invalid_source_is_refused(tmp_path):
    (tmp_path / "in.mp4").write_text("no video")
    process = detect_video("compare", "in.mp4", "--engine", "ort", cwd=tmp_path)
    assert_one_line_error(process, 3, "in.mp4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), night(signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_signal_leaves_no_process_or_file(tmp_path, own_tmp, number, code):
    """After SIGKILL the parent cannot clean up, so its children must notice that it has died."""
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
        assert our_temporary_files(tmp_path) == []
