"""Detections that the sinks wrote are read back. Wrong files raise one-line errors."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detector.core import sinks
from detector.core.errors import SourceError
from detector.core.types import Detections
from detector.lab import datasets
from tests.lab.datasets import samples
from tests.one_line import one_line_error

sys.path.insert(0, str(Path(__file__).parents[2] / "sinks"))
from probing import make_frame, make_info

NAMES = ("person", "car")
JSONL = '{"source":"a.jpg","frame":0,"detections":[{"class":"x","score":%s,"box":%s}]}'
RESULT = '[{"image_id": %d, "category_id": %d, "bbox": [0, 0, 1, 1]%s}]'
CSV = "source,frame,pts,time_s,class,class_id,score,x1,y1,x2,y2"
FORMATS = ("coco", "csv", "jsonl", "mot", "yolo")


def detections(at: int) -> Detections:
    boxes = np.array([[1.25, 2, 30.5, 41], [0, 0, 8 + at, 9]], np.float32)
    return Detections(boxes, np.array([0.875, 0.0625], np.float32), np.array([1, 0]), NAMES)


def write(name: str, folder: Path, paths: list[str | None], **info) -> Path:
    scored = {"save_conf": True} if name == "yolo" else {}
    sink = sinks.open(name, folder / f"out{sinks.find(name).suffixes[0]}", **scored)
    sink.open(make_info(**info))
    for at, path in enumerate(paths):
        result = detections(at) if at < len(paths) - 1 else Detections.empty(NAMES)
        sink.write(make_frame(at, path=path), result)
    return sink.close()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["pictures", "video"])
def test_written_detections_are_read_back(tmp_path, name, kind):
    samples.mot(tmp_path / "set", frames=3)
    if kind == "pictures":
        paths = [str(path) for path in sorted((tmp_path / "set/img1").iterdir())]
        dataset = datasets.open(str(tmp_path / "set"))
    else:
        paths = [None] * 3
        (tmp_path / "in.mp4").touch()
        dataset = datasets.open(str(tmp_path / "set/gt/gt.txt"), images=str(tmp_path / "in.mp4"))
        for picture in dataset.pictures:  # the empty video file states no picture size
            picture.width, picture.height = samples.WIDTH, samples.HEIGHT
    path = write(name, tmp_path, paths, kind=kind)
    result = datasets.open_detections(str(path), dataset, names=NAMES if name == "mot" else None)
    expected = [detections(0), detections(1), Detections.empty(NAMES)]
    for read, written in zip(result.detections, expected, strict=True):
        assert read.boxes == pytest.approx(written.boxes, abs=1e-4 if name == "yolo" else 1e-6)
        assert read.scores.tolist() == pytest.approx(written.scores.tolist(), abs=5e-5)
        assert [*map(read.name, range(len(read)))] == [*map(written.name, range(len(written)))]
    if name in ("csv", "jsonl"):  # these formats name only the classes that were detected
        more = datasets.open_detections(str(path), dataset, names=("bus", *NAMES))
        assert (sorted(result.names), more.names) == (sorted(NAMES), ("bus", *NAMES))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0 0.5 0.5 0.1 0.1", r"5 numbers; .*--save-conf"),
        ("0 .5 .5 .1 .1 .5 .5 .9 .9", "9 numbers; a detection has six"),
    ],
)
def test_labels_and_poses_are_not_detections(tmp_path, row, message):
    samples.mot(tmp_path / "set", frames=3)
    picture = min((tmp_path / "set/img1").iterdir())
    folder = tmp_path / "out-labels"
    folder.mkdir()
    (folder / "classes.txt").write_text("person\ncar\n")
    (folder / f"{picture.stem}.txt").write_text(f"{row}\n")
    with pytest.raises(SourceError, match=message):
        datasets.open_detections(str(folder), datasets.open(str(tmp_path / "set")))


@pytest.mark.parametrize("name", ["csv", "jsonl"])
@pytest.mark.parametrize(
    "name_to_write", ["=1+1", "'=1", "@a", "-x", "\tx", "a\rb\nc\u2028d\x85e", '"', "+1"]
)
def test_class_names_with_special_characters_are_read_back(tmp_path, name, name_to_write):
    """A spreadsheet may treat such a name as a formula, and a reader may see a line end in it."""
    dataset = datasets.open(str(samples.coco(tmp_path)))
    sink = sinks.open(name, tmp_path / f"out.{name}")
    sink.open(make_info(kind="pictures"))
    box, score = np.array([[1, 2, 3, 4]], np.float32), np.array([0.5], np.float32)
    sink.write(make_frame(0, path="a.jpg"), Detections(box, score, np.array([0]), (name_to_write,)))
    result = datasets.open_detections(str(sink.close()), dataset)
    assert result.detections[0].name(0) == name_to_write
    cells = (tmp_path / f"out.{name}").read_bytes().decode().split(",")
    assert name == "jsonl" or not any(cell.startswith(("=", "+", "@", "\t")) for cell in cells)


def test_coco_file_loads_in_faster_coco_eval(tmp_path):
    coco = pytest.importorskip(
        "faster_coco_eval", reason="machine: faster-coco-eval is not installed"
    ).COCO(str(write("coco", tmp_path, ["x/a.jpg", "x/b.jpg"])))
    assert coco.getImgIds() == [1, 2]
    assert [row["name"] for row in coco.loadCats(coco.getCatIds())] == ["person", "car"]
    (first, second) = coco.loadAnns(coco.getAnnIds(imgIds=[1]))
    assert (first["bbox"], first["category_id"], first["score"]) == ([1.25, 2, 29.25, 39], 2, 0.875)
    assert second["area"] == 72


def test_list_of_results_uses_the_ids_of_the_labels(tmp_path):
    dataset = datasets.open(str(samples.coco(tmp_path)))
    path = tmp_path / "results.json"
    path.write_text(
        json.dumps([{"image_id": 20, "category_id": 3, "bbox": [1, 2, 3, 4], "score": 0.5}])
    )
    result = datasets.open_detections(str(path), dataset)
    assert [len(one) for one in result.detections] == [0, 1]
    assert result.detections[1].boxes.tolist() == [[1, 2, 4, 6]]
    assert result.detections[1].name(0) == "car"


def test_pictures_missing_from_the_labels_or_the_detections_are_noted(tmp_path):
    dataset = datasets.open(str(samples.coco(tmp_path)))
    result = datasets.open_detections(
        str(write("coco", tmp_path, ["elsewhere/a.jpg", "elsewhere/z.jpg"])), dataset
    )
    assert [len(one) for one in result.detections] == [2, 0]
    assert len(result.notes) == 2
    assert "1 picture" in result.notes[0]
    assert "lacks 1 picture " in result.notes[1]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("x.json", '{"images": []}', "has no list 'categories'"),
        ("x.json", RESULT % (10, 1, ""), "has no score, so it is a label"),
        ("x.json", RESULT % (10, 9, ', "score": 1'), "is of category 9"),
        ("x.json", RESULT % (5, 1, ', "score": 1'), "none of its pictures (the first"),
        ("x.json", '[{"image_id": 10,', "x.json:1: not valid JSON"),
        ("x.jsonl", '{"source":"a.jpg"}\n', "x.jsonl:1: not a line that detect-video wrote"),
        ("x.jsonl", "[" * 100_000, "x.jsonl:1: "),
        ("x.jsonl", JSONL % ("1e999", "[0,0,1,1]"), "x.jsonl:1: "),
        ("x.jsonl", JSONL % ("NaN", "[0,0,1,1]"), "x.jsonl:1: "),
        ("x.jsonl", JSONL % ("0.5", "[0,0,1]"), "x.jsonl:1: not a line"),
        ("x.jsonl", JSONL % ("0.5", "[0,0,1,1e999]"), "x.jsonl:1: "),
        ("x.jsonl", '{"source":"a\\u0000.jpg","frame":0,"detections":[]}', "another dataset"),
        ("x.csv", f"source\n{'x' * 200_000}\n", "not a row that detect-video wrote"),
        ("x.csv", f"{CSV}\na.jpg\n", "x.csv:2: not a row that detect-video wrote"),
        ("x.jsonl", '{"source":"q.jpg","frame":0,"detections":[]}\n', "belong to another dataset?"),
        ("x.csv", "source,frame\na.jpg,0\n", "x.csv:2: not a row that detect-video wrote"),
        ("x.mot.txt", "1,-1,0,0,5,5,0.5,1,1\n", "--names FILE"),
        ("x.avi", "", "eval reads what --save coco, mot, yolo, jsonl or csv wrote, or a folder"),
    ],
)
def test_wrong_file_is_a_one_line_error(tmp_path, file, content, message):
    dataset = datasets.open(str(samples.coco(tmp_path)))
    (tmp_path / file).write_text(content)
    with one_line_error(SourceError, message):
        datasets.open_detections(str(tmp_path / file), dataset)


@pytest.mark.parametrize(
    ("labels", "row", "message"),
    [
        (samples.coco, "1,-1,0,0,5,5,0.5,1,1", r"frame numbers, but .* pictures"),
        (samples.mot, "1,-1,0,0,-5,5,0.5,1,1", r"x.txt:1"),
        (samples.mot, "1,7,1,1,5,5,0.5,-1,-1,-1", r"class -1 .*--classes"),
        (samples.mot, "1,7,1,1,5,5,0.5,3,1", r"class 3 .* count from 1, and 2 names are known"),
        (samples.mot, "1,7,1,1,5,5,1,1\n1,7,9,1,5,5,1,1", r"x.txt:2: track 7 has two boxes"),
    ],
)
def test_wrong_row_of_mot_is_an_error(tmp_path, labels, row, message):
    dataset = datasets.open(str(labels(tmp_path / "set")))
    (tmp_path / "x.txt").write_text(f"{row}\n")
    with pytest.raises(SourceError, match=message):
        datasets.open_detections(str(tmp_path / "x.txt"), dataset, names=NAMES)


def test_mot_rows_without_a_class_get_the_only_class_name_given(tmp_path):
    dataset = datasets.open(str(samples.mot(tmp_path / "set")))
    (tmp_path / "x.txt").write_text("1,7,1,1,5,5,0.5,-1,-1,-1\n")
    result = datasets.open_detections(str(tmp_path / "x.txt"), dataset, names=("car",))
    assert result.detections[0].name(0) == "car"
    assert result.detections[0].boxes.tolist() == [[0, 0, 5, 5]]


@pytest.mark.parametrize("name", ["coco", "csv", "jsonl", "mot"])
def test_ids_of_tracks_are_read_back(tmp_path, name):
    samples.mot(tmp_path / "set", frames=2)
    options = {"tracks": True} if name == "csv" else {}
    sink = sinks.open(name, tmp_path / f"out{sinks.find(name).suffixes[0]}", **options)
    sink.open(make_info(kind="pictures"))
    for at, path in enumerate(sorted((tmp_path / "set/img1").iterdir())):
        found = replace(detections(at), track_ids=np.array([7, -1]))
        sink.write(make_frame(at, path=str(path)), found)
    names = NAMES if name == "mot" else None
    dataset = datasets.open(str(tmp_path / "set"))
    read = datasets.open_detections(str(sink.close()), dataset, names=names).detections
    ids = [7] if name == "mot" else [7, -1]  # MOT has no objects without an id
    assert [one.track_ids.tolist() for one in read] == [ids, ids]


ROW = "1,7,1,1,5,5,0.5,-1,-1,-1\n"


@pytest.mark.parametrize("files", [("one.txt", "two.txt"), ("data/one.mot.txt", "data/two.txt")])
def test_folder_of_tracks_has_a_file_for_each_sequence(tmp_path, files):
    for name in ("one", "two"):
        samples.mot(tmp_path / "gt" / name)
    for file in files:
        (tmp_path / "tracker" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tracker" / file).write_text(ROW.replace("1", "2", 1))
    dataset = datasets.open(str(tmp_path / "gt"))
    read = datasets.open_detections(str(tmp_path / "tracker"), dataset)
    assert [len(one) for one in read.detections] == [0, 1, 0, 1]
    assert read.names == ("pedestrian",)
    with pytest.raises(SourceError, match=r"sequence, .* 2 sequences; choose one .*: one, two"):
        datasets.open_detections(str(tmp_path / "tracker" / files[0]), dataset)
    (tmp_path / "tracker" / files[1]).unlink()
    with pytest.raises(SourceError, match=r"two.txt: no such file; each sequence needs one"):
        datasets.open_detections(str(tmp_path / "tracker"), dataset)
