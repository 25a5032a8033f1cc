"""``build``: engine files are built once and rebuilt if stale; graphs are written as ONNX."""

import json
import os
import signal

import numpy as np
import onnx
import pytest

from tests.cli.command import assert_one_line_error, detect_video, run_ok, start
from tests.conftest import CHECKOUT
from tests.outside_engines import with_engines
from tests.waiting import wait_for

SMALL = ("--size", "128x64")


def run_forging(tmp_path, *arguments, env, command="build"):
    clip = (CHECKOUT / "videos/street.mp4", "--frames", 2, "--quiet")
    first = ("street",) if command == "build" else clip
    options = ("--engine", "forging", "--engines-dir", tmp_path / "engines", *SMALL)
    return detect_video(command, *first, *options, *arguments, cwd=tmp_path, env=env)


def builds(tmp_path):
    log = tmp_path / "forge.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.slow
def test_engine_is_built_once_and_used_by_the_run(tmp_path):
    env = with_engines(tmp_path, "forging")
    first = run_forging(tmp_path, env=env)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith(f"built: {tmp_path}/engines/street-128x64-b1-forging-fp32-")
    assert "fp32, 128x64 batch 1" in first.stdout
    assert "steps: 4" in first.stdout
    again = run_forging(tmp_path, env=env)
    assert again.stdout.startswith("already built: ")
    manifest = json.loads(next((tmp_path / "engines").glob("*forging*.json")).read_text())
    assert f" (the build took {manifest['build_s']:.1f} s)\n" in again.stdout
    assert run_forging(tmp_path, env=env, command="detect").returncode == 0
    assert builds(tmp_path) == 1


@pytest.mark.slow
def test_run_builds_a_missing_engine_file(tmp_path):
    env = with_engines(tmp_path, "forging")
    assert run_forging(tmp_path, env=env, command="detect").returncode == 0
    assert run_forging(tmp_path, env=env).stdout.startswith("already built: ")
    assert builds(tmp_path) == 1


@pytest.mark.slow
def test_simultaneous_commands_build_the_engine_only_once(tmp_path):
    env = {**with_engines(tmp_path, "forging"), "FORGE_STEP_S": "0.5"}
    command = [*"build street --engine forging --engines-dir engines".split(), *SMALL, "--json"]
    running = [start(*command, cwd=tmp_path, env=env) for _ in range(2)]
    outputs = [process.communicate(timeout=240) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    documents = [json.loads(stdout) for stdout, _ in outputs]
    assert sorted(document["built"] for document in documents) == [False, True]
    assert documents[0]["path"] == documents[1]["path"]
    assert builds(tmp_path) == 1


@pytest.mark.slow
def test_range_of_batches_needs_an_engine_that_supports_it(tmp_path):
    env = with_engines(tmp_path, "forging")
    done = run_forging(tmp_path, "--batch", "1..8", "--json", env=env)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    manifest = json.loads(next((tmp_path / "engines").glob("*forging*.json")).read_text())
    assert document["batch"] == "1..8"
    assert manifest["key"]["own"] == {"min_batch": "1", "max_batch": "8"}
    refused = detect_video(
        "build", "street", "--engine", "ort", "--batch", "1..8", cwd=tmp_path, env=env
    )
    assert_one_line_error(refused, 2, "1..8", "forging", "ort builds one batch per file")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("--engine-options", "alloy=tin"), "does not fit: own {} is now {'alloy': 'tin'}"),
        (None, "not used: its content does not match its manifest; built again"),
    ],
)
def test_stale_or_corrupt_file_is_reported_and_rebuilt(tmp_path, change, line):
    env = with_engines(tmp_path, "forging")
    path = json.loads(run_forging(tmp_path, "--json", env=env).stdout)["path"]
    if change is None:
        with open(path, "w") as file:
            file.write("tin")
    done = run_forging(tmp_path, *(change or ()), env=env)
    [note] = [one for one in done.stdout.splitlines() if one.startswith("note: ")]
    assert line in note
    assert os.path.basename(path) in note
    assert builds(tmp_path) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_build_leaves_no_files(tmp_path, number, code):
    env = {**with_engines(tmp_path, "forging"), "FORGE_STEP_S": "200"}
    command = ["build", "street", "--engine", "forging", "--engines-dir", "engines", *SMALL]
    process = start(*command, cwd=tmp_path, env=env)
    wait_for(lambda: builds(tmp_path))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == code, stderr
    assert "Traceback" not in stderr
    assert not [path.name for path in (tmp_path / "engines").iterdir() if "forging" in path.name]


@pytest.mark.slow
def test_graph_is_written_as_onnx(tmp_path):
    import onnxruntime

    done = run_ok(
        "build", "street", "--to", "onnx", "-o", "s.onnx", "--batch", 2, *SMALL, cwd=tmp_path
    )
    assert done.stdout.startswith("built: s.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["s.onnx"]
    model = onnx.load(tmp_path / "s.onnx")
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    [given] = session.get_inputs()
    assert (given.type, given.shape) == ("tensor(uint8)", [2, 64, 128, 3])
    outputs = session.run(None, {given.name: np.zeros((2, 64, 128, 3), np.uint8)})
    assert all(np.isfinite(output).all() for output in outputs)


@pytest.mark.slow
def test_default_name_contains_the_model_the_size_and_the_batch(tmp_path):
    assert detect_video("build", "street", "--to", "onnx", *SMALL, cwd=tmp_path).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["street-128x64-b1.onnx"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["none.cfg"], 4, ["none.cfg"]),
        (["street", "--engine", "tensorflow"], 2, ["tensorflow"]),
        (["street", "--precision", "int9"], 2, ["int9", "int8"]),
        (["street", "--batch", "8..1"], 2, ["8..1"]),
        (["street", "--batch", "0"], 2, ["--batch 0"]),
        (["street", "-o", "x.onnx"], 2, ["--to onnx"]),
        (["street", "--to", "onnx", "--batch", "1..4"], 2, ["one batch"]),
        (["street", "--to", "onnx", "-o", "/proc/x.onnx"], 6, ["/proc/x.onnx"]),
        (["street", "--to", "onnx", "-o", "."], 6, ["folder"]),
        (["street", "--to", "onnx", "--precision", "bf16", "--engine", "torch"], 2, ["omit"]),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(tmp_path, arguments, code, words):
    assert_one_line_error(detect_video("build", *arguments, cwd=tmp_path), code, *words)
    assert list(tmp_path.iterdir()) == []
