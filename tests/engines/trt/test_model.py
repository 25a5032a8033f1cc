"""TensorRT plans that other programs built: which options describe them, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.engines.trt import driver
from detector.core.errors import EngineError, ModelError, UsageError
from tests.fakes.install import install_fake_tensorrt
from tests.fakes.packages import PACKAGES
from tests.fakes.plans import as_exported, constant_model, plan_of
from tests.known_answers import run_once
from tests.networks import cfg_text, open_network, parsed

CFG = cfg_text(
    "net width=32 height=32 channels=3",
    "convolutional filters=14 size=3 stride=8 pad=1 activation=linear",
    "yolo mask=0,1 anchors=4,4,9,12 classes=2",
)


@pytest.fixture(params=[10, 11])
def machine(request, monkeypatch):
    return install_fake_tensorrt(monkeypatch, request.param)


@pytest.fixture
def place(tmp_path) -> Path:
    (tmp_path / "t.cfg").write_text(CFG)
    return tmp_path


def plan_file(machine, place: Path, name: str = "x.trt", half: bool = False) -> str:
    """Write a float NCHW plan of the cfg's network, with random weights of seed 1."""
    network = open_network(str(place / "t.cfg"), random_seed=1)
    (place / name).write_bytes(plan_of(machine, as_exported(network, half)))
    return str(place / name)


@pytest.mark.slow
@pytest.mark.parametrize(("half", "tolerance"), [(False, 1e-4), (True, 2e-2)])
def test_float_plan_with_its_cfg_agrees_with_the_graph(machine, place, half, tolerance):
    """The engine converts our input to the layout and scale of the plan's input."""
    network = open_network(
        plan_file(machine, place, half=half), cfg=str(place / "t.cfg"), class_names=["a", "b"]
    )
    assert (network.names, network.input_shape) == (("a", "b"), (1, 32, 32, 3))
    assert network.input.geometry == "stretch"
    original = open_network(str(place / "t.cfg"), random_seed=1)
    inputs = np.random.default_rng(3).integers(0, 256, network.input_shape, np.uint8)
    expected = run_once(original, inputs)
    with engines.open("trt", network, EngineOptions()) as engine:
        assert engine.precision == "as built"
        request = engine.requests[0]
        request.slot[:] = inputs
        outputs = request.infer(1)
        np.testing.assert_allclose(
            outputs[0], expected[0], atol=tolerance * np.abs(expected[0]).max()
        )
        np.testing.assert_array_equal(request.slot, inputs)
        ours, theirs = network.head(outputs, 0.3), original.head(expected, 0.3)
    if not half:
        np.testing.assert_allclose(ours.boxes, theirs.boxes, atol=1e-2)
    assert len(theirs.boxes)


def test_cfg_and_names_next_to_the_plan_are_found(machine, place):
    file = plan_file(machine, place, "t.engine")
    (place / "t.names").write_text("cat\ndog\n")
    assert open_network(file).names == ("cat", "dog")
    (place / "t.names").unlink()
    assert open_network(file).names == ("class0", "class1")


def test_error_lists_the_tensors_if_the_cfg_does_not_fit(machine, place):
    file = plan_file(machine, place)
    (place / "other.cfg").write_text(
        CFG.replace("classes=2", "classes=3").replace("filters=14", "filters=16")
    )
    with pytest.raises(ModelError, match=r"16x4x4.*1x14x4x4"):
        open_network(file, cfg=str(place / "other.cfg"))


def rows_model(**more):
    """Return a model [B, 3, 32, 32] -> [B, 2, 8] with two rows of boxes for three classes."""
    rows = np.zeros((1, 2, 8), np.float32)
    rows[0, 0, :6] = [16, 16, 8, 8, 0.9, 0.8]
    rows[0, 1, :5] = [8, 8, 4, 4, 0.1]
    return constant_model(rows, 32, **more)


@pytest.mark.parametrize(("half", "tolerance"), [(False, 1e-6), (True, 2e-3)])
def test_plan_with_decoded_rows_needs_only_names(machine, place, half, tolerance):
    """Half-precision outputs are converted to float32."""
    file = place / "rows.plan"
    file.write_bytes(plan_of(machine, rows_model(half=half)))
    network = open_network(str(file), class_names=["a", "b", "c"])
    assert network.input.geometry == "centre"
    with engines.open("trt", network) as engine:
        outputs = engine.requests[0].infer(1)
        assert outputs[0].dtype == np.float32
        candidates = network.head(outputs, 0.5)
    np.testing.assert_allclose(candidates.boxes, [[12, 12, 20, 20]])
    np.testing.assert_allclose(candidates.scores, [0.72], rtol=tolerance)
    with pytest.raises(ModelError, match="outputs mean"):
        open_network(str(file), class_names=["a", "b"])


def test_embedded_runtime_starts_only_if_the_user_trusts_the_file(machine, place):
    file = place / "portable.plan"
    file.write_bytes(plan_of(machine, rows_model(), portable=True))
    names = {"class_names": ["a", "b", "c"]}
    with pytest.raises(ModelError, match="--engine-options host_code=1"):
        open_network(str(file), **names)
    network = open_network(str(file), **names, trusted=True)
    with pytest.raises(EngineError, match="its own runtime"):
        # This option is only for plans that we built.
        engines.open("trt", network, EngineOptions(own={"version_compatible": "1"}))
    with engines.open("trt", network, EngineOptions(own={"host_code": "1"})) as engine:
        assert len(network.head(engine.requests[0].infer(1), 0.5).boxes) == 1


