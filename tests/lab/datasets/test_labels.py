"""Labels in three formats are read as a Dataset. An error in a file is one line with the fix."""

import json
import os
import shutil
from pathlib import Path

import pytest

from detector.core.errors import SourceError, UsageError
from detector.lab import datasets
from detector.lab.datasets.base import Lookup, read_picture_size
from tests.lab.datasets import samples
from tests.one_line import one_line_error
from tests.sources.clips import write_video


def test_formats_are_listed():
    assert list(datasets.label_formats()) == ["coco", "mot", "yolo"]
    assert list(datasets.detection_formats()) == ["coco", "csv", "jsonl", "mot", "yolo"]


def test_coco_labels_are_read(tmp_path):
    dataset = datasets.open(str(samples.coco(tmp_path)))
    assert (dataset.format, dataset.classes, dataset.video) == ("coco", ("person", "car"), None)
    a, b = dataset.pictures
    assert a.boxes.tolist() == [[1, 2, 11, 22], [30, 0, 60, 40], [5, 5, 13, 9]]
    assert (a.class_ids.tolist(), a.ignored.tolist()) == ([0, 0, 1], [False, False, True])
    assert a.crowd.tolist() == [False, True, False]
    assert a.areas.tolist() == [150, 1200, 32]  # the third box states no area: 8 x 4
    assert (a.id, a.labelled, a.subset, a.path) == (10, None, "day", str(tmp_path / "a.jpg"))
    assert (b.labelled, len(b.boxes)) == (frozenset({1}), 0)
    dataset.check_readable()


def test_pictures_are_found_in_the_folders_of_the_coco_archives(tmp_path):
    samples.coco(tmp_path / "annotations", pictures=())
    (tmp_path / "annotations/labels.json").rename(tmp_path / "annotations/instances_val2017.json")
    for name in ("a.jpg", "b.jpg"):
        samples.picture(tmp_path / "images/val2017" / name)
    datasets.open(str(tmp_path / "annotations/instances_val2017.json")).check_readable()


def test_missing_sizes_are_read_from_the_pictures(tmp_path):
    document = samples.coco_document()
    for image in document["images"]:
        del image["width"]
    dataset = datasets.open(str(samples.coco(tmp_path, document)))
    assert {(one.width, one.height) for one in dataset.pictures} == {
        (samples.WIDTH, samples.HEIGHT)
    }


@pytest.mark.parametrize("where", ["beside", "given", "by its name"])
def test_coco_labels_of_a_video_are_read(tmp_path, where):
    document = samples.coco_document()
    for image, frame in zip(document["images"], (0, 7), strict=True):
        image["file_name"] = f"in.mp4#{frame}"
    path = samples.coco(tmp_path, document, ())
    video = tmp_path / ("in.mp4" if where != "given" else "other.mkv")
    video.touch()
    if where == "by its name":
        path.rename(tmp_path / "in.json")
        dataset = datasets.open(str(video))
    else:
        dataset = datasets.open(str(path), images=str(video) if where == "given" else None)
    assert dataset.video == str(video)
    assert [one.frame for one in dataset.pictures] == [0, 7]
    assert {one.path for one in dataset.pictures} == {None}


@pytest.mark.parametrize("yaml", [True, False])
def test_yolo_labels_are_read(tmp_path, yaml):
    dataset = datasets.open(str(samples.yolo(tmp_path, yaml=yaml)))
    assert (dataset.format, dataset.classes) == ("yolo", ("person", "car"))
    a, b = dataset.pictures
    assert a.boxes.tolist() == [[0, 0, 32, 24], [32, 24, 64, 48]]  # the second is a polygon
    assert (a.class_ids.tolist(), len(b.boxes)) == ([1, 0], 0)
    assert (a.width, a.height) == (samples.WIDTH, samples.HEIGHT)
    assert a.path == str(tmp_path / "images/val/a.jpg")


def test_split_of_yolo_labels_is_chosen(tmp_path):
    samples.yolo(tmp_path)
    (tmp_path / "some.txt").write_text("images/val/a.jpg\n")
    (tmp_path / "data.yaml").write_text("valid: images/val\ntest: some.txt\nnames: [person, car]\n")
    assert len(datasets.open(str(tmp_path)).pictures) == 2  # "valid" is read as "val"
    assert len(datasets.open(str(tmp_path / "data.yaml"), split="test").pictures) == 1
    with pytest.raises(SourceError, match=r"'train'; .* test; .*--split"):
        datasets.open(str(tmp_path), split="train")


