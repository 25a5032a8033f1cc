"""Labels are mapped to two classes, boxes move with their pictures, batches are reproducible."""

import json

import cv2
import numpy as np
import pytest

pytest.importorskip("torch", reason="machine: torch is not installed")

from model import data, evaluation
from model.batches import Augmenter, batches, cell_fields, make_batch, place
from model.data import Picture, map_labels, pack, unpack
from model.teacher import cell_centres

NAMES = {1: "person", 2: "bicycle", 3: "car", 6: "bus", 7: "train", 9: "kite"}


def row(category, box=(0, 0, 10, 20), crowd=0):
    return {"category_id": category, "bbox": list(box), "iscrowd": crowd}


def picture(seed=0, kind="coco"):
    image = np.random.default_rng(seed).integers(0, 255, (60, 100, 3), dtype=np.uint8)
    boxes = np.array([[10, 20, 40, 50], [60, 5, 90, 55]], np.float32)
    return Picture(image, boxes, np.array([0, 1]), np.array([False, False]), kind, 1.0)


def no_teacher(images):
    cells = len(cell_centres(*images.shape[1:3]))
    return np.zeros((len(images), cells, 4), np.float32), np.zeros(
        (len(images), cells, 2), np.float32
    )


def test_similar_classes_are_ignored_and_others_dropped():
    boxes, classes, ignored = map_labels(
        [row(1), row(3), row(6), row(2), row(7), row(9), row(1, crowd=1)], NAMES
    )
    assert classes.tolist() == [0, 1, 1, 1, 1, 0]
    assert ignored.tolist() == [False, False, False, True, True, True]
    assert boxes[0].tolist() == [0, 0, 10, 20]


VOC_PICTURE = """<annotation><source><database>{base}</database></source>{objects}</annotation>"""
VOC_OBJECT = """<object><name>{}</name><difficult>{}</difficult><bndbox>
<xmin>1</xmin><ymin>3</ymin><xmax>10</xmax><ymax>20</ymax></bndbox></object>"""


@pytest.fixture
def write_voc(tmp_path):
    for name in ("Annotations", "JPEGImages"):
        (tmp_path / name).mkdir()

    def write(stem, *objects, base="The VOC2007 Database"):
        labels = "".join(VOC_OBJECT.format(*item) for item in objects)
        document = VOC_PICTURE.format(base=base, objects=labels)
        (tmp_path / "Annotations" / f"{stem}.xml").write_text(document)
        cv2.imwrite(str(tmp_path / "JPEGImages" / f"{stem}.jpg"), np.zeros((30, 40, 3), np.uint8))
        return tmp_path

    return write


def test_voc_coordinates_start_at_one_and_difficult_objects_are_ignored(write_voc):
    folder = write_voc("1", ("person", 0), ("car", 1), ("bicycle", 0), ("dog", 0), ("bus", 0))
    (voc_picture,) = data.read_voc(folder)
    assert voc_picture.boxes.tolist() == [[0, 2, 10, 20]] * 4
    assert voc_picture.classes.tolist() == [0, 1, 1, 1]
    assert voc_picture.ignored.tolist() == [False, True, True, False]
    assert (voc_picture.kind, voc_picture.image.shape) == ("voc", (30, 40, 3))


def test_voc_weights_prefer_vehicles_to_people_and_animals(write_voc):
    write_voc("1", ("motorbike", 0), ("person", 0))
    write_voc("2", ("person", 0), ("car", 1))
    write_voc("3", ("cow", 0))
    folder = write_voc("4", ("sofa", 0))
    vehicle, person, animal, nothing = (voc_picture.weight for voc_picture in data.read_voc(folder))
    assert vehicle > person >= animal > nothing > 0


def test_voc_skips_other_data_bases_and_missing_pictures(write_voc):
    write_voc("1", ("car", 0), base="Unknown")
    folder = write_voc("2", ("car", 0))
    (folder / "JPEGImages/2.jpg").unlink()
    assert list(data.read_voc(folder)) == []


def test_unlabelled_people_in_traffic_pictures_are_left_to_the_teacher(tmp_path):
    cv2.imwrite(str(tmp_path / "1.jpg"), np.zeros((30, 40, 3), np.uint8))
    document = {
        "images": [{"id": 7, "file_name": "1.jpg", "set": "traffic"}],
        "categories": [{"id": 1, "name": "vehicle"}, {"id": 2, "name": "bicycle"}],
        "annotations": [
            {"image_id": 7, "category_id": 1, "bbox": [1, 2, 10, 20]},
            {"image_id": 7, "category_id": 2, "bbox": [5, 5, 4, 4]},
        ],
    }
    path = tmp_path / "traffic.json"
    path.write_text(json.dumps(document))
    (traffic_picture,) = data.read_coco(path, tmp_path, "traffic")
    assert traffic_picture.boxes.tolist() == [[1, 2, 11, 22], [5, 5, 9, 9]]
    assert (traffic_picture.classes.tolist(), traffic_picture.ignored.tolist()) == (
        [1, 1],
        [False, True],
    )
    assert data.TRUST[traffic_picture.kind] == (1.0, 1.0)
    assert 0 < traffic_picture.weight < data.sampling_weight("highway", "road", [1])


