"""One picture makes one picture; several make a folder."""

from __future__ import annotations

from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from detector.core.config.schema import OutputConfig
from detector.core.errors import UsageError
from detector.core.run.outputs import OutputPlan
from detector.core.sources._specs import NamedPictures
from tests.sources.clips import write_video


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shots").mkdir()
    for name in ("a.jpg", "b.PNG", "c.webp", "shots/a.jpg"):
        cv2.imwrite(str(tmp_path / name), np.zeros((8, 8, 3), np.uint8))
    write_video(tmp_path / "in.mp4", 2, codec="mpeg4")
    return tmp_path


def planned(spec, kind="pictures", **options):
    plan = OutputPlan(OutputConfig(**options), [spec])
    paths = plan.paths(spec, SimpleNamespace(path=str(spec), kind=kind), "ort")
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("a.jpg", "a-ort-detected.jpg"),
        ("b.PNG", "b-ort-detected.png"),
        ("c.webp", "c-ort-detected.webp"),
        ("shots", "shots-ort-detected"),
        ("shots/*.jpg", "shots-ort-detected"),
        (NamedPictures(["shots/a.jpg"]), "shots-ort-detected"),
    ],
    ids=str,
)
def test_the_default_names(folder, spec, wanted):
    assert planned(spec) == {"pictures": wanted, "jsonl": f"{wanted.split('.')[0]}.jsonl"}


def test_in_a_folder_and_when_asked_for(folder):
    assert planned("a.jpg", output="out/")["pictures"] == "out/a-ort-detected.jpg"
    assert planned("a.jpg", save=("pictures",)) == {"pictures": "a-ort-detected.jpg"}
    assert planned("a.jpg", output="x.png") == {"pictures": "x.png"}
    frames = planned("in.mp4", "video", save=("pictures",))
    assert frames == {"pictures": "in-ort-detected"}


def test_the_next_name_where_one_is_taken(folder):
    plan = OutputPlan(OutputConfig(), ["a.jpg"])
    first, second = (
        plan.paths("a.jpg", SimpleNamespace(path="a.jpg", kind="pictures"), "ort") for _ in "12"
    )
    assert [str(path) for path in first.values()] == ["a-ort-detected.jsonl", "a-ort-detected.jpg"]
    assert [path.name for path in second.values()] == [
        "a-ort-detected-2.jsonl",
        "a-ort-detected-2.jpg",
    ]


def test_scores_of_labels_are_asked_for_with_labels():
    with pytest.raises(UsageError, match="--save-conf is for --save yolo"):
        OutputPlan(OutputConfig(save_conf=True), ["a.jpg"])
    with pytest.raises(UsageError, match="--save-conf is for --save yolo"):
        OutputPlan(OutputConfig(save_conf=True, save=("csv",)), ["a.jpg"])
    OutputPlan(OutputConfig(save_conf=True, save=("csv", "yolo")), ["a.jpg"])