@pytest.mark.parametrize("info", [True, False])
def test_mot_labels_are_read(tmp_path, info):
    dataset = datasets.open(str(samples.mot(tmp_path, info=info)))
    assert dataset.format == "mot"
    assert dataset.classes[:3] == ("pedestrian", "person on vehicle", "car")
    first, second = dataset.pictures
    assert first.boxes.tolist() == [[4, 5, 14, 25], [29, 5, 39, 25]]  # pixels count from 1
    assert (first.class_ids.tolist(), first.ignored.tolist()) == ([0, 0], [False, True])
    assert (second.class_ids.tolist(), second.ignored.tolist()) == ([0, 2], [False, True])
    assert first.labelled == {0}, "cars are not labelled, because all cars are ignored"
    assert (first.frame, second.frame, first.width) == (0, 1, samples.WIDTH)
    dataset.check_readable()


def test_mot_labels_of_several_sequences_are_read(tmp_path):
    samples.mot(tmp_path / "one")
    samples.mot(tmp_path / "two", frames=3)
    (tmp_path / "unlabelled").mkdir()
    shutil.copy(tmp_path / "one/seqinfo.ini", tmp_path / "unlabelled")
    with pytest.raises(SourceError, match=r"no gt/gt\.txt in it"):
        datasets.open(str(tmp_path / "unlabelled"))
    dataset = datasets.open(str(tmp_path))
    assert dataset.notes == ["skipped sequences without gt/gt.txt: unlabelled"]
    assert [one.subset for one in dataset.pictures] == ["one", "one", "two", "two", "two"]
    assert [one.id for one in dataset.pictures] == [0, 1, 2, 3, 4]
    assert [one.frame for one in dataset.pictures] == [0, 1, 0, 1, 2]
    lookup = Lookup(dataset)
    assert (lookup.by_frame(0), lookup.by_frame(2)) == (None, 4)  # frame 0 is ambiguous


def test_mot_labels_of_a_video_with_named_classes_are_read(tmp_path):
    samples.mot(tmp_path)
    (tmp_path / "gt/labels.txt").write_text("walker\nrider\ncart\n")
    (tmp_path / "in.mp4").touch()
    dataset = datasets.open(str(tmp_path / "gt/gt.txt"), images=str(tmp_path / "in.mp4"))
    assert dataset.classes == ("walker", "rider", "cart")
    assert dataset.pictures[0].boxes[0].tolist() == [5, 6, 15, 26]  # CVAT counts pixels from 0
    assert dataset.video == str(tmp_path / "in.mp4")
    assert [one.path for one in dataset.pictures] == [None, None]


