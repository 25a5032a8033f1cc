"""The datasets of one run (COCO, YOLO labels, pictures, crops) agree. Every name in them leads to a
file, and our readers return the boxes of the run."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml

from detector.core.config.levels import resolve_config
from detector.core.errors import OutputError
from detector.core.run.detect import RunResult, detect
from detector.core.run.inputs import gather_sources
from detector.lab import datasets
from detector.lab.datasets.base import Lookup
from tests.cli.command import detect_video
from tests.conftest import CHECKOUT

CLIP = CHECKOUT / "videos" / "street.mp4"
ALL = "pictures,yolo,coco,crops,jsonl"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("place")]


def cut_pictures(*names: str) -> None:
    video = cv2.VideoCapture(str(CLIP))
    for name in names:
        _, image = video.read()
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(cv2.imencode(Path(name).suffix, image)[1].tobytes())


def run(*typed: str, **options: object) -> RunResult:
    settings = {"engine": "ort", "save": ALL, "frames": 3, "output": "out/", "conf": 0.2, **options}
    result = detect(gather_sources(typed), resolve_config(None, settings))
    assert result.exit_code == 0, result.errors
    return result


def read(path: str) -> Any:
    return json.loads(Path(path).read_text())


def names_in(source: Any) -> list[str]:
    return [image["file_name"] for image in read(source.outputs["coco"])["images"]]


def check_names_lead_to_files(outputs: dict[str, str]) -> int:
    """Check that every name in a dataset leads to its file, and return the number of pictures."""
    coco = Path(outputs["coco"])
    document = read(outputs["coco"])
    images = {image["id"]: image for image in document["images"]}
    pictures = {coco.parent / image["file_name"] for image in images.values()}
    assert len(pictures) == len(images)
    written = {path for path in Path(outputs["pictures"]).rglob("*.*") if path.name[0] != "."}
    assert pictures == written
    boxes = Counter(row["image_id"] for row in document["annotations"])
    for number, image in images.items():
        picture = coco.parent / image["file_name"]
        size = cv2.imdecode(np.fromfile(picture, np.uint8), 1).shape[:2]
        assert size == (image["height"], image["width"])
        # In the path, Ultralytics replaces the last /images/ by /labels/ to find the labels.
        before, _, after = str(picture.absolute()).rpartition("/images/")
        labels = Path(f"{before}/labels/{after}").with_suffix(".txt")
        assert len(labels.read_text().splitlines()) == boxes[number]
    labels = {file.stem for file in Path(outputs["yolo"]).rglob("*.txt")} - {"classes"}
    assert labels == {picture.stem for picture in pictures}
    root = Path(outputs["pictures"]).parent
    data = yaml.safe_load((root / "data.yaml").read_text())
    assert (root / data["train"]).samefile(outputs["pictures"])
    assert data["val"] == data["train"]
    assert data["nc"] == len(data["names"]) == len(document["categories"])
    for row in document["annotations"]:
        x, y, w, h = row["bbox"]
        ((*corners,),) = row["segmentation"]
        assert corners == pytest.approx([x, y, x, y + h, x + w, y + h, x + w, y], abs=0.006)
        assert (row["iscrowd"], row["area"]) == (0, pytest.approx(w * h, abs=0.006))
        assert row["category_id"] in {category["id"] for category in document["categories"]}
    return len(images)


@pytest.mark.parametrize(
    "options", [{}, {"stride": 3}, {"only_detections": True}, {"start": "1"}], ids=str
)
def test_names_in_dataset_of_video_lead_to_files(options: dict[str, object], place: Path) -> None:
    (place / "in put.mp4").symlink_to(CLIP)
    (source,) = run("in put.mp4", **options).summary.each
    assert check_names_lead_to_files(source.outputs) == 3
    images = read(source.outputs["coco"])["images"]
    assert [image["source"] for image in images] == [f"in put.mp4#{i['id'] - 1}" for i in images]
    assert [image["frame_index"] + 1 for image in images] == [image["id"] for image in images]


@pytest.mark.parametrize("output", ["out/", "deep/er/out ü/"])
def test_names_in_dataset_of_folder_lead_to_files(output: str) -> None:
    cut_pictures("in/a b.jpg", "in/a b.png", "in/视频.bmp", "in/classes.jpg", "in/x.ppm")
    (source,) = run("in", frames=None, output=output).summary.each
    assert check_names_lead_to_files(source.outputs) == 5
    names = sorted(path.name for path in Path(source.outputs["pictures"]).glob("*.*"))
    expected = ["a b-2.png", "a b.jpg", "classes-2.jpg", "x.png", "视频.bmp"]
    assert [name for name in names if name[0] != "."] == expected
    for image in read(source.outputs["coco"])["images"]:
        assert (Path(source.outputs["coco"]).parent / image["source"]).parent.samefile("in")


def test_pictures_with_equal_stems_get_different_names() -> None:
    """Datumaro, with which CVAT reads datasets, treats a.jpg and a.png as one picture."""
    cut_pictures("in/a.jpg", "in/a.png")
    (source,) = run("in", save="pictures,coco").summary.each
    names = names_in(source)
    assert names == ["in-ort-detected/a.jpg", "in-ort-detected/a-2.png"]
    assert all(Path("out", name).is_file() for name in names)


def test_names_in_datasets_of_equally_named_pictures_lead_to_files() -> None:
    cut_pictures("a/x.jpg", "b/x.jpg", "b/y.jpg")
    (source,) = run("a/x.jpg", "b/x.jpg", "b/y.jpg").summary.each
    assert check_names_lead_to_files(source.outputs) == 3
    first, second = run("a", "b", output="two/").summary.each
    assert (
        check_names_lead_to_files(first.outputs),
        check_names_lead_to_files(second.outputs),
    ) == (1, 2)
    (pattern,) = run("**/[xy].jpg", output="pattern/").summary.each
    assert check_names_lead_to_files(pattern.outputs) == 3


def test_names_in_datasets_of_equally_named_videos_lead_to_files(place: Path) -> None:
    for folder in ("a", "b"):
        (place / folder).mkdir()
        (place / folder / "x.mp4").symlink_to(CLIP)
    first, second = run("a/x.mp4", "b/x.mp4", frames=2).summary.each
    assert not {*first.outputs.values()} & {*second.outputs.values()}
    assert (
        check_names_lead_to_files(first.outputs),
        check_names_lead_to_files(second.outputs),
    ) == (2, 2)


def test_names_in_dataset_of_one_picture_lead_to_files() -> None:
    cut_pictures("in/a.jpg")
    (source,) = run("in/a.jpg").summary.each
    assert check_names_lead_to_files(source.outputs) == 1
    (named,) = run("in/a.jpg", output="shown.png").summary.each
    (image,) = read(named.outputs["coco"])["images"]
    assert (image["file_name"], image["source"]) == ("shown.png", "in/a.jpg")
    assert Path("shown-labels/shown.txt").is_file()


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("in", ["a.jpg"]),
        ("in/sub/a.jpg", ["a.jpg"]),
        ("in/*/*.jpg", ["sub/a.jpg"]),
        ("in/a.jpg in/sub/a.jpg", ["a.jpg", "sub/a.jpg"]),
        ("HERE/in/**", ["a.jpg", "sub/a.jpg"]),
    ],
)
def test_coco_names_are_relative_to_the_folder_of_the_source(
    place: Path, typed: str, names: list[str]
) -> None:
    cut_pictures("in/a.jpg", "in/sub/a.jpg")
    arguments = typed.replace("HERE", str(place)).split()
    (source,) = run(*arguments, save="coco", frames=None).summary.each
    assert names_in(source) == names
    sources = [image["source"] for image in read(source.outputs["coco"])["images"]]
    assert all(os.path.isabs(path) and Path(path).is_file() for path in sources)


def test_names_lead_to_the_source_if_no_pictures_are_saved(place: Path) -> None:
    cut_pictures("in/a.jpg", "in/b.jpg")
    (place / "v.mp4").symlink_to(CLIP)
    pictures, video = run("in", "v.mp4", save="coco,yolo").summary.each
    assert names_in(pictures) == ["a.jpg", "b.jpg"]
    assert names_in(video) == ["v.mp4#0", "v.mp4#1", "v.mp4#2"]
    labels = Path(pictures.outputs["yolo"])
    files = sorted(file.name for file in labels.iterdir() if file.name[0] != ".")
    assert files == ["a.txt", "b.txt", "classes.txt", "data.yaml"]
    data = yaml.safe_load((labels / "data.yaml").read_text())
    assert data == {"nc": 2, "names": {0: "person", 1: "vehicle"}}


def test_our_readers_return_the_boxes_of_the_run() -> None:
    cut_pictures("in/a.jpg", "in/a.png", "in/b.jpg")
    (source,) = run("in", frames=None).summary.each
    rows = [json.loads(line) for line in Path(source.outputs["jsonl"]).read_text().splitlines()]
    expected = {Path(row["source"]).name: [d["box"] for d in row["detections"]] for row in rows}
    assert sum(map(len, expected.values())) > 3
    labels = datasets.open(str(Path(source.outputs["pictures"]).parent))
    assert labels.classes == ("person", "vehicle")
    assert [picture.name for picture in labels.pictures] == ["a-2.png", "a.jpg", "b.jpg"]
    (form,) = [f for f in datasets.coco.FORMATS if isinstance(f, datasets.DetectionFormat)]
    stored = form.read(Path(source.outputs["coco"]), Lookup(labels), None)
    for picture, detections in zip(labels.pictures, stored.detections, strict=True):
        boxes = expected[picture.name.replace("-2", "")]
        near = [pytest.approx(box, abs=0.02) for box in sorted(boxes)]
        assert sorted(picture.boxes.tolist()) == near
        assert sorted(detections.boxes.tolist()) == near


def test_data_yaml_of_the_user_is_not_overwritten() -> None:
    cut_pictures("in/a.jpg")
    Path("out/in-ort-dataset").mkdir(parents=True)
    Path("out/in-ort-dataset/data.yaml").write_text("mine")
    config = resolve_config(None, {"engine": "ort", "save": "pictures,yolo", "output": "out/"})
    (error,) = detect(["in"], config).errors
    assert isinstance(error, OutputError)
    assert "data.yaml" in str(error)
    assert Path("out/in-ort-dataset/data.yaml").read_text() == "mine"


def test_second_run_replaces_the_first_datasets() -> None:
    cut_pictures("in/a.jpg", "in/b.jpg")
    for _ in range(2):
        (source,) = run("in", output="in/").summary.each
        assert check_names_lead_to_files(source.outputs) == 2
    assert os.listdir("in/in-ort-dataset").count("data.yaml") == 1
    assert not [note for note in run("in", output="in/").summary.notes if "left out" in note]


def test_class_names_are_valid_yaml(tmp_path: Path) -> None:
    from detector.core.sinks.yolo import _describe

    names = ('a "b"', "c: d", "#e", "é 视 😀", "no", "1", "tab\tnew\nline", "\x85\x9f\u2028", "")
    assert yaml.safe_load(_describe(names, None))["names"] == dict(enumerate(names))
    assert yaml.safe_load(_describe((), "images"))["names"] == {}


def test_names_in_datasets_of_batch_lead_to_files(place: Path) -> None:
    cut_pictures("in/a.jpg", "in/sub/a.jpg")
    (place / "in/v.mp4").symlink_to(CLIP)
    Path("in/notes.txt").write_text("x")
    job = ("batch", "in", "-o", "out", "--engine", "ort", "--conf", 0.2, "--workers", 1)
    done = detect_video(*job, "--save", ALL, "--frames", 2, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["items"]["done"] == 3
    assert any(note.startswith("1 skipped: 1 .txt") for note in result["notes"])
    for name, count in (("a.jpg", 1), ("sub/a.jpg", 1), ("v.mp4", 2)):
        folder = place / "out/files" / name
        outputs = json.loads((folder / "done.json").read_text())["outputs"]
        assert outputs["yolo"] == "dataset/labels"
        paths = {kind: str(folder / path) for kind, path in outputs.items()}
        assert check_names_lead_to_files(paths) == count
        for image in read(str(folder / "detections.coco.json"))["images"]:
            assert image["source"][0] == "v" or (folder / image["source"]).samefile(f"in/{name}")
