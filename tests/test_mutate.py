"""scripts/mutate plants the expected faults, and the faults that it lists exist in the source."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import CHECKOUT, load_program

SOURCE = '''\
"""A module."""

LEAST = 3


class Box:
    wide = 2

    def area(self, high: int) -> int:
        if self.is_flat:
            raise ValueError("flat")
        return max(
            self.wide * high,
            LEAST,
        )
'''


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    return load_program("scripts/mutate")


@pytest.fixture
def faults(mutate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    (tmp_path / "box.py").write_text(SOURCE)
    return {one.before.split("\n")[0]: one for one in mutate.faults_of(tmp_path / "box.py")}


def test_each_fault_changes_one_place(mutate: ModuleType, faults: dict[str, Any]) -> None:
    changed = {name: fault.after for name, fault in faults.items()}
    assert changed == {
        "3": "4",
        "2": "3",
        "self.is_flat": "not (self.is_flat)",
        'raise ValueError("flat")': "pass",
        "max(": "None",
        "max": "min",
        "*": "/",
    }
    assert "self.wide / high" in mutate.planted(faults["*"], SOURCE)


@pytest.mark.slow
def test_faults_listed_as_equivalent_still_exist(mutate: ModuleType) -> None:
    import yaml

    files = {one["file"] for one in yaml.safe_load(mutate.EQUIVALENT.read_text())}
    possible = {one.digest for file in files for one in mutate.faults_of(CHECKOUT / file)}
    assert set(mutate.equivalents()) <= possible
    assert all(mutate.equivalents().values()), "a listed fault has no reason"


def test_places_of_faults_planted_by_hand_exist(mutate: ModuleType) -> None:
    assert all(mutate.planted_by_hand().values())
