"""The results of a Detector, and the types of its options."""

import copy
import doctest
import inspect
import os
import pickle
import subprocess
import sys
import weakref
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import detector as package
from detector import Detections, Detector, DetectVideoError
from detector.core import types
from detector.core.api.options import Options
from detector.core.api.results import WIDEST, Detection
from detector.core.config.schema import options
from detector.core.engines.base import Engine
from detector.core.session.store import Session
from detector.core.sinks.base import Sink
from detector.core.sources import open as open_source
from detector.core.sources.base import Source
from detector.core.stages.between.base import Stage
from tests.conftest import CHECKOUT
from tests.fakes import supervision_module

# scripts/test installs the library supervision here, apart from the packages of other tests.
SUPERVISION = Path(sys.prefix, "supervision")
CLIP = CHECKOUT / "videos" / "street.mp4"


def three_detections(kind=Detections) -> Detections:
    return kind(
        np.array([[0, 0, 10, 10], [5, 5, 20, 20], [1, 2, 3.004, -0.001]], np.float32),
        np.array([0.9, 0.6, 0.3], np.float32),
        np.array([0, 1, 0]),
        ("person", "vehicle"),
    )


@pytest.mark.parametrize("kind", [Detections, types.Detections], ids=["public", "of sinks"])
def test_detections_support_iteration_indexing_and_filtering(kind):
    found = three_detections(kind)
    assert [one.name for one in found] == ["person", "vehicle", "person"]
    assert isinstance(found[0], types.Detection)
    assert type(found[:2]) is kind
    assert found[0].box == (0, 0, 10, 10)
    assert found[-1] == found[2]
    assert len(found[:2]) == 2
    assert [one.score for one in found[found.scores > 0.5]] == pytest.approx([0.9, 0.6])
    assert len(found[[2, 0]]) == 2
    assert len(found[[]]) == 0
    assert len(found.of("person")) == 2
    assert len(found.of("person", 1)) == 3
    assert found.of("vehicle").names == found.names
    with pytest.raises(IndexError):
        found[3]
    with pytest.raises(KeyError):
        found.of("dog")


def test_to_dict_returns_rows_of_the_jsonl_file():
    rows = three_detections().to_dict()
    assert rows[0] == {"class": "person", "class_id": 0, "score": 0.9, "box": [0, 0, 10, 10]}
    assert str(rows[2]["box"]) == "[1.0, 2.0, 3.0, 0.0]"


def test_drawing_does_not_change_the_picture():
    image = np.zeros((40, 60, 3), np.uint8)
    drawn = three_detections().draw(image, labels=False)
    assert not image.any()
    assert drawn.any()
    assert three_detections().draw(image[:, ::-1]).shape == image.shape  # not contiguous


def test_results_compare_by_value():
    found = three_detections()
    assert found == three_detections()
    assert found[:] == found
    assert found != found[:2]
    assert found != no_detections()
    assert found != "three_detections"
    others = (replace(found, scores=found.scores / 2), replace(found, names=("a", "b")))
    tracked = replace(found, track_ids=np.array([1, 2, -1]))
    assert found not in (*others, tracked)
    assert tracked == replace(found, track_ids=np.array([1, 2, -1]))


def test_result_has_only_a_weak_reference_to_its_picture(tmp_path):
    image = np.zeros((40, 60, 3), np.uint8)
    found = Detections.wrap(three_detections(), image)
    np.testing.assert_array_equal(found.plot(), found.draw(image))
    np.testing.assert_array_equal(found[:1].plot(), found[:1].draw(image))
    found.save(tmp_path / "a.png", image)
    found.save(tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert found._repr_png_().startswith(b"\x89PNG")
    assert found._repr_html_() is None
    assert pickle.loads(pickle.dumps(found)) == found == copy.deepcopy(found)
    kept = weakref.ref(image)
    del image
    assert kept() is None
    assert found._repr_png_() is None
    assert "vehicle" in found._repr_html_()
    for wrong in (found.plot, lambda: found.save(tmp_path / "c.png"), lambda: found.save("c.txt")):
        with pytest.raises(DetectVideoError):
            wrong()
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "b.png"}
    # These detections read the file when they need it, also after pickling.
    of_file = Detections.wrap(three_detections(), tmp_path / "a.png")
    assert pickle.loads(pickle.dumps(of_file)).plot().shape == (40, 60, 3)
    (tmp_path / "a.png").unlink()
    assert of_file._repr_png_() is None


