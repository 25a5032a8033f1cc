"""Files that a command reads (``keep``) and names that it has reserved are not overwritten."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from detector.core.errors import ModelError, UsageError
from detector.core.errors.guard import (
    guarded,
    keep,
    keep_listed,
    refuse_folder_of_kept,
    refuse_kept,
    reserve,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "model.onnx"
    path.write_bytes(b"precious")
    return path


@pytest.fixture
def open_guard() -> Iterator[None]:
    with guarded():
        yield


def refused(path: Path) -> bool:
    try:
        refuse_kept(path)
    except UsageError:
        return True
    return False


def folder_refused(path: Path) -> bool:
    try:
        refuse_folder_of_kept(path)
    except UsageError:
        return True
    return False


def test_kept_file_is_refused_under_every_name(model: Path, open_guard: None) -> None:
    other, link, hard = (model.with_name(name) for name in ("other", "link", "hard"))
    other.write_bytes(b"")
    link.symlink_to(model)
    os.link(model, hard)
    keep("the model", model, None, model.with_name("absent"))
    indirect = model.parent / ".." / "in" / model.name
    assert all(refused(path) for path in (model, link, hard, indirect))
    assert not any(refused(path) for path in (other, model.with_name("absent"), model.parent))


def test_message_contains_both_paths_and_the_advice(model: Path, open_guard: None) -> None:
    link = model.with_name("link")
    link.symlink_to(model)
    keep("the model", model)
    with pytest.raises(UsageError) as refusal:
        refuse_kept(link, "take another")
    assert all(part in str(refusal.value) for part in (str(link), str(model), "take another"))


def test_file_is_protected_until_its_guarded_block_ends(model: Path) -> None:
    keep("the model", model)  # no effect outside of guarded()
    with guarded():
        assert not refused(model)
        keep("the model", model)
        inner = model.with_name("inner")
        inner.write_bytes(b"")
        with guarded():
            keep("labels", inner)
            assert refused(inner)
            assert refused(model)  # the outer block still protects the model
        assert not refused(inner)
        assert refused(model)
    assert not refused(model)
    assert not folder_refused(model.parent)


def test_reserved_names_are_refused_before_the_files_exist(
    tmp_path: Path, open_guard: None
) -> None:
    reserve("the session", tmp_path, ["run.json"])
    reserve("the session", tmp_path / "absent", ["run.json"])
    assert refused(tmp_path / "run.json")
    assert refused(tmp_path / "." / "run.json")
    assert not refused(tmp_path / "other.json")
    with guarded():
        assert refused(tmp_path / "run.json")


def test_list_of_kept_files_is_read_once_when_it_is_needed(model: Path, open_guard: None) -> None:
    calls = []

    def paths() -> list[Path]:
        calls.append(1)
        return [model, model.parent]

    def broken() -> list[Path]:
        raise ModelError("the reader reports this")

    keep_listed("a list", broken)
    keep_listed("the pictures", paths)
    assert not calls
    assert not refused(model.with_name("absent"))
    assert not calls
    assert refused(model)
    assert refused(model)
    assert calls == [1]
    assert not refused(model.parent)  # a folder is not a file


def test_folder_of_a_kept_file_is_refused(model: Path, tmp_path: Path, open_guard: None) -> None:
    keep("the model", model)
    assert folder_refused(model.parent)
    (tmp_path / "link").symlink_to(model.parent)
    assert folder_refused(tmp_path / "link")
    assert not folder_refused(tmp_path)
    assert not folder_refused(tmp_path / "absent")
