"""HOTA, IDF1, MOTA, switches and fragmentations, checked against TrackEval and by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from detector.core.config.schema import Config
from detector.core.types import Detections, LabelledPicture
from detector.lab.analysis.accuracy.tracking import track_accuracy
from detector.lab.evaluate import EvalOptions, evaluate
from detector.lab.session.evaluation import FileResult, TrackAccuracy
from tests.lab.analysis.tracked_scenes import SCENES, Boxes, Ids, scene, write_benchmark
from tests.lab.datasets.samples import mot

# HOTA, DetA, AssA, IDF1, MOTA, IDSW and Frag by TrackEval 1.3.0 (MIT) for ``SCENES``.
TRACKEVAL = {
    "perfect": (0.933809, 0.933333, 0.934286, 0.965517, 0.928571, 0, 10),
    "good": (0.683843, 0.775876, 0.602906, 0.783557, 0.836489, 9, 79),
    "poor": (0.233568, 0.442514, 0.123874, 0.324377, 0.457831, 70, 274),
    "bad": (0.098667, 0.166065, 0.060681, 0.089316, -0.378899, 62, 123),
    "one object": (0.111685, 0.273428, 0.049267, 0.080000, -0.727273, 10, 8),
    "crowd": (0.507910, 0.548011, 0.471512, 0.789753, 0.695988, 56, 530),
}


# The same figures for the files of ``write_benchmark``. Keys: benchmark, tracker, sequence.
TRACKEVAL_OF_FILES = {
    "MOT17": {
        ("a", "MOT17-good"): (0.487979, 0.378541, 0.629145, 0.532943, -0.320930, 3, 31),
        ("a", "MOT17-poor"): (0.205364, 0.332947, 0.127228, 0.266667, 0.052381, 51, 163),
        ("a", "COMBINED"): (0.327118, 0.342133, 0.345957, 0.351138, -0.042604, 54, 194),
        ("b", "MOT17-good"): (0.187580, 0.377329, 0.093572, 0.076135, -0.432558, 27, 31),
        ("b", "MOT17-poor"): (0.115739, 0.334078, 0.041234, 0.070748, -0.049206, 115, 163),
        ("b", "COMBINED"): (0.145200, 0.342622, 0.066530, 0.072457, -0.146746, 142, 194),
    },
    "MOT20": {  # in MOT20, cyclists are distractors
        ("a", "MOT20-good"): (0.528131, 0.443138, 0.629494, 0.594771, 0.009302, 3, 31),
        ("a", "MOT20-poor"): (0.214818, 0.359261, 0.129038, 0.280601, 0.168254, 51, 163),
        ("a", "COMBINED"): (0.344336, 0.378269, 0.347250, 0.376307, 0.127811, 54, 194),
        ("b", "MOT20-good"): (0.202961, 0.441648, 0.093616, 0.084967, -0.102326, 27, 31),
        ("b", "MOT20-poor"): (0.120224, 0.360495, 0.041260, 0.074445, 0.066667, 115, 163),
        ("b", "COMBINED"): (0.152559, 0.378823, 0.066556, 0.077651, 0.023669, 142, 194),
    },
}


def labelled_picture(
    boxes: Boxes, ids: Ids, ignored: Sequence[int] = (), kind: int = 0
) -> LabelledPicture:
    n = len(ids)
    none = np.zeros(n, bool)
    return LabelledPicture(
        id=0,
        name="",
        width=640,
        height=480,
        boxes=boxes.reshape(-1, 4),
        class_ids=np.full(n, kind, np.int64),
        ignored=np.isin(ids, list(ignored)),
        crowd=none,
        areas=np.zeros(n),
        track_ids=ids.astype(np.int64),
    )


def tracked_frame(boxes: NDArray[np.float64], ids: Ids, kind: int = 0) -> Detections:
    n = len(ids)
    return Detections(
        boxes.astype(np.float32).reshape(-1, 4),
        np.ones(n, np.float32),
        np.full(n, kind, np.int64),
        track_ids=ids.astype(np.int64),
    )


@pytest.mark.parametrize("name", SCENES)
def test_tracking_figures_equal_trackeval(name: str) -> None:
    generated = scene(*SCENES[name])
    result = track_accuracy(
        [labelled_picture(*one) for one in generated.labels],
        [tracked_frame(*one) for one in generated.tracks],
    )
    assert figures(result) == pytest.approx(TRACKEVAL[name], abs=2e-6)
    assert result.objects == len({one for _, ids in generated.labels for one in ids.tolist()})


def figures(result: TrackAccuracy) -> tuple[float | None, ...]:
    shares = (result.hota, result.detection, result.association, result.idf1, result.mota)
    return (*shares, result.switches, result.fragmentations)


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", TRACKEVAL_OF_FILES)
def test_figures_from_tracker_files_equal_trackeval(tmp_path: Path, benchmark: str) -> None:
    pytest.importorskip("faster_coco_eval", reason="machine: faster-coco-eval is not installed")
    write_benchmark(tmp_path, benchmark)
    trackers = tuple(str(tmp_path / f"trackers/{name}") for name in "ab")
    options = EvalOptions(str(tmp_path / "gt"), detections=trackers)
    config = Config().with_options({"run_dir": str(tmp_path / "run")})
    found = {}
    for name, row in zip("ab", evaluate(options, [config]).results, strict=True):
        assert isinstance(row, FileResult)
        assert row.tracking
        assert row.tracking.sequences
        rows = {**row.tracking.sequences, "COMBINED": row.tracking}
        found |= {(name, sequence): figures(one) for sequence, one in rows.items()}
    assert found == {
        key: pytest.approx(expected, abs=2e-6)
        for key, expected in TRACKEVAL_OF_FILES[benchmark].items()
    }
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["1-a", "2-b"]


BOX = np.array([[100, 100, 140, 200]], float)
BOTH = np.concatenate([BOX, BOX + 300])
ONE, TWO = np.array([1]), np.array([2])
NONE = np.zeros((0, 4)), np.zeros(0, np.int64)


def test_identity_switch_halves_idf1() -> None:
    """The id changes after five of ten frames: IDF1 is 0.5 and HOTA is sqrt(1 x 0.5)."""
    tracks = [tracked_frame(BOX, ONE if i < 5 else TWO) for i in range(10)]
    result = track_accuracy([labelled_picture(BOX, ONE)] * 10, tracks)
    assert (result.hota, result.idf1) == pytest.approx((0.5**0.5, 0.5))
    assert (result.mota, result.switches, result.fragmentations, result.tracks) == (0.9, 1, 0, 2)


LABEL = labelled_picture(BOX, ONE)
THREE_FRAMES = {  # labels and tracks of each frame; expected (idf1, mota, objects, tracks)
    "ignored object": (
        labelled_picture(BOTH, np.array([1, 2]), ignored=[2]),
        tracked_frame(BOTH, np.array([7, 8])),
        (1, 1, 1, 1),
    ),
    "box without an id": (LABEL, tracked_frame(BOTH, np.array([1, -1])), (1, 1, 1, 1)),
    "another class": (LABEL, tracked_frame(BOX, ONE, kind=1), (0, -1, 1, 1)),
    "no tracks": (LABEL, tracked_frame(*NONE), (0, 0, 1, 0)),
    "no labels": (labelled_picture(*NONE), tracked_frame(*NONE), (None, None, 0, 0)),
}


@pytest.mark.parametrize("case", THREE_FRAMES)
def test_figures_of_ignored_unmatched_or_missing_boxes(case: str) -> None:
    labels, tracks, expected = THREE_FRAMES[case]
    result = track_accuracy([labels] * 3, [tracks] * 3)
    assert (result.idf1, result.mota, result.objects, result.tracks) == expected
    assert result.hota == (expected[0] or 0)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "notes"), [("1,-1,1,1,5,5,1\n", 1), ("", 0)])
def test_rows_without_ids_are_noted(tmp_path: Path, rows: str, notes: int) -> None:
    pytest.importorskip("faster_coco_eval", reason="machine: faster-coco-eval is not installed")
    for name, text in (("one", "1,7,1,1,5,5,1\n"), ("two", rows)):
        mot(tmp_path / "gt" / name)
        (tmp_path / f"{name}.txt").write_text(text)
    options = EvalOptions(str(tmp_path / "gt"), detections=(str(tmp_path),))
    (row,) = evaluate(options, [Config().with_options({"run_dir": str(tmp_path / "run")})]).results
    assert isinstance(row, FileResult)
    assert (bool(row.tracking), len(row.notes)) == (not notes, notes)
