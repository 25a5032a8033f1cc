"""The choice of tests that see a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import near
from tests.near import ROOT, TESTS, near_to, of_change, of_wing

pytestmark = pytest.mark.slow  # the imports of all tests are read


def named(tests: list[Path]) -> set[str]:
    return {str(one.relative_to(TESTS)) for one in tests}


@pytest.mark.parametrize(
    ("file", "seen", "unseen"),
    [
        ("core/stages/nms.py", {"stages/test_nms.py"}, {"live/page/test_guard.py"}),
        ("live/capacity.py", {"live/test_figures.py"}, {"stages/test_nms.py"}),
        ("core/sinks/yolo.py", {"conformance/test_sinks.py"}, {"lab/test_tune.py"}),
    ],
)
def test_those_that_import_a_file_and_those_of_its_room(
    file: str, seen: set[str], unseen: set[str]
) -> None:
    found = named(near_to(ROOT / "detector" / file))
    assert seen <= found
    assert not unseen & found


def test_a_change_is_seen_by_its_own_tests_and_by_the_house() -> None:
    found = named(of_change(["detector/core/stages/nms.py", "tests/cli/test_docs.py"]))
    assert {"stages/test_nms.py", "cli/test_docs.py", "test_house.py"} <= found
    assert "cli/test_docs.py" in named(of_change(["docs/usage.md"]))
    assert "test_constraints.py" in named(of_change(["constraints.txt"]))
    assert "test_near.py" in named(of_change(["tests/near.py"]))
    assert "test_gpu_check.py" in named(of_change(["scripts/gpu_check"]))


def test_every_file_of_tests_is_of_one_wing_or_of_the_core() -> None:
    wings = [named(of_wing(wing)) - named([*near.OF_THE_HOUSE]) for wing in near.WINGS]
    core = named(of_wing("core"))
    assert not any(core & wing for wing in wings)
    assert core.union(*wings) == named([*near.all_tests()])


def test_a_file_that_went_is_no_trouble() -> None:
    assert of_change(["detector/core/run/gone.py", "tests/gone.py"])
