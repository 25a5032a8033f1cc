"""ARCHITECTURE.md and CONTRIBUTING.md say what is there: rooms, floors, files, names."""

from __future__ import annotations

import re

import pytest

from tests.conftest import CHECKOUT
from tests.test_house import LEVELS, PACKAGE

ARCHITECTURE = (CHECKOUT / "ARCHITECTURE.md").read_text(encoding="utf-8")
CONTRIBUTING = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
QUESTIONS = 20  # at least
RECIPES = ("engine", "source", "sink", "model family", "pass", "command")
# As in `engines/store.py` and `sinks/video/`. Placeholders such as NAME are left out.
PLACE = re.compile(r"`([a-z_.]+(?:/[a-z_0-9.]+)*(?:/|\.py|\.md|\.yaml))`")


def rooms() -> set[str]:
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    return names - {"__pycache__"}


def floors(text: str) -> dict[str, int]:
    """Room -> its floor, as the table says."""
    rows = re.findall(r"^\| (\d+) \| `([a-z_]+)(?:/|\.py)?` \|", text, re.MULTILINE)
    return {room: int(floor) for floor, room in rows}


def missing(text: str) -> list[str]:
    """Places that a text names and that are not there. A path may leave out ``detector/``."""
    places = sorted(set(PLACE.findall(text)))
    return [p for p in places if not (PACKAGE / p).exists() and not (CHECKOUT / p).exists()]


def test_every_room_stands_on_its_floor():
    expected = {room: floor for floor, line in enumerate(LEVELS, 1) for room in line}
    assert floors(ARCHITECTURE) == expected
    assert set(expected) == rooms()


@pytest.mark.parametrize("text", [ARCHITECTURE, CONTRIBUTING], ids=["architecture", "contributing"])
def test_every_file_that_is_named_exists(text):
    assert missing(text) == []


def test_the_page_answers_its_questions():
    assert ARCHITECTURE.count("\n| ... ") >= QUESTIONS


@pytest.mark.parametrize("kind", RECIPES)
def test_there_is_a_recipe_for_each_kind(kind):
    assert re.search(rf"^\*\*An? {kind}\*\*", CONTRIBUTING, re.MULTILINE)


def test_these_tests_can_fail():
    assert missing("`engines/gone.py` and `sinks/` and `detector/nowhere/`") == [
        "detector/nowhere/",
        "engines/gone.py",
    ]
    assert floors("| 3 | `jobs/` | what |\n| 9 | `types.py` | which |") == {"jobs": 3, "types": 9}