def test_picture_for_notebooks_has_a_limited_size():
    image = np.zeros((20, 4000, 3), np.uint8)
    width = int.from_bytes(Detections.wrap(three_detections(), image)._repr_png_()[16:20], "big")
    assert width == WIDEST


def test_to_df_has_the_columns_and_values_of_the_rows(monkeypatch):
    rows = three_detections().to_dict()
    tracked = replace(three_detections(), track_ids=np.array([7, -1, 8]))
    monkeypatch.syspath_prepend(SUPERVISION)
    pandas = pytest.importorskip("pandas", reason="machine: pandas is not installed")
    table = three_detections().to_df()
    assert list(table.columns) == ["class", "class_id", "score", "x1", "y1", "x2", "y2"]
    assert table["class"].tolist() == [row["class"] for row in rows]
    assert table[["x1", "y1", "x2", "y2"]].values.tolist() == [row["box"] for row in rows]
    assert tracked.to_df()["track"].isna().tolist() == [False, True, False]
    both = pandas.concat([table, no_detections().to_df()])
    assert [*both.dtypes] == [*table.dtypes]
    assert isinstance(table, pandas.DataFrame)


@pytest.mark.parametrize("convert", ["to_df", "to_supervision"])
def test_missing_library_raises_with_the_command_to_install_it(monkeypatch, convert):
    monkeypatch.setitem(sys.modules, {"to_df": "pandas"}.get(convert, "supervision"), None)
    with pytest.raises(ImportError, match="pip install"):
        getattr(three_detections(), convert)()


def test_error_names_a_missing_dependency_of_an_installed_library(monkeypatch, tmp_path):
    (tmp_path / "pandas.py").write_text("import a_library_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    with pytest.raises(ModuleNotFoundError) as raised:
        three_detections().to_df()
    assert raised.value.name == "a_library_that_nobody_has"


def no_detections() -> Detections:
    return three_detections()[[]]


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.slow)])
def supervision(request, monkeypatch, tmp_path):
    """Provide the library supervision: a stand-in, and the real one if it is installed."""
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "supervision", supervision_module)
        return supervision_module
    monkeypatch.syspath_prepend(SUPERVISION)
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))  # for matplotlib, which supervision imports
    return pytest.importorskip("supervision", reason="machine: supervision is not installed")


def test_supervision_has_the_recorded_signature(supervision):
    parameters = inspect.signature(supervision.Detections).parameters
    has_default = {name: one.default is not one.empty for name, one in parameters.items()}
    assert has_default == supervision_module.SIGNATURE


def test_to_supervision_copies_the_values(supervision):
    converted = three_detections().to_supervision()
    assert isinstance(converted, supervision.Detections)
    assert converted.xyxy.shape == (3, 4)
    assert converted.confidence.tolist() == pytest.approx([0.9, 0.6, 0.3])
    assert converted.class_id.tolist() == [0, 1, 0]
    assert converted["class_name"].tolist() == ["person", "vehicle", "person"]
    assert len(no_detections().to_supervision()) == 0
    found = three_detections()
    found.to_supervision().xyxy[:] = 7  # the arrays are copies
    assert found[0].box == (0, 0, 10, 10)


@pytest.mark.slow
def test_documented_example_with_supervision_runs(tmp_path, monkeypatch):
    """Use the real library, installed as docs/python_supervision.py says."""
    monkeypatch.syspath_prepend(SUPERVISION)
    for name in ("supervision", "trackers"):
        if find_spec(name) is None:
            pytest.skip(f"machine: {name} is not installed")
    (tmp_path / "videos").symlink_to(CHECKOUT / "videos")
    example = CHECKOUT / "docs" / "python_supervision.py"
    environment = {**os.environ, "PYTHONPATH": str(SUPERVISION), "MPLCONFIGDIR": str(tmp_path)}
    command = [sys.executable, example]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert {path.name for path in tmp_path.glob("*.png")} == {"annotated.png", "tracked.png"}


