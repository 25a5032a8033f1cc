"""Full disks and power losses: files with final names are complete; a user's files are kept.

For power losses we check the order of calls: if a file is renamed before it is synced, the new name
may reach the disk before the content. It suffices to record Python's calls, since libraries only
write to files and never rename them.
"""

import gzip
import io
import json
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import onnx
import pytest

from tests.cli.command import assert_one_line_error, detect_video, invoke, rows_of
from tests.cli.small import CFG
from tests.conftest import CHECKOUT
from tests.sources.clips import write_video

PAGE = 4096
FRAMES = 24
SAVED = "video,jsonl,csv,coco,mot,yolo,pictures"


def run(*arguments: object) -> int:
    return invoke(*arguments).exit_code


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "inputs"
    folder.mkdir()
    write_video(folder / "in.mp4", FRAMES)
    (folder / "x.cfg").write_text(CFG)
    numbers = np.random.default_rng(0).random(21 + 21 * 3, np.float32).tobytes()
    (folder / "x.weights").write_bytes(np.array([0, 2, 0, 0, 0], "<i4").tobytes() + numbers)
    return folder


# Power loss


class SyncRecorder:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: set[int] = set()  # inodes of the files and folders synced so far
        self.unsynced: dict[int, str] = {}  # inode of a folder -> a new name in it, not yet synced
        self.named: list[str] = []
        self.problems: list[str] = []
        self._fsync, self._replace, self._rename = os.fsync, os.replace, os.rename
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "replace", self.replace)
        monkeypatch.setattr(os, "rename", self.rename)

    def fsync(self, file: int) -> None:
        self._fsync(file)
        inode = os.fstat(file).st_ino
        self.synced.add(inode)
        self.unsynced.pop(inode, None)

    def replace(self, source: str | Path, target: str | Path) -> None:
        self._name(Path(source), Path(target))
        self._replace(source, target)

    def rename(self, source: str | Path, target: str | Path) -> None:
        self._name(Path(source), Path(target))
        self._rename(source, target)

    def _name(self, source: Path, target: Path) -> None:
        if target.suffix == ".old":  # the replaced folder, which will be removed
            return
        self.named.append(target.name)
        for file in [source, *(source.iterdir() if source.is_dir() else ())]:
            if file.stat().st_ino not in self.synced:
                self.problems.append(f"{file} becomes {target} before it is on the disk")
        self.unsynced[target.parent.stat().st_ino] = str(target)


@pytest.mark.slow
def test_file_is_synced_before_it_gets_its_final_name(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorder = SyncRecorder(monkeypatch)
    model = ("--model", inputs / "x.cfg", "--engine", "null", "--engines-dir", "store")
    for _ in range(2):  # the second run replaces what the first one wrote
        assert run(inputs / "in.mp4", *model, "--save", SAVED, "--run-dir", "r") == 0
    assert run("report", "r") == 0
    assert run("build", inputs / "x.cfg", "--to", "onnx", "-o", "x.onnx", "--engine", "null") == 0
    assert recorder.problems == []
    assert recorder.unsynced == {}
    final = "session.json summary.json spans.npz detections.jsonl report.html images labels"
    final += (
        " data.yaml in-null-detected.mp4 in-null-detected.csv in-null-detected.coco.json x.onnx"
    )
    assert {*final.split()} <= set(recorder.named)
    assert any(name.startswith("x-32x32-b1-") for name in recorder.named), "the store has no graph"


def test_recorder_detects_an_unsynced_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = SyncRecorder(monkeypatch)
    (tmp_path / "a").write_text("")
    os.replace(tmp_path / "a", tmp_path / "b")
    assert (len(recorder.problems), len(recorder.unsynced)) == (1, 1)


# A full disk


@pytest.fixture
def disk(small_disk: Callable[[int], Path]) -> Path:
    return small_disk(1024)


def leave_free(disk: Path, free: int) -> None:
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    space = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, space.f_bavail * space.f_frsize - free))


