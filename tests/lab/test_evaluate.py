"""Functions of ``eval``: map classes, match labels to frames, and give each row a session."""

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from detector.core.config.levels import COMMAND_LINE, merge_levels, resolve_config
from detector.core.config.schema import Config
from detector.core.errors import EngineError, ModelError, SourceError, UsageError
from detector.core.run.loading import LoadedModel
from detector.core.types import Candidates, Detections, Frame
from detector.lab import evaluate as evaluation
from detector.lab.datasets.base import Dataset, make_picture
from detector.lab.datasets.classmap import ClassPairs
from detector.lab.evaluate.scoring import list_coco_results, map_labels
from detector.lab.evaluate.study import Study

A, B, C = [0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]
BOUND = ClassPairs(  # classes of the labels: person, car, bus, bicycle
    ("person", "vehicle"), ((0,), (2, 3)), {0: 0, 1: 1, 2: 1}, {3: 1}
)


def labels(*rows, **more):
    return make_picture(
        0,
        "a.jpg",
        (64, 48),
        [(box, class_id, False, crowd, None) for box, class_id, crowd in rows],
        **more,
    )


def test_labels_are_mapped_to_targets():
    rows = (A, 2, False), (B, 3, False), (C, 4, False), (A, 0, True), (C, 3, True)
    picture = map_labels(labels(*rows), BOUND)
    assert picture.boxes.tolist() == [A, B, A, C]  # class 4 has no target
    assert picture.class_ids.tolist() == [1, 1, 0, 1]
    assert picture.ignored.tolist() == [False, True, False, False]  # a crowd stays a crowd
    assert picture.crowd.tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("labelled_classes", "scored", "boxes"),
    [
        (None, None, 2),
        ({0, 1}, {0, 1}, 2),
        ({2}, {1}, 1),  # a picture labelled for buses counts for vehicles only
        ({3}, set(), 0),  # a picture labelled for an ignored class counts for nothing
    ],
)
def test_picture_counts_only_for_the_classes_it_was_labelled_for(labelled_classes, scored, boxes):
    labelled_classes = None if labelled_classes is None else frozenset(labelled_classes)
    picture = map_labels(labels((A, 0, False), (B, 1, False), labelled=labelled_classes), BOUND)
    assert picture.labelled == (None if scored is None else frozenset(scored))
    assert len(picture.boxes) == boxes


def test_coco_results_have_the_ids_of_the_labels():
    dataset = Dataset("x", "coco", (), [labels()], category_ids={0: 1, 1: 3, 2: 6, 3: 2})
    scores = np.array([0.5, 0.25], np.float32)
    boxes = np.array([[0, 0, 10.015625, 10], B], np.float32)  # written with all digits
    found = Detections(boxes, scores, np.array([0, 1]), BOUND.targets)
    text, notes = list_coco_results(dataset, BOUND, [0], [found])
    assert json.loads(text) == [
        {"image_id": 0, "category_id": 1, "bbox": [0, 0, 10.015625, 10], "score": 0.5}
    ]
    assert ["vehicle" in note for note in notes] == [True]  # vehicle merges cars and buses
    dataset.category_ids = {}
    assert list_coco_results(dataset, BOUND, [0], [found]) == ("", ())


@dataclass
class Net:
    names: tuple[str, ...] = ("person", "bicycle", "car", "bus")
    head: Any = None
    dense: Any = None
    needs_nms: bool = False
    name: str = "net"
    watched: str = ""


def dataset(*pictures, classes=("person", "car", "bus", "bicycle"), video=None):
    return Dataset("x.json", "coco", classes, list(pictures), video)


@pytest.mark.parametrize(("merged", "needs_nms"), [(True, True), (False, False)])
def test_network_gets_a_head_with_the_mapped_classes(tmp_path, merged, needs_nms):
    from detector.lab.datasets.classmap import read_mapping

    (tmp_path / "m.yaml").write_text(
        f"classes: {{person: [person], vehicle: [car{', bus' if merged else ''}]}}\n"
    )
    study = Study(dataset(labels((A, 0, False))), read_mapping(str(tmp_path / "m.yaml"), tmp_path))
    machine = LoadedModel(Net(dense=lambda outputs: outputs[0]), None, None, [])
    study.remap(machine)
    assert machine.network.names == ("person", "vehicle")
    assert machine.network.needs_nms == needs_nms
    row = np.array([[[10, 10, 4, 4, 1.0, 0.1, 0.9, 0.3, 0.6]]], np.float32)
    found = machine.network.head([row], 0.25)
    assert found.class_ids.tolist() == [1]
    assert found.scores.tolist() == pytest.approx([0.6 if merged else 0.3])