def test_types_of_options_match_the_configuration():
    assert {leaf.name for _, leaf in options()} > set(Options.__annotations__) >= {"conf", "blur"}


@pytest.mark.parametrize(
    ("wrong", "near"), [("cnf", "conf"), ("clases", "classes"), ("output", ""), ("x" * 50, "")]
)
def test_unknown_option_raises_with_a_suggestion(wrong, near):
    with pytest.raises(DetectVideoError, match=f"{wrong}.*{near}"):
        Detector(engine="null", **{wrong: 1})


@pytest.fixture(scope="module")
def detector():
    with Detector(engine="ort", batch=2, frames=4) as made:
        yield made


def frames_of(n: int) -> list[np.ndarray]:
    with open_source(str(CLIP), frames=n) as source:
        return [frame.image.copy() for frame in source]


@pytest.mark.slow
def test_list_of_pictures_is_inferred_in_batches(detector, monkeypatch):
    images = frames_of(5)
    sizes = []
    request = detector._requests[-1]
    infer = request.infer
    monkeypatch.setattr(request, "infer", lambda n: sizes.append(n) or infer(n))
    together = detector(images)
    assert sizes == [2, 2, 1]
    for image, found in zip(images, together, strict=True):
        np.testing.assert_allclose(found.boxes, detector(image).boxes, atol=0.51)
    assert detector([]) == []


@pytest.mark.slow
def test_detector_reads_paths_of_pictures(detector, tmp_path):
    import cv2

    path = tmp_path / "a.png"
    image = frames_of(1)[0]
    cv2.imwrite(str(path), image)
    np.testing.assert_array_equal(detector(path).boxes, detector(image).boxes)
    np.testing.assert_array_equal(detector([str(path), image])[0].boxes, detector(image).boxes)
    with pytest.raises(DetectVideoError, match="stream"):
        detector(CLIP)
    with pytest.raises(DetectVideoError, match="no such file"):
        detector(tmp_path / "absent.png")


@pytest.mark.slow
def test_detector_accepts_pil_pictures(detector):
    pil = pytest.importorskip("PIL.Image", reason="machine: pillow is not installed")
    image = frames_of(1)[0]
    picture = pil.fromarray(image[:, :, ::-1])
    found, again = detector([picture, image])
    assert found == again == detector(picture)
    assert len(detector(picture.convert("L"))) > 5
    with pytest.raises(DetectVideoError):
        detector(pil.new("RGB", (0, 0)))


def test_examples_of_public_classes_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    public = [getattr(package, name) for name in package.__all__ if name != "__version__"]
    for kind in (*public, Detection, Engine, Source, Sink, Stage, Session):
        ran = doctest.DocTestRunner().run(*doctest.DocTestFinder(recurse=False).find(kind))
        assert ran.attempted > ran.failed == 0, kind


@pytest.mark.slow
def test_threshold_and_classes_apply_to_one_call(detector):
    image = frames_of(1)[0]
    usual = detector(image)
    assert len(detector(image, conf=0.01)) > len(usual)
    assert {one.name for one in detector(image, classes=["vehicle"])} == {"vehicle"}
    np.testing.assert_array_equal(detector(image).boxes, usual.boxes)
    with pytest.raises(DetectVideoError, match="conf"):
        detector(image, conf=2)
    with pytest.raises(DetectVideoError, match="did you mean person"):
        detector(image, classes=["persn"])


@pytest.mark.slow
def test_frames_of_several_sources_name_their_source(detector, tmp_path):
    import cv2

    path = tmp_path / "a.png"
    cv2.imwrite(str(path), frames_of(1)[0])
    seen = list(detector.stream([CLIP, path], conf=0.5))
    assert [frame.index for frame, _ in seen] == [0, 1, 2, 3, 0]
    first, last = seen[0][0].source, seen[-1][0].source
    assert (first.width, first.height, float(first.fps)) == (960, 540, 25.0)
    assert (first.kind, last.kind) == ("video", "pictures")
    assert all(isinstance(found, Detections) for _, found in seen)
    assert len(seen[0][1].of("vehicle")) > 0
