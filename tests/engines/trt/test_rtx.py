"""How TensorRT for RTX differs from TensorRT: targets, headers, kernel cache, CUDA graphs."""

from pathlib import Path

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.engines.trt.edition import RTX, read_header
from detector.core.engines.trt.jit import choose_graphs
from detector.core.errors import EngineError, ModelError
from tests.conformance import test_engines as conformance
from tests.engines.trt.opening import built
from tests.fakes.install import install_fake_tensorrt
from tests.fakes.plans import as_exported, plan_of
from tests.fakes.tensorrt_state import RTX_MAJOR as FAKE
from tests.known_answers import plus_one
from tests.networks import open_network

L4, RTX_5090, T4 = ("Fake RTX 4000", (8, 9)), ("Fake RTX 5090", (12, 0)), ("Fake T4", (7, 5))


@pytest.fixture
def machine(monkeypatch):
    return install_fake_tensorrt(monkeypatch, FAKE, gpus=(L4,))


def answers(ready) -> list[str]:
    with engines.open("rtx", ready.network, ready.options) as engine:
        inputs = conformance.pictures(1)
        engine.requests[0].slot[:] = inputs
        conformance.assert_answers(engine.requests[0].infer(1), inputs)
        return list(engine.notes)


@pytest.mark.slow
def test_compiled_kernels_are_kept_per_gpu_next_to_the_plan(monkeypatch, machine, tmp_path):
    answers(built(machine, tmp_path))
    [cache] = tmp_path.glob("*.jit")
    assert machine.fake.caches_read == []
    answers(built(machine, tmp_path))
    assert machine.fake.caches_read == [True]
    cache.write_bytes(b"somebody else's code")
    answers(built(machine, tmp_path))
    assert machine.fake.caches_read == [True], "the library must not get a cache without proof"
    other = install_fake_tensorrt(monkeypatch, FAKE, gpus=(RTX_5090,))
    answers(built(other, tmp_path))  # this GPU uses the same portable plan
    assert len(list(tmp_path.glob("*.plan"))) == 1
    assert len(list(tmp_path.glob("*.jit"))) == 2
    assert other.fake.caches_read == []


@pytest.mark.parametrize(
    ("gpu", "own", "targets"),
    [
        (L4, {}, ("8.0", "8.6", "8.9", "12.0", "12.1")),
        (T4, {}, ("7.5",)),
        (L4, {"targets": "12.0+8.6"}, ("8.6", "12.0")),
    ],
)
def test_plan_is_built_for_its_targets(monkeypatch, tmp_path, gpu, own, targets):
    ready = built(install_fake_tensorrt(monkeypatch, FAKE, gpus=(gpu,)), tmp_path, own=own)
    header = read_header(Path(ready.options.artefact).read_bytes())
    assert header.targets == targets


def test_a_gpu_outside_the_support_matrix_is_refused(monkeypatch):
    install_fake_tensorrt(monkeypatch, FAKE, gpus=(("Fake H100", (9, 0)),))
    with pytest.raises(EngineError, match=r"H100 .* 9\.0; .*runs on 7\.5, 8\.6, .*--engine trt"):
        engines.graph_precision_for("rtx", "fp32", "cuda")


def of_version(plan: bytes) -> bytes:
    return plan[:24] + bytes((1, 6, 0, 9)) + plan[28:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_version, r"built by version 1\.6\.0\.9, but 1\.7\S+ is installed; build it again"),
        (lambda plan: plan[:32] + b"\x04\0\0\0" + plan[36:], "capability 8.6, but .* has 8.9"),
        (lambda plan: plan[:9000], r"cut off: [\d,]+ of [\d,]+ bytes"),
        (lambda plan: plan[:28] + b"none" + plan[32:], "damaged, or not a plan"),
        (lambda plan: b"ftrt" + plan[4:], "a plan of TensorRT, not of TensorRT for RTX; .*trt"),
        (lambda plan: b"none" + plan[4:], "not a TensorRT plan"),
    ],
)
def test_unfit_plan_is_refused_before_it_is_loaded(monkeypatch, machine, tmp_path, change, message):
    ready = built(machine, tmp_path)
    file = Path(ready.options.artefact)
    file.write_bytes(change(file.read_bytes()))

    def loaded(*_):
        raise AssertionError("the library got the plan")

    monkeypatch.setattr(machine.trt.Runtime, "deserialize_cuda_engine", loaded)
    with pytest.raises(EngineError, match=message) as caught:
        engines.open("rtx", ready.network, ready.options)
    assert str(file) in str(caught.value)


