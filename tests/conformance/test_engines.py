"""Conformance of every engine of detector/core/engines, on networks with known answers."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.errors import EngineError, UsageError
from tests.known_answers import plus_one, run_once
from tests.memory import bytes_of
from tests.networks import need_engine, open_network
from tests.test_house import PACKAGE, reachable, targets
from tests.waiting import PATIENCE_S, wait_for

COMPUTING = [name for name in engines.names() if name != "null"]
# Pairs of an engine and a precision for which the engine is given the fp32 graph. Tests of
# precisions that need a converted or quantised graph are in tests/run.
CASES = [
    (name, precision)
    for name in COMPUTING
    for precision, graph in engines.find(name).precisions.items()
    if graph == "fp32"
]
# Relative rounding error: half a unit in the precision's last place, and a whole unit for fp32.
STEP = {"fp32": 2**-23, "tf32": 2**-11, "fp16": 2**-11, "bf16": 2**-8}


@dataclass(frozen=True)
class Case:
    name: str
    precision: str

    def options(self, **others: Any) -> EngineOptions:
        return EngineOptions(precision=self.precision, **others)

    def assert_answers(self, outputs: list[np.ndarray], inputs: np.ndarray) -> None:
        assert_answers(outputs, inputs, self.precision)


def assert_answers(outputs: list[np.ndarray], inputs: np.ndarray, precision: str = "fp32") -> None:
    planes = inputs.transpose(0, 3, 1, 2).astype(np.float32)
    np.testing.assert_allclose(outputs[0], planes + 1, rtol=max(1e-6, 2 * STEP[precision]))
    np.testing.assert_allclose(
        outputs[1], planes.sum(axis=(2, 3), keepdims=True), rtol=max(1e-5, 2 * STEP[precision])
    )


@pytest.fixture(params=engines.names())
def name(request) -> str:
    need_engine(request.param)
    return request.param


@pytest.fixture(params=COMPUTING)
def computing(request) -> str:
    need_engine(request.param)
    return request.param


@pytest.fixture(params=CASES, ids="-".join)
def case(request) -> Case:
    name, precision = request.param
    need_engine(name)
    try:
        engines.graph_precision_for(name, precision)
    except EngineError as error:
        pytest.skip(f"machine: {error}")
    return Case(name, precision)


def pictures(seed: int, batch: int = 1, height: int = 2, width: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (batch, height, width, 3), np.uint8)


@pytest.mark.parametrize("name", engines.names())
def test_options_of_an_engine_are_read_in_its_code(name):
    files = {
        ".".join(["detector", *file.relative_to(PACKAGE).with_suffix("").parts]): file
        for file in (PACKAGE / "core/engines").rglob("*.py")
    }
    files = {name.removesuffix(".__init__"): file for name, file in files.items()}
    arrows = {one: set(targets(file, PACKAGE, files)) for one, file in files.items()}
    module = f"detector.core.engines.{name}"
    own = {one for one in files if one.startswith(f"{module}.")} | {module}
    reached = own.union(*(reachable(one, arrows) for one in own)) - {"detector.core.engines"}
    text = "".join(files[one].read_text(encoding="utf-8") for one in reached)
    own_options = engines.find(name).own_options
    assert [one for one in own_options if text.count(f'"{one}"') < 2] == [], "declared but not read"


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_full_and_partial_batches_give_the_known_answers(case, batch):
    """Unfilled rows of the request's input array (its slot) do not change the answers."""
    with engines.open(case.name, plus_one(batch), case.options(batch=batch, requests=1)) as engine:
        request = engine.requests[0]
        for n in [*range(1, batch + 1), 1]:
            inputs = pictures(n, n)
            request.slot[:n] = inputs
            outputs = request.infer(n)
            assert [len(output) for output in outputs] == [n, n]
            case.assert_answers(outputs, inputs)


