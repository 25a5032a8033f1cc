"""A file that is replaced while it is read: the run keeps the old file and records its digest."""

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from detector.core.config.levels import resolve_config
from detector.core.errors import ModelError
from detector.core.errors.holding import hold, name_to_open, unchanged
from detector.core.models import ModelRequest, open_network
from detector.core.models.formats.onnx import load
from detector.core.run.detect import Hooks, RunResult, detect
from tests.models.test_onnx_bad import external
from tests.sources.clips import write_video


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(clip: Path, *, at: int, do: object, **flags: object) -> RunResult:
    def detected(frame: object, _: object) -> None:
        if frame.index == at:  # type: ignore[attr-defined]
            do()  # type: ignore[operator]

    given = {"engine": "null", "sync": True, "output": f"{clip.parent}/out/", **flags}
    config = resolve_config(None, given | {"run_dir": str(clip.parent / "run")})
    return detect([str(clip)], config, hooks=Hooks(detected=detected))


def saved(result: RunResult) -> dict[str, object]:
    assert result.session is not None
    document: dict[str, object] = json.loads((result.session / "session.json").read_text())
    return document


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["auto", "opencv", "av"])
def test_replaced_clip_is_read_to_its_end_and_noted(tmp_path: Path, decoder: str) -> None:
    clip, other = write_video(tmp_path / "in.mp4", 9), write_video(tmp_path / "other.mp4", 30)
    before = sha256(clip)
    result = run(clip, at=1, do=lambda: os.replace(other, clip), decoder=decoder)
    assert (result.exit_code, result.summary.frames.written) == (0, 9)
    assert saved(result)["clip_sha256"] == {str(clip): before}
    assert any("replaced" in note for note in result.summary.notes)


def test_name_to_open_stays_valid_while_any_block_holds_the_file(tmp_path: Path) -> None:
    """An inner block may make the name, and end before the outer block uses the name."""
    clip = write_video(tmp_path / "in.mp4", 9)
    with hold(str(clip)) as held:
        with hold(str(clip)):
            names = [name_to_open(str(clip))]
        os.replace(write_video(tmp_path / "other.mp4", 3), clip)
        with hold(str(clip)) as other:
            assert other is not None
            names.append(name_to_open(str(clip)))
        assert held is not None
        assert sha256(Path(names[0])) == held.sha256() != sha256(clip) == sha256(Path(names[1]))
        assert Path(names[0]).suffix == ".mp4"
        os.unlink(names[1])  # as if TMPDIR had been cleared
        assert sha256(Path(name_to_open(str(clip)))) == sha256(clip)
    assert not any(map(os.path.lexists, names))
    assert name_to_open(str(clip)) == str(clip)


@pytest.mark.parametrize("grows", [True, False])
def test_digest_includes_what_is_appended_during_the_run(tmp_path: Path, grows: bool) -> None:
    clip = write_video(tmp_path / "in.mkv", 12)

    def append() -> None:
        with clip.open("ab") as file:
            file.write(b"more" if grows else b"")

    result = run(clip, at=1, do=append)
    assert saved(result)["clip_sha256"] == {str(clip): sha256(clip)}
    assert ["grew" in note for note in result.summary.notes if str(clip) in note] == [True] * grows


def test_playlist_keeps_its_own_name(tmp_path: Path) -> None:
    """The entries of a playlist are relative to the playlist's folder."""
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXTINF:1,\na.ts\n")
    with hold(str(tmp_path / "list.m3u8")):
        assert name_to_open(str(tmp_path / "list.m3u8")) == str(tmp_path / "list.m3u8")


def test_folder_and_missing_file_are_not_held(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.mp4"):
        with hold(str(path)) as held:
            assert held is None


def test_model_replaced_while_it_is_read_raises(tmp_path: Path) -> None:
    model = tmp_path / "x.onnx"
    model.write_text("one")
    (tmp_path / "y.onnx").write_text("two")
    with unchanged([model, None, tmp_path / "absent"], ModelError):
        pass
    with pytest.raises(ModelError), unchanged([model], ModelError):
        os.replace(tmp_path / "y.onnx", model)


def test_external_data_replaced_while_it_is_read_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the external file is known only after the model has been parsed."""
    path = str(external(tmp_path, keep=True))
    network = open_network(ModelRequest(path))
    assert network.sha256

    def replace_first(*given: Any) -> None:
        data = tmp_path / "m.onnx.data"
        (tmp_path / "new").write_bytes(data.read_bytes())
        os.replace(tmp_path / "new", data)
        check(*given)

    check = load.check_tensors
    monkeypatch.setattr(load, "check_tensors", replace_first)
    with pytest.raises(ModelError, match=r"m\.onnx\.data"):
        open_network(ModelRequest(path))


@pytest.mark.slow
def test_descriptor_is_not_inherited_by_children(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "in.mp4", 3)
    with hold(str(clip)) as held:
        assert held is not None
        listed = subprocess.run(
            ["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True
        )
    assert "in.mp4" not in listed.stdout
