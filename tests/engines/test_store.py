"""Built files are made once, reused, and never incomplete."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from detector.core.engines._built import building, store
from detector.core.engines._built.building import export
from detector.core.engines._built.store import default_folder
from detector.core.errors import OutputError
from tests.conftest import CHECKOUT
from tests.known_answers import plus_one


def build_here(folder):
    return building.build_once(folder, "tiny", ".plan", {}, Path.touch)


def test_file_is_built_once_and_then_reused(tmp_path):
    network = plus_one()
    first = export(network, tmp_path / "new" / "folder")
    assert first.built
    assert first.notes == ()
    assert network.path == first.path
    before = os.stat(first.path)
    second = export(plus_one(), tmp_path / "new" / "folder")
    assert second == (first.path, False, ())
    assert os.stat(first.path).st_ino == before.st_ino
    assert sorted(
        path.suffix for path in Path(first.path).parent.iterdir() if path.name != building.LOCK
    ) == [".json", ".onnx"]


def test_manifest_describes_the_network_and_its_file(tmp_path):
    import onnx

    network = plus_one(batch=2)
    network.sha256, network.random_seed = "ab" * 32, 7
    path = Path(export(network, tmp_path).path)
    manifest = json.loads(path.with_suffix(".json").read_text())
    data = path.read_bytes()
    assert manifest["file_sha256"] == hashlib.sha256(data).hexdigest()
    assert path.name == f"plus_one-3x2-b2-{manifest['file_sha256'][:12]}.onnx"
    expected = {
        "name": "plus_one",
        "family": "test",
        "sources_sha256": "ab" * 32,
        "random_seed": 7,
        "batch": 2,
        "input_shape": [2, 2, 3, 3],
        "opset": 17,
        "inputs": ["images"],
        "outputs": ["0.conv", "1.conv"],
        "file_bytes": len(data),
    }
    assert {key: manifest[key] for key in expected} == expected
    assert onnx.load_from_string(data) == network.graph


def test_same_graph_of_another_family_rewrites_the_manifest(tmp_path):
    """One model file may give the same graph with --family yolov5 and with --family yolov8."""
    first = export(plus_one(), tmp_path)
    other = export(replace(plus_one(), family="another"), tmp_path)
    assert (other.path, other.notes) == (first.path, ())
    assert store.read_manifest(other.path)["family"] == "another"


def test_another_batch_size_or_other_weights_give_another_file(tmp_path):
    other_weight = plus_one()
    other_weight.graph.graph.initializer[1].raw_data = b"\0" * 12
    paths = {
        export(network, tmp_path).path
        for network in (plus_one(), plus_one(2), plus_one(1, 4, 4), other_weight)
    }
    assert len(paths) == 4


def test_network_with_a_path_as_its_name_is_written_into_the_folder(tmp_path):
    network = plus_one()
    network.name = "../../etc/a b\n"
    assert Path(export(network, tmp_path).path).parent == tmp_path


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_error_for_an_unwritable_folder_names_the_option(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"written.*--engines-dir") as caught:
        export(plus_one(), tmp_path / place)
    assert caught.value.exit_code == 6


def test_failed_write_leaves_no_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    network = plus_one()
    with pytest.raises(OutputError, match="No space left"):
        export(network, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [building.LOCK]
    assert network.path is None


def test_valid_file_in_an_unwritable_folder_is_used(tmp_path, monkeypatch):
    path = export(plus_one(), tmp_path).path

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(building, "write_whole", refuse)
    monkeypatch.setattr(building, "_locked", refuse)
    assert export(plus_one(), tmp_path) == (path, False, ())


@pytest.mark.parametrize("build", [lambda folder: export(plus_one(), folder), build_here])
def test_file_that_another_run_built_meanwhile_is_used(tmp_path, monkeypatch, build):
    locked, others = building._locked, []

    @contextmanager
    def wait_for_another_run(place):
        monkeypatch.setattr(building, "_locked", locked)
        others.append(build(tmp_path))
        with locked(place):
            yield

    monkeypatch.setattr(building, "_locked", wait_for_another_run)
    mine = build(tmp_path)
    assert others[0].built
    assert mine == (others[0].path, False, ())


def test_run_waits_while_another_run_builds(tmp_path):
    """The waiting run must not finish before this test releases the lock."""
    done = threading.Event()
    thread = threading.Thread(target=lambda: (export(plus_one(), tmp_path), done.set()))
    with building._locked(tmp_path):
        thread.start()
        assert not done.wait(0.3)
        assert not list(tmp_path.glob("*.onnx"))
    assert done.wait(240)
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("builds", ["export(plus_one(), folder)", "build_here(folder)"])
def test_next_build_removes_files_of_a_killed_build(tmp_path, builds):
    code = (
        "import os, pathlib, sys; from tests.engines.test_store import *; os.replace = lambda *_: "
        f"os._exit(9); folder = pathlib.Path(sys.argv[1]); {builds}"
    )
    for _ in range(2):
        command = [sys.executable, "-c", code, tmp_path]
        assert subprocess.run(command, cwd=CHECKOUT, check=False).returncode == 9
        assert len(list(tmp_path.glob(".*"))) == 2
    build_here(tmp_path)
    assert [path.name for path in tmp_path.glob(".*")] == [building.LOCK]


def test_default_folder_is_in_the_checkout_or_the_users_cache(tmp_path, monkeypatch):
    assert default_folder() == CHECKOUT / "engines"
    monkeypatch.setattr(
        store, "__file__", str(tmp_path / "site-packages/detector/core/engines/_built/store.py")
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_folder() == tmp_path / "cache/detect-video/engines"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "home/.cache/detect-video/engines"
