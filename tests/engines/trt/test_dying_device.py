"""A GPU that dies during a run. From then on every call into the CUDA package (pycuda, cuda-python
or torch) fails, even a call that frees memory. The run ends with exit code 5 and keeps all earlier
frames."""

import json
import sys
from functools import reduce, wraps

import pytest

from detector import Detector
from detector.core.config.levels import resolve_config
from detector.core.errors import EXIT_ENGINE, EngineError
from detector.core.run.detect import Hooks, detect
from detector.lab.session.read import read_session
from tests.conftest import CHECKOUT
from tests.fakes.install import install_fake_tensorrt
from tests.fakes.packages import Result

STREET = CHECKOUT / "videos/street.mp4"
ILLEGAL = 700
BEFORE, FRAMES = 3, 6  # frames before the device dies, and in the whole run

# Functions that an inference calls, for each package. A test lets the device die at the first call
# of one of these functions after ``BEFORE`` frames.
RUNNING = {
    "pycuda": (
        "Context.push Context.pop Event.record memcpy_htod_async memcpy_dtoh_async "
        "Event.synchronize Event.time_since"
    ).split(),
    "cuda-python": (
        "cudaGetDevice cudaSetDevice cudaEventRecord cudaMemcpyAsync "
        "cudaEventSynchronize cudaEventElapsedTime"
    ).split(),
    "torch": (
        "cuda.device cuda.Event.record cuda.stream Tensor.copy_ "
        "cuda.Event.synchronize cuda.Event.elapsed_time"
    ).split(),
}
# Functions that are called only when the engine closes.
CLOSING = {
    "pycuda": ["DeviceAllocation.free"],
    "cuda-python": ["cudaFree", "cudaEventDestroy", "cudaStreamDestroy"],
    "torch": [],  # tensors are freed with the last reference, without a call
}
# Functions that are called only when the engine opens.
OPENING = {
    "pycuda": ["Device.retain_primary_context", "Stream", "Event", "pagelocked_empty", "mem_alloc"],
    "cuda-python": [
        "cudaStreamCreateWithFlags",
        "cudaEventCreateWithFlags",
        "cudaHostAlloc",
        "cudaMalloc",
    ],
    "torch": ["cuda.Stream", "cuda.Event", "zeros", "empty"],
}

PLACES = {"pycuda": "pycuda.driver", "cuda-python": "cuda.bindings.runtime", "torch": "torch"}
PLAIN = Hooks()


def rows(table):
    return [(package, name) for package, names in table.items() for name in names]


class Death:
    """A wrapper of calls. Once armed, the next call of ``name`` and all calls after it fail."""

    def __init__(self, name: str, armed: bool) -> None:
        self.name, self.armed, self.dead = name, armed, False

    def wrap(self, name, call):
        @wraps(call)
        def wrapped(*args, **kwargs):
            self.dead = self.dead or (self.armed and name == self.name)
            if not self.dead:
                return call(*args, **kwargs)
            if name.startswith("cuda") and "." not in name:
                return Result(ILLEGAL), None
            raise RuntimeError(f"{name} failed: an illegal memory access was encountered")

        return wrapped


def machine(monkeypatch, package, name, armed=False):
    install_fake_tensorrt(monkeypatch, 11, package)
    death = Death(name, armed)
    for title in (*RUNNING[package], *CLOSING[package], *OPENING[package]):
        *way, last = title.split(".")
        place = reduce(getattr, way, sys.modules[PLACES[package]])
        if isinstance(getattr(place, last), type):
            place, last = getattr(place, last), "__init__"
        call, static = death.wrap(title, getattr(place, last)), vars(place)[last]
        call = staticmethod(call) if isinstance(static, staticmethod) else call
        monkeypatch.setattr(place, last, call)
    return death


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    return str(tmp_path_factory.mktemp("plans"))


def options(package, plans):
    return {"engine": "trt", "device_memory": package, "size": "64x64", "engines_dir": plans}


def run(place, package, plans, hooks=PLAIN, **more):
    flags = {**options(package, plans), "frames": FRAMES, "no_video": True, **more}
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
@pytest.mark.parametrize(("package", "name"), rows(RUNNING))
def test_failed_inference_keeps_earlier_frames(tmp_path, monkeypatch, plans, package, name):
    death = machine(monkeypatch, package, name)
    result = run(tmp_path, package, plans, kill_after(death, BEFORE), sync=True)
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
    if package != "torch":  # with torch, closing makes no call that could fail
        assert any("closing the engine" in note for note in session.document.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name"), rows(CLOSING))
def test_failure_while_closing_keeps_all_frames(tmp_path, monkeypatch, plans, package, name):
    death = machine(monkeypatch, package, name, armed=True)
    result = run(tmp_path, package, plans)
    assert death.dead
    assert result.exit_code == EXIT_ENGINE
    assert ["GPU's memory" in str(error) for error in result.errors] == [True]
    assert read_session(tmp_path / "run").document.frames.written == FRAMES
    assert read_rows(tmp_path) == list(range(FRAMES))


@pytest.mark.parametrize(("package", "name"), rows(OPENING))
def test_error_while_opening_says_which_call_failed(tmp_path, monkeypatch, plans, package, name):
    machine(monkeypatch, package, name, armed=True)
    with pytest.raises(EngineError, match=f"(?i){name.rpartition('.')[2]}") as caught:
        run(tmp_path, package, plans)
    assert caught.value.exit_code == EXIT_ENGINE
    assert not (tmp_path / "run").exists()


# One call per package is enough: the tests above show that the engine treats all calls alike.
@pytest.mark.parametrize(("package", "name"), [(one, RUNNING[one][0]) for one in RUNNING])
def test_python_api_raises_the_first_error(monkeypatch, plans, package, name):
    death = machine(monkeypatch, package, name)
    frames = []

    def watch():
        with Detector("street", **options(package, plans)) as detector:
            for frame, _ in detector.stream(str(STREET)):
                frames.append(frame.index)
                death.armed = len(frames) >= BEFORE

    with pytest.raises(EngineError, match="failed to run"):
        watch()
    assert frames[:BEFORE] == list(range(BEFORE))
