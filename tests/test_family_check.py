"""scripts/family_check: which detections count as equal. No family's library is needed."""

from types import ModuleType

import pytest

from tests.conftest import load_program


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_program("scripts/family_check")


def one(x: float, score: float, number: int = 0) -> dict:
    return {"box": [x, 10.0, x + 20.0, 40.0], "score": score, "class": number}


THEIRS = [one(10, 0.9), one(10, 0.8, 1), one(200, 0.7)]  # the first box has two classes


@pytest.mark.parametrize(
    ("ours", "matched", "pixels", "score", "classes"),
    [
        (list(reversed(THEIRS)), 3, 0.0, 0.0, True),  # the same in another order
        ([one(10.5, 0.9), one(10, 0.8005, 1), one(200, 0.7)], 3, 0.5, 5e-4, True),
        ([one(12, 0.9), one(10, 0.8, 1), one(200, 0.7)], 2, 2.0, 0.0, True),  # two pixels off
        ([one(10, 0.9), one(10, 0.8, 1), one(200, 0.75)], 2, 0.0, 0.05, True),
        ([one(10, 0.9), one(10, 0.8, 2), one(200, 0.7)], 2, 0.0, 0.0, False),  # another class
        (THEIRS[:2], 2, 0.0, 0.0, True),  # one box is missing
        ([], 0, 0.0, 0.0, True),
    ],
)
def test_boxes_are_matched_by_place_score_and_class(script, ours, matched, pixels, score, classes):
    row = script.Row("family")
    script.add(row, THEIRS, ours)
    assert (row.boxes, row.ours, row.matched, row.classes) == (3, len(ours), matched, classes)
    assert (row.pixels, row.score) == pytest.approx((pixels, score), abs=1e-9)


def test_requirements_of_each_family_exist(script):
    """The requirements are read as text: a family's script cannot run before they are installed."""
    scripts = script.scripts()
    assert {"detr", "rf_detr", "torch_vision", "effdet"} <= set(scripts)
    assert "result" not in scripts
    for name, path in scripts.items():
        for line in script.requirements(path):
            assert not line.startswith("-r") or (path.parent / line.split()[1]).is_file(), name
