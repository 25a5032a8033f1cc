"""A file is whole under its name, or not there."""

from __future__ import annotations

import numpy as np
import pytest

from detector.errors import OutputError
from detector.errors.writing import whole_file, write_whole


def test_the_file_appears_at_the_end_and_nothing_else_stays(tmp_path):
    target = tmp_path / "new/spans.npz"
    target.parent.mkdir()
    with whole_file(target, "cure") as temporary:
        np.savez(temporary, x=np.arange(3))
        assert not target.exists()
    assert np.load(target)["x"].tolist() == [0, 1, 2]
    assert [path.name for path in target.parent.iterdir()] == ["spans.npz"]


def test_what_stood_there_stays_where_writing_fails(tmp_path):
    target = tmp_path / "a.json"
    write_whole(target, b"before")

    def write_half() -> None:
        with whole_file(target, "cure") as temporary:
            temporary.write_bytes(b"aft")
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        write_half()
    assert target.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_file_that_cannot_be_written_is_an_output_error_with_its_name_and_cure(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "file/x.json", tmp_path / "folder"):
        with pytest.raises(OutputError, match=r"cannot be written: .*; give --there") as caught:
            write_whole(target, b"x", "give --there")
        assert str(target) in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
