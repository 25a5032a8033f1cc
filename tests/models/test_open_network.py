"""Open a model by path or by name, with its class names, or report that it is missing."""

import hashlib
from pathlib import Path

import pytest

from detector.core.errors import ModelError
from detector.core.models import catalogue, known
from tests.networks import open_network, refusal


def write_cfg(folder: Path, stem: str = "t", classes: int = 2) -> str:
    path = folder / f"{stem}.cfg"
    path.write_text(
        f"[net]\nwidth=8\nheight=8\n[convolutional]\nfilters={5 + classes}\nactivation=linear\n"
        f"[yolo]\nanchors=4,4\nclasses={classes}\n"
    )
    return str(path)


def names_of(cfg: str, **more) -> tuple[str, ...]:
    return open_network(cfg, random_seed=1, **more).names


def test_class_names_come_from_the_first_source_that_has_some(tmp_path):
    cfg = write_cfg(tmp_path, classes=80)
    assert names_of(cfg)[:3] == ("person", "bicycle", "car")
    (tmp_path / "coco.names").write_text("\n".join(f"beside{i}" for i in range(80)))
    assert names_of(cfg)[79] == "beside79"
    (tmp_path / "t.names").write_text("\n".join(f"own{i}" for i in range(80)) + "\r\n\n")
    assert names_of(cfg)[79] == "own79"
    (tmp_path / "given.txt").write_text("\n".join(f"given{i}" for i in range(80)))
    assert names_of(cfg, names=str(tmp_path / "given.txt"))[79] == "given79"


def test_two_classes_are_person_and_vehicle_only_if_the_file_name_says_so(tmp_path):
    assert names_of(write_cfg(tmp_path, "yolov4-tiny-person-vehicle")) == ("person", "vehicle")
    network = open_network(write_cfg(tmp_path, "cats-dogs"), random_seed=1)
    assert network.names == ("class0", "class1")
    for fact in ("2 classes", "cats-dogs.cfg", "class0, class1", "--names FILE"):
        assert fact in network.warnings[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\nb\nc\n", "t.names: holds 3 names"),
        ("", "holds 0 names"),
        ("a\n\nb\n", ":2: no name on this line"),
        ("a\x07\nb\n", ":1: no name on this line"),
    ],
)
def test_file_of_unfit_names_is_refused(tmp_path, content, message):
    (tmp_path / "t.names").write_text(content)
    with pytest.raises(ModelError) as caught:
        names_of(write_cfg(tmp_path))
    assert message in str(caught.value)


def test_packaged_coco_list_equals_that_of_darknet():
    digest = hashlib.sha256((catalogue.folder() / "names/coco.names").read_bytes()).hexdigest()
    assert digest == "634a1132eb33f8091d60f2c346ababe8b905ae08387037aed883953b7329af84"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("absent.cfg", "absent.cfg: no such file; give the path of a model file, or a known name"),
        ("no/such/thing", "no/such/thing: no such file"),
        ("yolo99", "YOLOv8 and newer run as ONNX"),
        ("cafe", "detect-video models"),
        ("../cfg", "../cfg: no such file"),
        ("", "is a folder"),
    ],
)
def test_missing_model_is_refused(tmp_path, monkeypatch, model, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(model, random_seed=1)


@pytest.mark.parametrize(("name", "what"), [("x.tflite", r"\.tflite"), ("x", "without a suffix")])
def test_error_about_an_unknown_format_lists_the_known_formats(tmp_path, name, what):
    (tmp_path / name).write_bytes(b"\0")
    with pytest.raises(ModelError, match=rf"{what}.* export .* ONNX.*\.cfg"):
        open_network(str(tmp_path / name))


@pytest.mark.slow
def test_every_known_model_opens_by_name_and_states_its_licence():
    assert "yolov4-tiny-person-vehicle" in known()
    for name in known():
        entry = catalogue.known_model(name)
        assert entry.licence
        if entry.path.suffix == ".cfg":
            assert open_network(name, random_seed=1).names
            assert entry.family == "darknet"
        elif not entry.path.is_file():
            with pytest.raises(ModelError, match=f"{name}: needs {entry.path.name}"):
                open_network(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cfg: t.cfg\nweigths: t.weights\n", "m.yaml: unknown key 'weigths'"),
        ("cfg: absent.cfg\n", "m.yaml: cfg: absent.cfg"),
        ("family: darknet\n", "m.yaml: needs the key 'cfg'"),
        ("- a\n", "m.yaml: must hold keys and values"),
        ("a: [\n", "m.yaml:2:"),
    ],
)
def test_wrong_description_is_refused(tmp_path, monkeypatch, text, message):
    for part in ("models", "darknet", "names"):
        (tmp_path / part).mkdir()
    write_cfg(tmp_path / "darknet")
    (tmp_path / "models/m.yaml").write_text(text)
    monkeypatch.setattr(catalogue, "folder", lambda: tmp_path)
    assert message in refusal("m", random_seed=1)


@pytest.mark.parametrize("batch", [0, 100_000])
def test_a_batch_out_of_range_is_refused(tmp_path, batch):
    with pytest.raises(ModelError, match=f"batch {batch} is out"):
        open_network(write_cfg(tmp_path), random_seed=1, batch=batch)
