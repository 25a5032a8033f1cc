"""The maps and CONTRIBUTING.md say what is there: rooms, floors, files, names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT
from tests.test_house import LEVELS, PACKAGE, WINGS

ARCHITECTURE = (CHECKOUT / "ARCHITECTURE.md").read_text(encoding="utf-8")
CONTRIBUTING = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAPS = {wing: (PACKAGE / wing / "ARCHITECTURE.md").read_text(encoding="utf-8") for wing in WINGS}
RECIPES = ("engine", "source", "sink", "model family", "pass", "command")
# As in `engines/store.py` and `sinks/video/`. Placeholders such as NAME are left out.
PLACE = re.compile(r"`([a-z_.]+(?:/[a-z_0-9.]+)*(?:/|\.py|\.md|\.yaml))`")


def floors(text: str) -> list[tuple[str, ...]]:
    """The rooms of each floor, as the table says."""
    rows = re.findall(r"^\| \d+ \| (`.*) \|$", text, re.MULTILINE)
    return [tuple(re.findall(r"`([a-z]+)(?:/|\.py)`", row)) for row in rows]


def missing(text: str, folder: Path = PACKAGE / "core") -> list[str]:
    """Places that a text names and that are not there. A path may leave out ``detector/``, and the
    folder that the text is about."""
    places = sorted(set(PLACE.findall(text)))
    return [p for p in places if not any((at / p).exists() for at in (folder, PACKAGE, CHECKOUT))]


def test_every_room_stands_on_its_floor():
    assert floors(ARCHITECTURE) == LEVELS["core"]
    rooms = {path.stem for path in (PACKAGE / "core").iterdir() if path.stem[0] != "_"}
    assert {room for floor in LEVELS["core"] for room in floor} == rooms


def test_the_tables_of_rooms_are_up_to_date():
    done = subprocess.run(
        [sys.executable, CHECKOUT / "scripts/places", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("wing", WINGS)
def test_every_file_that_the_map_of_a_wing_names_exists(wing):
    assert missing(MAPS[wing], PACKAGE / wing) == []


def test_maps_are_short():
    assert len(ARCHITECTURE.split()) <= 1500
    assert all(len(text.split()) <= 600 for text in MAPS.values())


@pytest.mark.parametrize("text", [ARCHITECTURE, CONTRIBUTING], ids=["architecture", "contributing"])
def test_every_file_that_is_named_exists(text):
    assert missing(text) == []


@pytest.mark.parametrize("kind", RECIPES)
def test_there_is_a_recipe_for_each_kind(kind):
    assert re.search(rf"^\*\*An? {kind}\*\*", CONTRIBUTING, re.MULTILINE)


def test_these_tests_can_fail():
    assert missing("`engines/gone.py` and `sinks/` and `detector/nowhere/`") == [
        "detector/nowhere/",
        "engines/gone.py",
    ]
    assert floors("| 3 | `jobs/`, `api/` |\n| 9 | `types.py` |") == [("jobs", "api"), ("types",)]
