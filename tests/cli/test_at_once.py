"""Eight simultaneous runs that share a folder or an output. Each exits as documented.

The runs are forks of one process, which has done the imports. They start at the same time.
"""

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.small import write_network
from tests.conftest import CHECKOUT
from tests.sources.clips import write_video

RUNS = 8
FRAMES = 6
PATIENCE_S = 150
# This script forks, starts all processes at once by closing a pipe, and prints their exit codes.
# Each process gets the video from a pipe. All pipes stay open until all processes but one have
# ended. Therefore the run that succeeds cannot end before the other runs have started.
SCRIPT = textwrap.dedent("""
    import json, os, sys, time
    import av, cv2, numpy, onnx, rich, yaml
    import detector.core.run.detect, detector.core.run.plan, detector.core.session.store
    from detector.core.cli import main

    lines, video, patience_s = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    data = open(video, "rb").read() if video else b""
    reader, writer = os.pipe()
    pipes = [os.pipe() for _ in lines]
    children = []
    for number, line in enumerate(lines):
        if (pid := os.fork()) == 0:
            os.close(writer)
            for _, end in pipes:
                os.close(end)
            os.dup2(pipes[number][0], 0)
            os.read(reader, 1)
            for stream, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{name}-{number}", os.O_WRONLY | os.O_CREAT), stream)
            sys.argv = ["detect-video", *line]
            main()
            os._exit(99)
        children.append(pid)
    os.close(reader)
    for _, end in pipes:
        os.write(end, data)  # less than a pipe holds
    os.close(writer)
    codes, until = {}, time.monotonic() + patience_s
    while len(codes) < len(lines):
        last = len(codes) >= len(lines) - 1 or time.monotonic() > until or not data
        if last and pipes:
            for _, end in pipes:
                os.close(end)
            pipes = []
        pid, status = os.waitpid(-1, 0 if last else os.WNOHANG)
        if pid:
            codes[pid] = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.01)
    print(json.dumps([codes[pid] for pid in children]))
""")


def run_at_once(
    lines: list[list[str]], folder: Path, video: Path | str = ""
) -> tuple[list[int], list[str]]:
    """Return the exit codes and the texts on stderr. ``video``: standard input of each run."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(lines), str(video), str(PATIENCE_S)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    errors = [(folder / f"err-{number}").read_text() for number in range(len(lines))]
    assert not any("Traceback" in text for text in errors), errors
    return json.loads(done.stdout), errors


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_video(folder / "pipe.mkv", FRAMES, codec="mpeg4")
    assert (folder / "pipe.mkv").stat().st_size < 60_000
    write_network(folder)
    return folder


@pytest.mark.slow
def test_simultaneous_runs_may_share_a_store_and_a_folder(inputs: Path, tmp_path: Path) -> None:
    """The store of engine files is empty, sessions have default names, outputs are separate."""
    write_video(tmp_path / "in.mp4", 6)
    shared = ["in.mp4", "--model", str(inputs / "x.cfg"), "--engine", "ort", "--threads", "1"]
    own = [["-o", f"out{number}/"] for number in range(RUNS)]
    lines = [[*shared, "--engines-dir", "store", "--json", *output] for output in own]
    codes, errors = run_at_once(lines, tmp_path)
    assert codes == [0] * RUNS, errors
    names = {f"in-ort{'' if number == 1 else f'-{number}'}" for number in range(1, RUNS + 1)}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names
    sessions = {json.loads((tmp_path / f"out-{n}").read_text())["session"] for n in range(RUNS)}
    assert sessions == {f"runs/{name}" for name in names}
    for name in names:
        rows = (tmp_path / "runs" / name / "detections.jsonl").read_text().splitlines()
        assert [json.loads(row)["frame"] for row in rows] == list(range(6))
    # The store has one graph, its manifest, a list of the executed layers, and a lock file.
    kinds = Counter(path.suffix for path in (tmp_path / "store").iterdir())
    assert kinds == {".onnx": 1, ".json": 2, "": 1}


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["--run-dir r -o out{}/", "-o x.csv"])
def test_only_one_of_simultaneous_runs_gets_a_run_dir_or_an_output(
    inputs: Path, tmp_path: Path, shared: str
) -> None:
    """The run that gets the folder or file lasts until all others have failed."""
    line = f"- --model {inputs}/x.cfg --engine null --save csv --no-video {shared}"
    lines = [line.format(number).split() for number in range(RUNS)]
    codes, errors = run_at_once(lines, tmp_path, inputs / "pipe.mkv")
    assert Counter(codes) == {0: 1, 6: RUNS - 1}, errors
    assert not list(tmp_path.glob("*partial*"))
    if "r" in shared.split():
        assert all("process " in text for code, text in zip(codes, errors, strict=True) if code)
        rows = (tmp_path / "r/detections.jsonl").read_text().splitlines()
        assert [json.loads(row)["frame"] for row in rows] == list(range(FRAMES))