def test_real_mot_sequence_is_read(shared):
    dataset = datasets.open(str(shared / "data/labelled/sequence"))
    dataset.check_readable()
    assert len(dataset.pictures) == 12
    assert sum(len(one.boxes) for one in dataset.pictures) == 156 + 792
    truth = json.loads((shared / "data/labelled/sequence/MOT17-02-FRCNN/gt.json").read_text())
    boxes = sorted(annotation["bbox"] for annotation in truth["annotations"])
    ours = [box for one in dataset.pictures[:4] for box in one.boxes.tolist()]
    # MOTChallenge counts pixels from 1, and so does gt.json.
    assert sorted([x1 + 1, y1 + 1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in ours) == [
        pytest.approx(box) for box in boxes
    ]


def test_picture_size_is_read(tmp_path):
    for name in ("a.jpg", "b.png", "c.bmp"):
        assert read_picture_size(str(samples.picture(tmp_path / name, 31, 17))) == (31, 17)


def without(key):
    return {name: value for name, value in samples.coco_document().items() if name != key}


def changed(kind, at, **values):
    document = samples.coco_document()
    document[kind][at] |= values
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (without("images"), "has no list 'images': a COCO json has 'images'"),
        ([{"image_id": 1}], "is a list"),
        ({**samples.coco_document(), "categories": [1]}, "has no list 'categories': a COCO json"),
        ({**samples.coco_document(), "images": [], "annotations": []}, "contains no pictures"),
        (changed("annotations", 1, image_id=99), "'images' lacks the pictures of 1 annotation"),
        (changed("annotations", 1, category_id=7), "annotation 2 is of category 7"),
        (changed("annotations", 0, bbox=[1, 2, 3]), "annotation 1: bbox [1, 2, 3] is not [x, y,"),
        (changed("annotations", 0, bbox=[1, 2, -3, 4]), "is not [x, y, width, height]"),
        (changed("annotations", 0, bbox=None), "bbox None is not"),
        (changed("annotations", 0, image_id="ten"), "image_id is 'ten'; it must be a whole number"),
        (changed("annotations", 0, score=0.5), "its annotations have scores"),
        (changed("images", 1, id=10), "two images have the same id"),
    ],
)
def test_wrong_coco_json_is_a_one_line_error(tmp_path, document, message):
    with one_line_error(SourceError, message):
        datasets.open(str(samples.coco(tmp_path, document)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"images": [', "labels.json:1: not valid JSON (Expecting value)"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (b"", "labels.json:1: not valid JSON"),
        (b"[" * 100_000, "nested more than"),
    ],
)
def test_corrupt_json_is_an_error(tmp_path, content, message):
    path = tmp_path / "labels.json"
    path.write_bytes(content)
    with one_line_error(SourceError, message):
        datasets.open(str(path))


def test_error_counts_the_missing_pictures(tmp_path):
    dataset = datasets.open(str(samples.coco(tmp_path, pictures=("a.jpg",))))
    with pytest.raises(SourceError, match=r"1 of .* 2 pictures.*/b.jpg"):
        dataset.check_readable()


def test_mot_labels_can_be_read_without_pictures_but_a_run_needs_them(tmp_path):
    samples.mot(tmp_path)
    (tmp_path / "seqinfo.ini").write_text("[Sequence]\nimDir=nowhere\n")
    dataset = datasets.open(str(tmp_path))
    with pytest.raises(SourceError, match=r"2 of .* 2 pictures.*/nowhere/000001.jpg\); .*--images"):
        dataset.check_readable()


POLYGON = " .5 .5 .2 .3 .5 .5 .6 .6"
MOT_FILES = ("gt.txt", "seqinfo.ini")
POSES = "names: [person, car]\nval: images/val\nkpt_shape: %s\n"


@pytest.mark.parametrize(
    ("shape", "keypoints"),
    [
        ("[3, 2]", ".5 .5 1.2 .4 .6 -.1"),
        ("[1, 3]", ".5 .5 2"),
        ("[2, 3]", ".5 .5 2 0 0 0"),
        ("[2, 3]", ""),
    ],
)
@pytest.mark.parametrize("video", [False, True])
def test_kpt_shape_decides_between_keypoints_and_polygons(tmp_path, shape, keypoints, video):
    samples.yolo(tmp_path)
    (tmp_path / "data.yaml").write_text(POSES % shape)
    (tmp_path / "labels/val/a.txt").write_text(f"1 0.25 0.25 0.5 0.5 {keypoints}\n")
    if video:
        (tmp_path / "labels/val/a.txt").rename(tmp_path / "labels/in_000007.txt")
        video_file = write_video(tmp_path / "in.mp4", 8)
    dataset = datasets.open(str(tmp_path), images=str(video_file) if video else None)
    (box,), size = dataset.pictures[0].boxes.tolist(), dataset.pictures[0]
    assert box == [0, 0, size.width / 2, size.height / 2]
    assert dataset.notes == []


@pytest.mark.parametrize(("other", "notes"), [("", 1), (" .3 .3", 0)])
def test_rows_that_may_be_poses_are_noted(tmp_path, other, notes):
    samples.yolo(tmp_path)
    (tmp_path / "labels/val/a.txt").write_text(f"0{POLYGON}\n1{POLYGON}{other}\n1{POLYGON[:12]}\n")
    assert len(datasets.open(str(tmp_path)).notes) == notes


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("labels/val/a.txt", "2 .5 .5 1 1\n", "a.txt:1: class 2 has no name: classes count from 0"),
        ("data.yaml", "names: [a]\nval: images/val\n", "count from 0, and 1 name is known"),
        ("labels/val/a.txt", "0 0.5 0.5 1\n", "a.txt:1: not a row of at least 5 numbers"),
        ("labels/val/a.txt", "\n0 0.5 x 1 1\n", "a.txt:2: not a row of at least 5 numbers"),
        ("labels/val/a.txt", "0 30 20 10 10\n", "is not relative to the picture: YOLO's numbers"),
        ("labels/val/a.txt", "0 .5 .5 .1 .1 .9\n", "six numbers are a detection, not a label"),
        ("labels/val/a.txt", "0 .5 .5 .1 .1 .9 .5 .5\n", "8 numbers; a box has 5"),
        ("labels/val/a.txt", "0 .5 .5 .1 .1 .5 2\n", "keypoints need kpt_shape in data.yaml"),
        ("data.yaml", POSES % "17", "kpt_shape 17 is not a count"),
        ("data.yaml", POSES % "[2, 4]", "kpt_shape [2, 4] is not"),
        ("data.yaml", POSES % "[-2, 2]", "kpt_shape [-2, 2] is not"),
        ("data.yaml", POSES % "[3, 2]", "a.txt:2: 7 numbers; by kpt_shape in data.yaml"),
        ("labels/val/stranger.txt", "0 .5 .5 .1 .1\n", "1 label file has no picture (the first"),
        ("data.yaml", "val: images/val\n", "has no key 'names'"),
        ("data.yaml", "names: {1: a}\nval: images/val\n", "'names' must be a list"),
        ("data.yaml", "names: [a\n", "data.yaml:2: not valid YAML"),
        ("data.yaml", "names: [a, b]\nval: images/nowhere\n", "images/nowhere was not found"),
        ("gt/gt.txt", "3,1,0,0,5,5,1,1,1\n", "1 frame has no picture (the first is frame 3 of 2)"),
        ("gt/gt.txt", "0,1,0,0,5,5,1,1,1\n", "gt.txt:1: not a row with frame >= 1"),
        ("gt/gt.txt", "1,1,0,0,-5,5,1,1,1\n", "sizes >= 0"),
        ("gt/gt.txt", "1,1,0\n", "gt.txt:1: not a row of at least 6 numbers"),
        ("gt/gt.txt", "1,1,0,0,5,5,1,40,1\n", "class 40, but the known classes are 1 to 13"),
        ("gt/gt.txt", "1,1,0,0,5,5,1,1.5,1\n", "class 1.5, but the known classes are 1 to 13"),
        ("seqinfo.ini", "seqLength=2\n", "needs [Sequence], with whole numbers for seqlength"),
        ("seqinfo.ini", "[Sequence]\nseqLength=two\n", "seqinfo.ini: needs [Sequence]"),
    ],
)
def test_wrong_folder_is_a_one_line_error(tmp_path, file, content, message):
    samples.mot(tmp_path) if (tmp_path / file).name in MOT_FILES else samples.yolo(tmp_path)
    (tmp_path / file).write_text(content)
    with one_line_error(SourceError, message):
        datasets.open(str(tmp_path))