@pytest.mark.parametrize("batch", [1, 3])
def test_slots_and_outputs_have_the_declared_shapes_and_types(name, batch):
    network = plus_one(batch)
    with engines.open(name, network, EngineOptions(batch=batch, requests=3)) as engine:
        assert engine.name == name
        assert len(engine.requests) == 3
        assert engine.concurrency >= 1
        assert engine.threads >= 1
        assert engine.requests[0].device_ms is None  # nothing has run yet
        for request in engine.requests:
            assert request.slot.shape == (batch, 2, 3, 3)
            assert request.slot.dtype == np.uint8
            assert request.slot.flags.writeable
            assert request.slot.flags.c_contiguous
            outputs = request.infer(batch)
            assert [output.shape for output in outputs] == network.output_shapes
            assert all(output.dtype == np.float32 for output in outputs)
        slots = [request.slot for request in engine.requests]
        assert not np.shares_memory(slots[0], slots[1])
        assert (engine.requests[0].device_ms is None) == (engine.device == "cpu")


@pytest.mark.slow
def test_layers_report_the_executed_precision(case):
    """If layers are reported, one ran in the requested precision, or a note says why none did."""
    network = open_network("yolov4-tiny-person-vehicle", random_seed=7, size=(64, 96))
    with engines.open(case.name, network, case.options()) as engine:
        assert engine.precision == case.precision
        layers = engine.execution()
        executed = {layer.precision for layer in layers}
        assert (
            not layers
            or case.precision in executed
            or any(case.precision in note for note in engine.notes)
        )
        assert len({layer.name for layer in layers}) == len(layers)


def test_infer_does_not_change_its_slot(name):
    with engines.open(name, plus_one()) as engine:
        inputs = pictures(1)
        request = engine.requests[0]
        request.slot[:] = inputs
        request.infer(1)
        np.testing.assert_array_equal(request.slot, inputs)


def test_outputs_stay_valid_until_their_request_infers_again(case):
    with engines.open(case.name, plus_one(), case.options(requests=3)) as engine:
        inputs = [pictures(seed) for seed in range(3)]
        results = []
        for request, picture in zip(engine.requests, inputs, strict=True):
            request.slot[:] = picture
            results.append(request.infer(1))
            request.slot[:] = 0  # the caller may refill the slot
        for outputs, picture in zip(results, inputs, strict=True):
            case.assert_answers(outputs, picture)
        engine.requests[0].slot[:] = inputs[2]
        engine.requests[0].infer(1)
        # Another request's infer leaves these results unchanged.
        case.assert_answers(results[1], inputs[1])


@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_requests_in_several_threads_do_not_mix(case, concurrency):
    """Each thread has its own requests; a barrier makes the threads call infer together."""
    # fp16 must not overflow: sums stay below 65504.
    size = {"height": 8, "width": 12} if case.precision == "fp16" else {"height": 64, "width": 96}
    options = case.options(requests=2 * concurrency, concurrency=concurrency, threads=1)
    together = threading.Barrier(concurrency)
    with engines.open(case.name, plus_one(**size), options) as engine:
        assert engine.concurrency == concurrency

        def work(at: int) -> None:
            for turn in range(8):
                request = engine.requests[2 * at + turn % 2]
                inputs = pictures(100 * at + turn, **size)
                request.slot[:] = inputs
                together.wait(PATIENCE_S)
                case.assert_answers(request.infer(1), inputs)

        with ThreadPoolExecutor(concurrency) as pool:
            for done in [pool.submit(work, at) for at in range(concurrency)]:
                done.result(2 * PATIENCE_S)


@pytest.mark.slow
def test_each_precision_agrees_with_torch_in_fp32_on_a_random_network(case):
    """The tolerance grows with the precision's rounding error. Boxes are compared in fp32 only."""
    pytest.importorskip("torch", reason="machine: torch is not installed")
    network = open_network("yolov4-tiny-person-vehicle", random_seed=7, size=(64, 96), batch=2)
    inputs = pictures(3, 2, 64, 96)
    expected = run_once(network, inputs, "torch")
    with engines.open(case.name, network, case.options(batch=2)) as engine:
        engine.requests[0].slot[:] = inputs
        results = [output.copy() for output in engine.requests[0].infer(2)]
    for output, right in zip(results, expected, strict=True):
        assert (
            np.abs(output - right).max()
            <= max(1e-4, 8 * STEP[case.precision]) * np.abs(right).max()
        )
    if case.precision == "fp32":
        boxes, right_boxes = (
            np.clip(network.dense([output[:1] for output in outputs])[..., :4], 0, 96)
            for outputs in (results, expected)
        )
        assert np.abs(boxes - right_boxes).max() <= 1e-3 * 96


