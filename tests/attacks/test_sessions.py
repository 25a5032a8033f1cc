"""Damaged sessions end in a drawing or in one line, never in an internal error, never late."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

import pytest

from tests.attacks.sessions import attack, cases, whole_session

SEED = 2026


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sessions")
    session = whole_session(folder / "damaged")
    return session, Path(shutil.copytree(session, folder / "whole"))


@pytest.mark.slow
def test_what_is_whole_is_drawn(sessions):
    assert attack(*sessions, ("nothing", {})) == []


@pytest.mark.slow
@pytest.mark.parametrize("many", [80, pytest.param(400, marks=pytest.mark.nightly)])
def test_what_has_a_name_and_what_chance_finds(sessions, many):
    chosen = islice(cases(sessions[0], SEED), many)
    assert [wrong for case in chosen for wrong in attack(*sessions, case)] == []
