"""Matching the classes of a model to those of labels."""

import re

import pytest

from detector.core.errors import UsageError
from detector.core.models.catalogue import folder
from detector.core.models.names import read_names
from detector.lab.datasets.classmap import bind, read_mapping
from tests.one_line import one_line_error

MODEL = ("person", "bicycle", "car", "motorbike", "bus", "truck", "train")
LABELS = ("person", "car", "motorcycle", "bike", "cow")
GOOD = """
classes:
  person: [person]
  vehicle: [car, truck, bus, motorcycle, motorbike, (van)]
ignore:
  vehicle: [bike, (tram)]
"""


def mapping(tmp_path, text=GOOD):
    path = tmp_path / "map.yaml"
    path.write_text(text)
    return read_mapping(str(path), tmp_path)


def test_mapping_binds_model_classes_to_labels(tmp_path):
    bound = bind(mapping(tmp_path), MODEL, LABELS)
    assert bound.targets == ("person", "vehicle")
    assert bound.groups == ((0,), (2, 3, 4, 5))
    assert bound.label_ids == {0: 0, 1: 1, 2: 1}
    assert bound.ignored_ids == {3: 1}
    assert bound.merges
    assert bound.notes == ()


def test_model_class_with_the_name_of_a_target_belongs_to_that_target(tmp_path):
    bound = bind(mapping(tmp_path, "classes: {vehicle: car}"), ("vehicle", "person"), LABELS)
    assert (bound.targets, bound.groups, bound.label_ids) == (("vehicle",), ((0,),), {1: 0})


def test_classes_are_matched_by_name_without_a_mapping():
    bound = bind(None, MODEL, LABELS)
    assert (bound.targets, bound.groups) == (("person", "car"), ((0,), (2,)))
    assert bound.label_ids == {0: 0, 1: 1}
    (note,) = bound.notes
    assert ": motorcycle, bike, cow; add --mapping coco to" in note


def test_mapping_named_coco_matches_the_names_of_darknet():
    darknet = read_names(folder() / "names/coco.names")
    coco = [{"motorbike": "motorcycle", "sofa": "couch"}.get(name, name) for name in darknet]
    assert len(bind(None, darknet, coco).targets) == 78
    bound = bind(read_mapping("coco", folder() / "mappings"), darknet, coco)
    assert (len(bound.targets), bound.merges, bound.notes) == (80, False, ())


def test_class_that_only_the_model_or_the_labels_have_is_not_scored(tmp_path):
    text = "classes: {person: [person], cow: [cow], train: [train]}"
    bound = bind(mapping(tmp_path, text), MODEL, LABELS)
    assert bound.targets == ("person",)
    lacking = [re.findall("cow|train|model|labels", note) for note in bound.notes]
    assert lacking == [["model", "cow"], ["labels", "train"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("classes: {vehicle: [cra]}", "classes.vehicle lists 'cra', which neither the model"),
        ("classes: {vehicle: [cra]}", "did you mean 'car'?"),
        ("classes: {vehicle: [car]}\nignore: {vehicle: [zebra]}", "write (zebra)"),
        ("classes: {zebra: [(zebra)]}", "none of its classes is in both the model"),
        ("classes: {a: [car], b: [car]}", "'car' is in classes.a and in classes.b; keep one"),
        ("classes: {car: [truck], b: [car]}", "'car' is in classes.car and in classes.b"),
        ("classes: {a: [car]}\nignore: {b: [bus]}", "ignore.b: no such class; classes are a"),
        ("classes: {a: {b: c}}", "classes.a must be a list of names: [car, truck]"),
        ("vehicle: [car]", "a mapping needs the key 'classes', such as classes"),
        ("classes: {a: [car]}\nextra: 1", "unknown key 'extra'; known: classes, ignore"),
        ("classes: {a: [car]}\nignore: [bus]", "'ignore' must hold classes"),
        ("classes: {a: [car", "map.yaml:1: not valid YAML"),
        ("", "a mapping needs the key"),
    ],
)
def test_wrong_mapping_is_a_one_line_error(tmp_path, text, message):
    with one_line_error(UsageError, message):
        bind(mapping(tmp_path, text), MODEL, LABELS)


def test_mapping_is_suggested_if_no_class_name_matches():
    with pytest.raises(UsageError, match=r"\(cat\).*\(dog\).*--mapping FILE"):
        bind(None, ("cat",), ("dog",))
    with pytest.raises(UsageError, match=r"--mapping person-vehicle$"):
        bind(None, ("car", "person"), ("pedestrian", "static person"))
    with pytest.raises(UsageError, match=r"nowhere: .* person-vehicle"):
        read_mapping("nowhere", folder() / "mappings")