def check_complete(path: Path) -> None:
    data = path.read_bytes()
    if path.suffix == ".mp4":
        with av.open(io.BytesIO(data)) as container:
            assert sum(1 for _ in container.decode(video=0)) == FRAMES
    elif path.suffix == ".json":
        assert data, (path, data[:50])
        json.loads(data)
    elif path.suffix == ".jsonl":
        numbers = [json.loads(line)["frame"] for line in data.splitlines()]
        assert numbers == list(range(FRAMES)), path
    elif path.suffix == ".npz":
        assert zipfile.ZipFile(io.BytesIO(data)).testzip() is None
    elif path.suffix == ".gz":
        gzip.decompress(data)
    elif path.suffix == ".html":
        assert data.rstrip().endswith(b"</html>")
    elif path.suffix == ".onnx":
        onnx.checker.check_model(onnx.load_model_from_string(data))
    else:
        assert path.name.startswith((".", "classes", "frame_")) or path.suffix in (".csv", ".txt")


def check_disk(disk: Path, code: int, users: dict[Path, bytes]) -> None:
    for path in disk.rglob("*"):
        final = path.is_file() and ".partial" not in str(path) and path.name != "ballast"
        if final and users.get(path) != path.read_bytes():
            check_complete(path)
    for path in users:
        assert path.exists(), path
        assert code == 0 or path.read_bytes() == users[path] or path.suffix in (".jsonl", ".mp4")


@pytest.mark.slow
def test_run_keeps_files_if_its_disk_fills_up_at_any_point(
    inputs: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(disk)
    codes = []
    for pages in (*range(1, 31), 200):
        for path in disk.iterdir():
            subprocess.run(["rm", "-rf", path], check=True)
        users = {disk / "in-null-detected.mp4": b"precious", disk / "thesis.txt": b"precious"}
        for path, content in users.items():
            path.write_bytes(content)
        leave_free(disk, pages * PAGE)
        model = ("--model", inputs / "x.cfg", "--engine", "null", "--engines-dir", "store")
        codes.append(run(inputs / "in.mp4", *model, "--run-dir", "r"))
        check_disk(disk, codes[-1], users)
    assert set(codes) == {0, 6}
    assert codes.count(6) >= 15, "a run must fail for most disk sizes, each time at another point"


@pytest.mark.slow
def test_other_commands_keep_files_on_a_full_disk(
    inputs: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(disk.parent)
    assert run(inputs / "in.mp4", "--engine", "null", "--run-dir", "r", "--no-video") == 0
    target = disk / "mine"
    commands = {
        ".html": ("report", "r", "-o"),
        ".json": ("report", "r", "--format", "json", "-o"),
        ".gz": ("report", "r", "--format", "trace", "-o"),
        ".onnx": ("build", inputs / "x.cfg", "--to", "onnx", "--engine", "null", "-o"),
    }
    for suffix, command in commands.items():
        path = target.with_suffix(suffix)
        failed = 0
        for free in (0, 0, 1, 2, 4, 200):
            path.write_bytes(b"precious")
            leave_free(disk, free * PAGE)
            code = run(*command, path)
            assert code in (0, 6)
            failed += code == 6
            if code == 6:
                assert path.read_bytes() == b"precious"
            else:
                check_complete(path)
            assert {one.name for one in disk.iterdir()} == {path.name, "ballast"}
        assert 0 < failed < 6, suffix
        path.unlink()


@pytest.mark.slow
def test_outputs_are_complete_if_the_session_does_not_fit_on_its_disk(
    inputs: Path, disk: Path, tmp_path: Path
) -> None:
    leave_free(disk, PAGE)
    line = (inputs / "in.mp4", "--model", inputs / "x.cfg", "--save", "jsonl")
    process = detect_video(*line, "--run-dir", disk / "run", cwd=tmp_path)
    assert process.returncode == 6
    assert "end to end" in process.stdout
    assert "Traceback" not in process.stderr
    assert str(disk / "run") in process.stderr
    assert len(rows_of(tmp_path / "in-detected.jsonl")) == FRAMES


@pytest.mark.slow
def test_output_that_does_not_fit_is_removed(disk: Path, tmp_path: Path) -> None:
    leave_free(disk, 75 * PAGE)
    street = CHECKOUT / "videos" / "street.mp4"
    process = detect_video(street, "--engine", "null", "-o", f"{disk}/", cwd=tmp_path)
    assert_one_line_error(process, 6, "disk")
    assert [path for path in disk.glob("street*") if "partial" not in path.name] == []
