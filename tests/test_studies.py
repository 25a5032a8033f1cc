"""docs/founding-studies.md has scripts/studies' commands, the old tables, and their mistakes."""

from types import ModuleType

import pytest

from tests.conftest import CHECKOUT, load_program

PAGE = (CHECKOUT / "docs/founding-studies.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def studies() -> ModuleType:
    return load_program("scripts/studies")


def test_page_contains_each_study_with_its_commands_and_items(studies):
    assert [one.key for one in studies.STUDIES] == ["s0", "s1", "s2", "s3", "s4"]
    for one in studies.STUDIES:
        (before, after) = PAGE.split(f"## {one.title}\n")
        own = after.split("\n## ")[0]
        assert before
        assert own.count("\n$ detect-video ") == len(one.commands)
        for command in one.commands:
            assert f"$ detect-video {command}\n" in own
        assert f"\n{one.items}\n" in own


def test_page_contains_the_old_tables_and_their_mistakes(studies, shared):
    for one in studies.STUDIES:
        for name in one.tables:
            assert studies.old_table(name) in PAGE
        mistakes = list(studies.mistakes(one.tables))
        assert mistakes, one.key
        assert all(line in PAGE for line in mistakes)


@pytest.mark.slow
def test_command_of_the_page_runs(studies, shared, tmp_path):
    studies.set_up(tmp_path)
    output = studies.run("profile --nsys recording.sqlite", tmp_path)
    assert "dependency analysis" in output
