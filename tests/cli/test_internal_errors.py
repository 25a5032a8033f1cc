"""The traceback of an internal error is saved once, and the error names the file."""

from pathlib import Path
from typing import NoReturn

import pytest

from tests.cli.command import invoke
from tests.sources.clips import write_video


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    write_video(tmp_path / "in.mp4", 3)
    return tmp_path


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("a bug")


def run(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 1
    [line] = result.stderr.strip().splitlines()
    return line


def test_traceback_of_a_run_is_in_its_session(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detector.core.loop.overlapped.frames_overlapped", fail)
    for folder in ("runs/in-null", "runs/in-null-2"):
        assert f"{folder}/error.log" in run("in.mp4", "--engine", "null")
        assert "RuntimeError: a bug" in (here / folder / "error.log").read_text()
    assert list((here / "tmp").iterdir()) == []
    assert [one.name for one in (here / "cache/detect-video").iterdir()] == ["cache.key"]


@pytest.mark.parametrize("folder", ["cache", "tmp"])
def test_traceback_outside_of_runs_is_in_the_cache_or_in_a_temporary_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    if folder == "tmp":
        (here / "cache").write_text("a file")
    monkeypatch.setattr("detector.core.config.levels.resolve_config", fail)
    lines = {run("in.mp4"), *([run("build", "street")] if folder == "cache" else [])}
    [log] = [path for path in [*here.rglob("cache/**/*"), *here.glob("tmp/*")] if path.is_file()]
    assert len(lines) == 1
    assert str(log) in lines.pop()
    assert log.is_relative_to(here / folder)
    assert "RuntimeError: a bug" in log.read_text()
