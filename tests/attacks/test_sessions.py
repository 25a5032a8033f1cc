"""Damaged sessions give a report or a one-line error, without an internal error or a hang."""

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
def test_undamaged_session_passes(sessions):
    assert attack(*sessions, ("nothing", {})) == []


@pytest.mark.slow
@pytest.mark.parametrize("count", [80, pytest.param(400, marks=pytest.mark.nightly)])
def test_damaged_sessions_give_a_report_or_a_one_line_error(sessions, count):
    selected = islice(cases(sessions[0], SEED), count)
    assert [wrong for case in selected for wrong in attack(*sessions, case)] == []
