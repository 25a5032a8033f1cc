"""Names of outputs: one picture is written to one file, several to a folder."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from detector.core.config.levels import resolve_config
from detector.core.config.schema import OutputConfig
from detector.core.errors import UsageError
from detector.core.run.outputs import OutputPlan, settings_of
from detector.core.sources._forms import NamedPictures
from tests.sources.clips import write_video


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shots").mkdir()
    for name in ("a.jpg", "b.PNG", "c.webp", "shots/a.jpg"):
        cv2.imwrite(str(tmp_path / name), np.zeros((8, 8, 3), np.uint8))
    write_video(tmp_path / "in.mp4", 2, codec="mpeg4")
    return tmp_path


def plan_outputs(spec, kind="pictures", **options):
    plan = OutputPlan(OutputConfig(**options), [spec])
    paths = plan.paths(spec, SimpleNamespace(path=str(spec), kind=kind))
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("a.jpg", "a-detected.jpg"),
        ("b.PNG", "b-detected.png"),
        ("c.webp", "c-detected.webp"),
        ("shots", "shots-detected"),
        ("shots/*.jpg", "shots-detected"),
        (NamedPictures(["shots/a.jpg"]), "shots-detected"),
    ],
    ids=str,
)
def test_default_names_follow_the_source(folder, spec, expected):
    assert plan_outputs(spec) == {"pictures": expected, "jsonl": f"{expected.split('.')[0]}.jsonl"}


def test_options_output_and_save_decide_the_names(folder):
    assert plan_outputs("a.jpg", output="out/")["pictures"] == "out/a-detected.jpg"
    assert plan_outputs("a.jpg", save=("pictures",)) == {"pictures": "a-detected.jpg"}
    assert plan_outputs("a.jpg", output="x.png") == {"pictures": "x.png"}
    frames = plan_outputs("in.mp4", "video", save=("pictures",))
    assert frames == {"pictures": "in-detected"}


def test_taken_name_gets_a_number(folder):
    plan = OutputPlan(OutputConfig(), ["a.jpg"])
    first, second = (
        plan.paths("a.jpg", SimpleNamespace(path="a.jpg", kind="pictures")) for _ in "12"
    )
    assert [str(path) for path in first.values()] == ["a-detected.jsonl", "a-detected.jpg"]
    assert [path.name for path in second.values()] == ["a-detected-2.jsonl", "a-detected-2.jpg"]


def test_name_contains_the_requested_engine(folder):
    plan = OutputPlan(OutputConfig(), ["in.mp4"], engine="ort")
    paths = plan.paths("in.mp4", SimpleNamespace(path="in.mp4", kind="video"))
    assert {path.name for path in paths.values()} == {
        "in-ort-detected.mp4",
        "in-ort-detected.jsonl",
    }


def test_output_with_suffix_txt_requires_save_mot(folder):
    for options in ({}, {"save": ("yolo",)}):
        with pytest.raises(UsageError, match="--save mot -o x"):
            plan_outputs("in.mp4", "video", output="x.txt", **options)
    assert plan_outputs("in.mp4", "video", output="x.txt", save=("mot",)) == {"mot": "x.txt"}
    assert plan_outputs("in.mp4", "video", output="x.mot.txt") == {"mot": "x.mot.txt"}


def test_digest_covers_only_settings_that_decide_the_content():
    def digest(**options):
        return settings_of(resolve_config(None, options).as_dict(), "in.mp4", "0" * 64)

    assert digest() == digest(threads=2) == digest(run_dir="x")
    requested = [
        {},
        {"precision": "fp32"},
        {"precision": "int8"},
        {"calibrate": "pictures"},
        {"conf": 0.5},
        {"size": "640"},
        {"rect": True},
        {"encoder": "x264"},
        {"encoder": "svtav1"},
        {"save_conf": True},
        {"save_times": True},
        {"track": "bytetrack"},
        {"track": "bytetrack", "smooth": True},
    ]
    assert len({digest(**options) for options in requested}) == len(requested)
    assert digest(precision="fp32") == digest(precision="fp32", calibrate="pictures")


def test_save_conf_requires_save_yolo():
    with pytest.raises(UsageError, match=r"--save-conf .*--save yolo"):
        OutputPlan(OutputConfig(save_conf=True), ["a.jpg"])
    with pytest.raises(UsageError, match=r"--save-conf .*--save yolo"):
        OutputPlan(OutputConfig(save_conf=True, save=("csv",)), ["a.jpg"])
    OutputPlan(OutputConfig(save_conf=True, save=("csv", "yolo")), ["a.jpg"])


@pytest.mark.parametrize(("output", "piped"), [("-", True), ("out.mp4", False)])
def test_piped_video_writer_is_imported_only_for_standard_output(output, piped):
    plan = OutputPlan(OutputConfig(output=output, save=("video",)), ["in.mp4"], streams=True)
    assert ("detector.core.sinks.video.piped" in plan.imports("video", "in.mp4")) == piped