def test_unknown_class_id_is_an_error():
    """Average precision needs a score per class, and an unknown class has none."""
    study = Study(dataset(labels((A, 0, False))), None)
    wrong = Candidates(np.float32([[10, 10, 50, 60]]), np.float32([0.9]), np.int64([-1]))
    rows = np.zeros((1, 1, 5 + 4), np.float32)
    net = Net(head=lambda outputs, conf: wrong, dense=lambda outputs: rows, watched="describe it")
    machine = LoadedModel(net, None, None, [])
    study.remap(machine)
    with pytest.raises(ModelError, match=r"1 below the .*describe it"):
        machine.network.head([rows], 0.001)


def test_labels_without_boxes_are_refused():
    study = Study(dataset(labels((A, 0, True))), None)
    with pytest.raises(SourceError, match="1 picture"):
        study.remap(SimpleNamespace(network=Net()))


def frame(index):
    return Frame(index, index, float(index), np.zeros((48, 64, 3), np.uint8))


def test_frames_of_a_video_are_matched_to_labels():
    labelled_frames = dataset(*(labels(frame=index) for index in (0, 3, 5, 10)), video="in.mp4")
    evaluation.select_frames(labelled_frames, stride=5, frames=2)
    assert [one.frame for one in labelled_frames.pictures] == [0, 5]
    study = Study(labelled_frames, None)
    for index in range(7):
        study.collect(frame(index), Detections.empty())
    assert sorted(study.detections) == [0, 1]


@pytest.mark.parametrize(
    ("engines", "tiles", "rows"),
    [
        ([], [], "auto r"),
        (["ort"], [], "ort r"),
        (["ort", "null"], [], "ort r/ort null r/null"),
        (["ort", "null"], ["2x2"], "ort r/ort/2x2 null r/null/2x2"),
        (["ort"], ["none", "2x2"], "ort r/ort/none ort r/ort/2x2"),
    ],
)
def test_each_engine_and_number_of_tiles_has_its_own_session(engines, tiles, rows):
    config = merge_levels((COMMAND_LINE, {"run_dir": "r"}))
    found = evaluation.list_configs(config, engines, tiles)
    assert " ".join(f"{one.runtime.engine} {one.output.run_dir}" for one in found) == rows
    assert [one.input.tiles for one in found] == (tiles or [None]) * max(1, len(engines))
    for wrong in ((["ort", "ort"], []), ([], ["2x2", "2x2"]), ([], ["0x2"])):
        with pytest.raises(UsageError):
            evaluation.list_configs(config, *wrong)


def test_engine_that_a_plain_run_chooses_is_scored_too(monkeypatch):
    from detector.core.engines import _ranking
    from detector.core.run import loading
    from detector.core.run.choose import EngineChoice

    def usual(engine, precision):
        config = Config().with_options({"engine": engine, "precision": precision})
        chosen = EngineChoice(config, None)
        monkeypatch.setattr(loading, "choose_as_a_run", lambda config: chosen)
        configs = evaluation.add_usual_engine(Config())
        return [(one.runtime.engine, one.runtime.precision) for one in configs]

    by_rank = _ranking.choose_by_rank("fp32", "auto")[0]
    assert usual(by_rank, "fp32") == [("auto", "auto")]
    assert usual("other", "int8") == [("auto", "auto"), ("other", "int8")]
    for given in ({"engine": "ort"}, {"precision": "fp32"}, {"run_dir": "r"}):
        config = Config().with_options(given)
        assert evaluation.add_usual_engine(config) == [config]


def test_missing_engine_raises_before_any_run(monkeypatch):
    from detector.core import engines

    def load(name):
        raise EngineError(f"engine {name}: not installed")

    monkeypatch.setattr(engines, "why_unusable", lambda *_: {"ort": None, "other": "not installed"})
    monkeypatch.setattr(engines, "load_library", load)
    evaluation._check_engines(evaluation.list_configs(Config(), ["ort"]))
    with pytest.raises(EngineError, match="engine other"):
        evaluation._check_engines(evaluation.list_configs(Config(), ["ort", "other"]))


def test_command_defaults_override_package_defaults_but_not_the_config_file(tmp_path):
    (tmp_path / "c.yaml").write_text("iou: 0.3\n")
    defaults = {"conf": 0.001, "iou": 0.65, "max_det": 300}
    selection = resolve_config(str(tmp_path / "c.yaml"), {"max_det": 7}, defaults).selection
    assert (selection.conf, selection.iou, selection.max_det) == (0.001, 0.3, 7)