@pytest.mark.parametrize("memory", PACKAGES)
def test_plan_is_read_on_the_gpu_that_runs_it(monkeypatch, place, memory):
    """There are two GPUs of different kinds. The plan was built for the second."""
    machine = install_fake_tensorrt(
        monkeypatch, 11, memory, gpus=(("Fake T4", (7, 5)), ("Fake L4", (8, 9)))
    )
    file = place / "rows.plan"
    with driver.current(1):
        file.write_bytes(plan_of(machine, rows_model()))
    names = {"class_names": ["a", "b", "c"]}
    network = open_network(str(file), **names, device="cuda:1")
    with engines.open(
        "trt", network, EngineOptions(device="cuda:1", device_memory=memory)
    ) as engine:
        assert engine.device == "cuda:1"
        assert {machine.device.owners[address] for address in machine.device.allocations} == {1}
        assert len(network.head(engine.requests[0].infer(1), 0.5).boxes) == 1
    assert (machine.device.depth, machine.device.number, machine.libcuda.retained) == (0, 0, 0)
    for device in ("auto", "cuda", "cuda:0"):
        with pytest.raises(ModelError, match="another GPU"):
            open_network(str(file), **names, device=device)
    assert (machine.device.depth, machine.libcuda.retained) == (0, 0)  # also after a failure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:1", r"x\.trt: .* there is no cuda:1; GPUs here: cuda:0 Fake L4"),
        ("cpu", r"x\.trt: a plan of TensorRT runs on a GPU: --device cpu is not a GPU; give cuda"),
        ("cuda:", "--device cuda: is not a GPU"),
        ("tpu", "--device tpu is not a GPU"),
    ],
)
def test_invalid_device_is_refused(machine, place, device, message):
    with pytest.raises(EngineError, match=message):
        open_network(plan_file(machine, place), cfg=str(place / "t.cfg"), device=device)


@pytest.mark.slow
def test_plan_runs_only_batch_sizes_in_its_range(machine, place):
    file = place / "rows.plan"
    file.write_bytes(plan_of(machine, rows_model(batch="batch"), batches=(1, 4)))
    for batch in (1, 3, 4):
        network = open_network(str(file), class_names=["a", "b", "c"], batch=batch)
        with engines.open("trt", network, EngineOptions(batch=batch)) as engine:
            assert [output.shape for output in engine.requests[0].infer(batch)] == [(batch, 2, 8)]
    with pytest.raises(ModelError, match=r"1 to 4, not for 5.*--batch 4"):
        open_network(str(file), class_names=["a", "b", "c"], batch=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"size": (64, 64)}, ModelError, "built for 32x32, not for --size 64x64; omit --size"),
        ({"batch": 2}, ModelError, "built for batch 1, not for 2: give --batch 1"),
        ({"random_seed": 1}, UsageError, "--random-weights 1: x.trt"),
        ({"class_names": ["a"]}, ModelError, "1 class name is given, but its head has 2 classes"),
        ({"cfg": "absent.cfg"}, ModelError, "absent.cfg"),
    ],
)
def test_options_that_do_not_fit_a_plan_are_refused(machine, place, options, error, message):
    file = plan_file(machine, place)
    with pytest.raises(error, match=message):
        open_network(file, **{"cfg": str(place / "t.cfg"), **options})


def test_cfg_for_a_model_that_needs_none_is_refused(place):
    with pytest.raises(UsageError, match=r"--cfg x\.cfg: .*t\.cfg"):
        open_network(str(place / "t.cfg"), random_seed=1, cfg="x.cfg")


def test_error_lists_the_tensors_of_a_plan_with_two_inputs(machine, place):
    file = place / "two.trt"
    tensors = "(float[1, 3, 2, 3] images, float[1] extra) => (float[1, 3, 2, 3] y)"
    file.write_bytes(plan_of(machine, parsed(f"{tensors} {{ [a] y = Mul(images, extra) }}")))
    with pytest.raises(ModelError, match="float32 1"):
        open_network(str(file))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a TensorRT plan: it begins with b''"),
        (b"ftrt", "it is damaged, or not a plan"),
        (b"\x89PNG....", r"not a TensorRT plan: it begins with b'\\x89PNG'"),
        (b'\x08\0\0\0{"a": 1}nope', "not a TensorRT plan"),
        # Bytes after an impossible length are not read as a header.
        *(
            (length.to_bytes(4, "little", signed=True) + b"{}ftrt", "not a TensorRT plan")
            for length in (-1, 0, 1, 2**31 - 1)
        ),
        *(
            (len(text).to_bytes(4, "little") + text + b"ftrt....", r"JSON header .* is damaged")
            for text in (b'{"a"', b"{" * 100_000, b'{"a": \xff}', b'{"a": [' + b"[" * 100_000)
        ),
    ],
)
def test_error_names_a_file_that_is_not_a_plan(machine, place, data, message):
    (place / "bad.trt").write_bytes(data)
    with pytest.raises(ModelError, match=message) as caught:
        open_network(str(place / "bad.trt"), cfg=str(place / "t.cfg"))
    assert "bad.trt" in str(caught.value)


def test_plan_without_a_driver_raises_engine_error(monkeypatch, place):
    machine = install_fake_tensorrt(monkeypatch)
    file = plan_file(machine, place)
    machine.fake.alive = False
    monkeypatch.setattr(
        driver, "absent", lambda: "no NVIDIA driver (libcuda.so.1 cannot be opened)"
    )
    with pytest.raises(EngineError, match=r"x\.trt: .*no NVIDIA driver"):
        open_network(file, cfg=str(place / "t.cfg"))