def test_pictures_with_vehicles_have_higher_weights():
    assert data.sampling_weight("extra", "coco", [0, 1]) > data.sampling_weight(
        "extra", "coco", [0]
    )
    assert data.sampling_weight("train", "coco", [1]) > data.sampling_weight("train", "coco", [0])


def test_placed_box_surrounds_its_bright_rectangle():
    for seed in range(20):
        image = np.zeros((60, 100, 3), np.uint8)
        image[20:50, 10:40] = 255
        placed = Picture(
            image,
            np.array([[10, 20, 40, 50]], np.float32),
            np.array([0]),
            np.array([False]),
            "coco",
            1.0,
        )
        canvas = np.zeros((96, 160, 3), np.uint8)
        boxes, _, ignored, _ = place(
            canvas, placed, (0, 0, 160, 96), 1.3, np.random.default_rng(seed)
        )
        bright = np.argwhere(canvas[:, :, 0] > 200)
        if ignored.any() or not len(boxes):
            continue
        (y1, x1), (y2, x2) = bright.min(axis=0), bright.max(axis=0) + 1
        np.testing.assert_allclose(boxes[0], [x1, y1, x2, y2], atol=1.5)


def test_box_cut_by_the_edge_is_ignored():
    canvas = np.zeros((40, 40, 3), np.uint8)
    outcomes = set()
    for seed in range(40):
        boxes, _, ignored, _ = place(
            canvas, picture(), (0, 0, 40, 40), 1.5, np.random.default_rng(seed)
        )
        assert (boxes >= 0).all()
        assert (boxes <= 40).all()
        outcomes |= set(ignored.tolist())
    assert outcomes == {False, True}


def test_cells_have_the_trust_of_their_tile_and_do_not_count_in_ignored_boxes():
    sample = Augmenter([picture(kind="road")]).sample(np.random.default_rng(0), (64, 96), 0.0)
    sample.tiles = [((0, 0, 48, 64), (1.0, 0.5))]
    sample.boxes, sample.classes = np.array([[0, 0, 16, 16]], np.float32), np.array([1])
    sample.ignored = np.array([True])
    trust, counts = cell_fields(sample, 64, 96)
    centres = cell_centres(64, 96)
    left = centres[:, 0] < 48
    assert (trust[left] == [1.0, 0.5]).all()
    assert (trust[~left] == 0).all()
    assert (counts[:, 0] == 1).all()
    assert set(counts[(centres < 16).all(axis=1), 1]) == {0.0}


def test_batch_depends_only_on_seed_and_number():
    augmenter = Augmenter([picture(seed) for seed in range(3)])

    def make(number, seed=5):
        return make_batch(augmenter, no_teacher, seed, number, (64, 96), 2, 0.5)

    made = list(batches(make, 3, 6, threads=2, ahead=2))
    for number, batch in zip(range(3, 6), made, strict=True):
        np.testing.assert_array_equal(batch.images, make(number).images)
        np.testing.assert_array_equal(batch.boxes, make(number).boxes)
    assert not np.array_equal(make(3).images, make(4).images)
    assert not np.array_equal(make(3).images, make(3, seed=6).images)


def test_unpack_returns_packed_pictures(tmp_path):
    pack([picture(1), picture(2, "overpass")], {"teacher.onnx": b"abc"}, tmp_path / "p.zip")
    first, second = unpack(tmp_path / "p.zip")
    assert second.kind == "overpass"
    np.testing.assert_array_equal(first.boxes, picture(1).boxes)
    assert first.image.shape == (60, 100, 3)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.slow
def test_half_of_the_validation_pictures_is_held_out(shared):
    pictures = list(evaluation.read_validation(shared / "data/labelled"))
    share = np.mean([picture.held_out for picture in pictures])
    assert 0.4 < share < 0.6
    assert {picture.group for picture in pictures if picture.held_out} == {
        "coco",
        "road",
        "overpass",
        "elevated",
    }
    overpass = next(picture for picture in pictures if picture.group == "overpass")
    assert overpass.truths[0] is None
    assert overpass.truths[1] is not None


def test_training_reads_only_training_files(shared, monkeypatch):
    read = []
    monkeypatch.setattr(data, "read_coco", lambda path, *_: read.append(path) or iter(()))
    list(data.read_labelled(shared / "data/labelled"))
    assert [str(path.relative_to(shared / "data/labelled")) for path in read] == [
        "coco/train.json",
        "coco/extra.json",
        "highway/train.json",
    ]