@pytest.mark.slow
def test_first_bytes_of_a_plan_identify_its_library(monkeypatch, machine, tmp_path):
    (tmp_path / "street.cfg").write_text(Path("cfg/darknet/street.cfg").read_text())
    (tmp_path / "street.names").write_text("person\nvehicle\n")
    file = tmp_path / "street.engine"
    file.write_bytes(plan_of(machine, as_exported(open_network("street"))))
    assert engines.only_engine(str(file)) == "rtx"
    network = open_network(str(file))
    monkeypatch.setattr(engines, "load_library", lambda name: None)
    with pytest.raises(EngineError, match=r"is a plan of TensorRT for RTX.*use --engine rtx"):
        engines.open("trt", network)
    with engines.open("rtx", network) as engine:
        engine.requests[0].slot[:] = 90
        assert all(np.isfinite(one).all() for one in engine.requests[0].infer(1))
    assert list(tmp_path.glob("*.jit")) == [], "nothing is written next to a user's file"
    file.write_bytes(b"ftrt" + file.read_bytes()[4:])
    assert engines.only_engine(str(file)) == "trt"
    file.write_bytes(of_version(plan_of(machine, as_exported(open_network("street")))))
    with pytest.raises(ModelError, match=r"built by version 1\.6"):
        open_network(str(file))


class Request:
    slot = np.zeros((2, 1, 1, 3), np.uint8)
    device_ms: float | None = None

    def __init__(self, ms: float) -> None:
        self.ms, self.runs, self.released = ms, 0, False

    def infer(self, n: int) -> None:
        assert n == len(self.slot)
        self.runs += 1
        self.device_ms = 99.0 if self.runs <= 3 else self.ms  # the first runs compile kernels

    def release(self) -> None:
        self.released = True


@pytest.mark.parametrize(("with_graph", "without", "graphs"), [(0.4, 0.6, True), (0.6, 0.4, False)])
def test_cuda_graph_is_used_if_it_is_faster(with_graph, without, graphs):
    requests = {True: Request(with_graph), False: Request(without)}
    chosen, used, note = choose_graphs(requests.__getitem__)
    assert (chosen, used) == (requests[graphs], graphs)
    assert requests[not graphs].released
    assert not chosen.released
    assert chosen.device_ms is None
    assert note.startswith(f"CUDA graph {'on' if graphs else 'off'}: {with_graph:.3f} ms with it")


@pytest.mark.parametrize(
    ("own", "strategies"),
    [
        ({"graphs": "1"}, ["WHOLE_GRAPH_CAPTURE"] * 2),
        ({"graphs": "0"}, ["DISABLED"] * 2),
        ({}, ["DISABLED", "WHOLE_GRAPH_CAPTURE", "DISABLED"]),  # the tried graph is not faster
    ],
)
def test_contexts_use_the_requested_graph_strategy(machine, own, strategies):
    with engines.open("rtx", plus_one(), EngineOptions(requests=2, own=own)):
        assert machine.fake.strategies == strategies


@pytest.mark.slow
def test_build_without_a_gpu_notes_that_the_plan_cannot_run_here(tmp_path, monkeypatch):
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed")
    from detector.core.config.levels import merge_levels
    from detector.core.engines.trt import driver
    from detector.core.jobs.build import build

    monkeypatch.setattr(driver, "absent", lambda: "no NVIDIA driver")
    options = {"engine": "rtx", "model": "street-1", "engines_dir": str(tmp_path)}
    facts = build(merge_levels(("test", options)), (1, 1), lambda *_: True)
    assert read_header(Path(facts["path"]).read_bytes()).version == RTX.trt.__version__
    assert facts["notes"][-1] == "this machine cannot run the built file: no NVIDIA driver"
    with pytest.raises(EngineError, match=r"no NVIDIA driver .*detect-video build MODEL"):
        engines.load_library("rtx")
    with pytest.raises(EngineError, match=f"{RTX.trt.__version__} for compute capability 8.0, "):
        open_network(facts["path"])
