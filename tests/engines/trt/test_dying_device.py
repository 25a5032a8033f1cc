"""A GPU that dies in the middle of a run: from one call on, every call fails, even those that free
memory. The run ends with exit code 5 and keeps all earlier frames.
"""

from __future__ import annotations

import json
import sys
from functools import wraps

import pytest

from detector import Detector
from detector.core.config.levels import resolve_config
from detector.core.errors import EXIT_ENGINE, EngineError
from detector.core.run.detect import Hooks, detect
from detector.lab.session.read import read_session
from tests.conftest import CHECKOUT
from tests.fakes.cuda_python import Result
from tests.fakes.install import install_fake_tensorrt

STREET = CHECKOUT / "videos/street.mp4"
ILLEGAL = 700
BEFORE, FRAMES = 3, 6  # frames before the death; frames of the run

# Calls of an inference. The device dies at the first one after ``BEFORE`` frames.
RUNNING = (
    "cudaGetDevice cudaSetDevice cudaEventRecord cudaMemcpyAsync "
    "cudaEventSynchronize cudaEventElapsedTime"
).split()
CLOSING = ["cudaFree", "cudaEventDestroy", "cudaStreamDestroy"]  # called by closing only
OPENING = [  # called by opening only
    "cudaStreamCreateWithFlags",
    "cudaEventCreateWithFlags",
    "cudaHostAlloc",
    "cudaMalloc",
]
PLAIN = Hooks()


class Death:
    """A wrapper of calls: once armed, all fail from the one called ``name`` on."""

    def __init__(self, name: str, armed: bool) -> None:
        self.name, self.armed, self.dead = name, armed, False

    def wrap(self, name, call):
        @wraps(call)
        def wrapped(*args, **kwargs):
            self.dead = self.dead or (self.armed and name == self.name)
            return (Result(ILLEGAL), None) if self.dead else call(*args, **kwargs)

        return wrapped


def machine(monkeypatch, name, armed=False):
    install_fake_tensorrt(monkeypatch)
    death = Death(name, armed)
    runtime = sys.modules["cuda.bindings.runtime"]
    for title in (*RUNNING, *CLOSING, *OPENING):
        monkeypatch.setattr(runtime, title, death.wrap(title, getattr(runtime, title)))
    return death


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    return str(tmp_path_factory.mktemp("plans"))


def options(plans):
    return {"engine": "trt", "size": "64x64", "engines_dir": plans}


def run(place, plans, hooks=PLAIN, **more):
    flags = {**options(plans), "frames": FRAMES, "no_video": True, **more}
    where = {"output": f"{place}/out/", "run_dir": f"{place}/run"}
    return detect([str(STREET)], resolve_config(None, {**flags, **where}), hooks=hooks)


def kill_after(death, count):
    frames = []

    def detected(frame, detections):
        frames.append(frame)
        death.armed = len(frames) >= count

    return Hooks(detected=detected)


def read_rows(place):
    (file,) = (place / "out").glob("*.jsonl")
    return [json.loads(line)["frame"] for line in file.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNING)
def test_failed_inference_keeps_earlier_frames(tmp_path, monkeypatch, plans, name):
    death = machine(monkeypatch, name)
    result = run(tmp_path, plans, kill_after(death, BEFORE), sync=True)
    assert death.dead
    assert result.exit_code == EXIT_ENGINE
    (error,) = result.errors
    assert isinstance(error, EngineError)
    assert str(error).startswith("engine trt: failed")
    session = read_session(tmp_path / "run")
    assert session.document.exit.reason == str(error)
    assert session.document.frames.written == BEFORE
    assert read_rows(tmp_path) == list(range(BEFORE))
    writes = session.spans["stage_names"].tolist().index("write")
    frames = session.spans["index"][session.spans["stage"] == writes]
    assert set(frames.tolist()) >= set(range(BEFORE))
    assert any("closing it" in note for note in session.document.notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLOSING)
def test_failure_while_closing_keeps_all_frames(tmp_path, monkeypatch, plans, name):
    death = machine(monkeypatch, name, armed=True)
    result = run(tmp_path, plans)
    assert death.dead
    assert result.exit_code == EXIT_ENGINE
    assert ["GPU's memory" in str(error) for error in result.errors] == [True]
    assert read_session(tmp_path / "run").document.frames.written == FRAMES
    assert read_rows(tmp_path) == list(range(FRAMES))


@pytest.mark.parametrize("name", OPENING)
def test_failure_while_opening_names_the_call(tmp_path, monkeypatch, plans, name):
    machine(monkeypatch, name, armed=True)
    with pytest.raises(EngineError, match=name) as caught:
        run(tmp_path, plans)
    assert caught.value.exit_code == EXIT_ENGINE
    assert not (tmp_path / "run").exists()


def test_the_python_api_raises_the_first_error(monkeypatch, plans):
    death = machine(monkeypatch, RUNNING[0])
    frames = []

    def watch():
        with Detector("street", **options(plans)) as detector:
            for frame, _ in detector.stream(str(STREET)):
                frames.append(frame.index)
                death.armed = len(frames) >= BEFORE

    with pytest.raises(EngineError, match="failed to run"):
        watch()
    assert frames[:BEFORE] == list(range(BEFORE))