def test_infer_lets_other_threads_run(computing):
    """Another thread notes the time while infer runs, which is impossible if infer holds the GIL.
    On a busy machine, the test may take several attempts."""
    notes, stop = [], threading.Event()

    def has_notes_throughout() -> bool:
        start = time.perf_counter()
        request.infer(4)
        end = time.perf_counter()
        inside = [start, *(at for at in list(notes) if start < at < end), end]
        return max(b - a for a, b in pairwise(inside)) < 0.5 * (end - start)

    def note() -> None:
        while not stop.is_set():
            notes.append(time.perf_counter())
            time.sleep(0.0005)

    with engines.open(
        computing, plus_one(4, 512, 512), EngineOptions(batch=4, threads=1)
    ) as engine:
        request = engine.requests[0]
        request.infer(4)
        thread = threading.Thread(target=note)
        thread.start()
        try:
            wait_for(has_notes_throughout)
        finally:
            stop.set()
            thread.join()


def test_close_may_repeat_and_infer_after_close_raises(name):
    engine = engines.open(name, plus_one())
    request = engine.requests[0]
    engine.close()
    engine.close()
    if name != "null":
        with pytest.raises(EngineError, match=f"engine {name}: infer.. called after close"):
            request.infer(1)


def test_close_ends_every_thread(name):
    before = threading.active_count()
    with engines.open(name, plus_one()) as engine:
        engine.requests[0].infer(1)
    assert threading.active_count() <= before


def test_no_numpy_buffer_above_64_kb_is_allocated_in_steady_state(name):
    """The output of a 256x256 picture has 786 KB, so one copy would exceed the limit."""
    with engines.open(name, plus_one(1, 256, 256)) as engine:
        request = engine.requests[0]
        for _ in range(3):
            request.infer(1)
        _, peak = bytes_of(lambda: [request.infer(1) for _ in range(5)])
    assert peak < 64 * 1024, f"{peak} bytes at the peak"


def test_invalid_graph_raises_engine_error(computing):
    network = plus_one()
    network.graph.graph.node[2].input[0] = "nowhere"
    with pytest.raises(EngineError, match=rf"^engine {computing}: .*(nowhere|0\.conv)") as caught:
        engines.open(computing, network)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda network: setattr(
            network, "output_shapes", [(1, 3, 2, 4), (1, 3, 1, 1)]
        ),  # would overrun the buffer
        lambda network: setattr(network, "output_shapes", [(1, 3, 2, 3)]),
        lambda network: setattr(network, "input", plus_one(1, 4, 4).input),
    ],
)
def test_description_that_differs_from_the_graph_raises(computing, change):
    network = plus_one()
    change(network)
    with pytest.raises(EngineError, match=f"engine {computing}: .*plus_one"):
        engines.open(computing, network)


@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(batch=2),
        EngineOptions(requests=0),
        EngineOptions(threads=-1),
        EngineOptions(concurrency=-1),
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(EngineError, match=r"for batch 1|one request"):
        engines.open("null", plus_one(), options)


def test_missing_library_error_says_how_to_install_it(monkeypatch, computing):
    engine = engines.find(computing)
    monkeypatch.setattr(engines, "find_spec", lambda library: None)
    reason = engines.why_unusable()[computing]
    assert reason.startswith(f"{engine.library} ")
    assert reason.endswith(engine.install)
    for call in (
        lambda: engines.open(computing, plus_one()),
        lambda: engines.load_library(computing),
    ):
        with pytest.raises(EngineError, match=f"{engine.library} .* pip install"):
            call()


def test_unknown_engine_is_a_usage_error():
    for call in (
        lambda: engines.open("tensorflow", plus_one()),
        lambda: engines.load_library("tensorflow"),
    ):
        with pytest.raises(UsageError, match="'tensorflow'"):
            call()