def test_yolo_folder_without_names_or_labels_is_an_error(tmp_path):
    samples.yolo(tmp_path, yaml=False)
    (tmp_path / "labels/val/a.txt").unlink()
    with pytest.raises(SourceError, match="2 pictures"):
        datasets.open(str(tmp_path))
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(SourceError, match=r"data.yaml, .* classes.txt"):
        datasets.open(str(tmp_path))


def test_path_that_is_not_a_dataset_raises(tmp_path):
    (tmp_path / "in.mp4").touch()
    for spec, message in (
        (tmp_path, "unknown format; eval reads a COCO .json"),
        (tmp_path / "nowhere.json", "no such file or folder"),
        (tmp_path / "in.mp4", r"no labels next to it \(in.json or in.txt\)"),
    ):
        with pytest.raises(SourceError, match=message):
            datasets.open(str(spec))
    with pytest.raises(UsageError, match=r"'voc' .* coco, mot, yolo"):
        datasets.open(str(tmp_path), format="voc")
    with pytest.raises(SourceError, match="no such folder"):
        datasets.open(str(samples.coco(tmp_path)), images=str(Path("/nowhere")))


def test_root_of_the_file_system_is_refused_as_a_folder_of_pictures(tmp_path):
    (tmp_path / "data.yaml").write_text("val: /\nnames: [person]\n")
    with pytest.raises(SourceError, match="root of the file"):
        datasets.open(str(tmp_path / "data.yaml"))


def test_folder_removed_during_the_walk_is_ignored(tmp_path, monkeypatch):
    """This happens in /proc, or if another program removes pictures."""
    path = samples.yolo(tmp_path)
    removed = tmp_path / "images/val/gone"
    removed.mkdir(parents=True, exist_ok=True)
    scandir = os.scandir

    def vanish(place):
        if str(place).endswith("gone"):
            removed.rmdir()
        return scandir(place)

    monkeypatch.setattr(os, "scandir", vanish)
    assert datasets.open(str(path)).pictures
    assert not removed.exists()
