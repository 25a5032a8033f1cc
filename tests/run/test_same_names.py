"""Outputs with default names: a run with the same settings replaces them, any other keeps them."""

import os
from pathlib import Path

import pytest

from detector.core.config.levels import resolve_config
from detector.core.run import outputs
from detector.core.run.detect import detect
from tests.conftest import CHECKOUT

pytestmark = pytest.mark.slow
CLIP = CHECKOUT / "videos" / "street.mp4"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.mp4").symlink_to(CLIP)
    (tmp_path / "probe").touch()
    try:
        os.setxattr(tmp_path / "probe", outputs.SETTINGS, b"x")
    except OSError:
        pytest.skip("machine: the folder for tests has no extended attributes")
    (tmp_path / "probe").unlink()
    return tmp_path


def run(spec: str = "a.mp4", **options: object) -> list[str]:
    settings = {"engine": "null", "frames": 2, "save": "jsonl", **options}
    result = detect([spec], resolve_config(None, settings))
    assert result.exit_code == 0
    return [Path(path).name for each in result.summary.each for path in each.outputs.values()]


def test_same_settings_replace_the_output() -> None:
    assert run() == ["a-null-detected.jsonl"]
    inode = Path("a-null-detected.jsonl").stat().st_ino
    assert run() == ["a-null-detected.jsonl"]
    assert Path("a-null-detected.jsonl").stat().st_ino != inode
    assert run(threads=2, sync=True, run_dir="elsewhere") == ["a-null-detected.jsonl"]


@pytest.mark.parametrize(
    "other", [{"stride": 2}, {"size": "320x192"}, {"conf": 0.5}, {"hide_labels": True}], ids=str
)
def test_output_of_other_settings_is_kept(other: dict[str, object]) -> None:
    run()
    before = Path("a-null-detected.jsonl").read_bytes()
    assert run(**other) == ["a-null-detected-2.jsonl"]
    assert run(**other) == ["a-null-detected-2.jsonl"]
    assert Path("a-null-detected.jsonl").read_bytes() == before
    assert run() == ["a-null-detected.jsonl"]


def test_output_of_another_source_with_the_same_name_is_kept(place: Path) -> None:
    run()
    (place / "b").mkdir()
    (place / "b/a.mp4").write_bytes(CLIP.read_bytes())
    assert run("b/a.mp4") == ["a-null-detected-2.jsonl"]


def test_file_of_another_program_is_kept() -> None:
    Path("a-null-detected.jsonl").write_text("mine")
    assert run() == ["a-null-detected-2.jsonl"]
    assert Path("a-null-detected.jsonl").read_text() == "mine"


def test_file_given_by_the_output_option_is_replaced() -> None:
    Path("x.jsonl").write_text("mine")
    assert run(output="x.jsonl") == ["x.jsonl"]
    assert Path("x.jsonl").read_text() != "mine"
    assert run(output="x.jsonl", stride=2) == ["x.jsonl"]


def test_files_in_a_given_folder_get_default_names() -> None:
    assert run(output="o/") == ["a-null-detected.jsonl"]
    assert run(output="o/", stride=2) == ["a-null-detected-2.jsonl"]
    assert not Path("a-null-detected.jsonl").exists()


def test_output_folders_of_pictures_follow_the_same_rules() -> None:
    options = {"save": ("pictures", "jsonl")}
    assert set(run(**options)) == {"a-null-detected", "a-null-detected.jsonl"}
    assert set(run(**options)) == {"a-null-detected", "a-null-detected.jsonl"}
    assert set(run(**options, stride=2)) == {"a-null-detected-2", "a-null-detected-2.jsonl"}


def test_output_is_replaced_without_extended_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "getxattr", refuse)
    monkeypatch.setattr(os, "setxattr", refuse)
    assert run() == ["a-null-detected.jsonl"]
    assert run(stride=2) == ["a-null-detected.jsonl"]
