"""Hostile ONNX files open as a network or raise ModelError, within limits of time and memory."""

import os
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from detector.core.errors import ModelError
from tests.attacks import onnx_files
from tests.attacks.running import run_apart
from tests.networks import open_network

# These could exhaust the memory or take very long, so they run in a process with limits.
DANGEROUS = (
    "range of 2^40",
    "expand",
    "tile",
    "pad",
    "one hot",
    "constant of shape",
    "resize",
    "slow resize",
    "chain",
    "32 functions that call the previous one twice",
    "1000 functions in a chain",
    "110,000 nodes",
    "8,000 nodes with the same name",
    "8,000 identity nodes",
    "90,000 names",
    "names of 100,000 minus signs",
    "packed zeros",
    "a million empty nodes",
    "empty inputs",
    "huge input",
    "device",
)
READABLE = frozenset(
    {
        "a valid slice",
        "eye",
        "slow resize",
        "8,000 nodes with the same name",
        "8,000 identity nodes",
        "10 nested branches",
        "20 nested branches",
        "names nested 5,000 deep",
        "infinite class number",
        "names of 100,000 minus signs",
        "names with a backslash",
        "one long name",
        "lone surrogate in a name",
        "stride",
        "imgsz",
        "huge batch",
        "empty node names",
        "node names of escape codes",
        "node names of slashes",
        "node names of 500 parts",
        "valid external file",
        "external file too long",
        "valid external file of a node",
    }
)
KNOWN = (*onnx_files.CHANGES, *onnx_files.FILES)
MB = 1 << 20


def lay_out(files: dict[str, bytes], folder: Path) -> str:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return str(folder / "m.onnx")


def is_read(name: str, folder: Path) -> bool:
    path = lay_out(dict(onnx_files.known({name}))[name], folder)
    message = None
    try:
        open_network(path)
    except ModelError as error:
        message = str(error)
    assert message is None or message.isprintable()
    return message is None


@pytest.mark.parametrize("name", [name for name in KNOWN if name not in DANGEROUS])
def test_known_file_is_read_or_refused(tmp_path, name):
    assert is_read(name, tmp_path) == (name in READABLE)


@pytest.mark.slow
def test_huge_models_stay_within_memory_and_cpu_limits(tmp_path):
    lines = run_apart(__file__, tmp_path, 240)
    results = dict(line.rsplit(" ", 1) for line in lines)
    assert results == {name: str(name in READABLE) for name in DANGEROUS}


@pytest.mark.parametrize(
    "count", [pytest.param(8, id="few"), pytest.param(120, id="many", marks=pytest.mark.slow)]
)
def test_randomly_changed_file_is_read_or_refused(tmp_path, count):
    for name, files in islice(onnx_files.cases(3), count):
        with suppress(ModelError):  # any other exception fails the test
            assert open_network(lay_out(files, tmp_path)).names, name


def test_external_data_outside_the_folder_or_in_a_pipe_is_refused(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "w.bin").write_bytes(np.ones(16, np.float32).tobytes())
    path = lay_out({"m.onnx": onnx_files.with_external_data("w.bin")["m.onnx"]}, inside)
    (inside / "w.bin").symlink_to("../w.bin")
    with pytest.raises(ModelError, match="outside"):
        open_network(path)
    (inside / "w.bin").unlink()
    os.mkfifo(inside / "w.bin")  # reading it would block
    with pytest.raises(ModelError, match=r"w\.bin"):
        open_network(path)


def test_model_and_data_linked_from_a_download_cache_are_read(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for number, (name, content) in enumerate(onnx_files.with_external_data("w.bin").items()):
        (tmp_path / "blobs" / str(number)).write_bytes(content)
        (tmp_path / "snapshot" / name).symlink_to(f"../blobs/{number}")
    assert open_network(str(tmp_path / "snapshot/m.onnx")).names


def test_external_constant_beside_the_model_is_read_and_affects_the_digest(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    files = onnx_files.with_external_data("w.bin", node=True)
    (elsewhere / "w.bin").write_bytes(np.zeros(16, np.float32).tobytes())
    path = lay_out(files, tmp_path)
    first = open_network(path).sha256
    monkeypatch.chdir(elsewhere)
    assert open_network(path).sha256 == first
    (tmp_path / "w.bin").write_bytes(np.full(16, 2, np.float32).tobytes())
    assert open_network(path).sha256 != first


def test_functions_are_inlined(tmp_path):
    def change(model):
        onnx_files.add_functions(model, 5, 2)

    network = open_network(lay_out({"m.onnx": onnx_files.changed(change)}, tmp_path))
    assert sum(node.op_type == "Relu" for node in network.graph.graph.node) == 16


def main(folder: Path) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (4096 * MB, 4096 * MB))
    resource.setrlimit(resource.RLIMIT_CPU, (200, 200))
    for name in DANGEROUS:
        print(name, is_read(name, folder), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
