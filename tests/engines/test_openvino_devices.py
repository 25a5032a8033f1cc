"""Intel's devices, tested on a CPU: OpenVINO's virtual devices, and a fake GPU. The fake GPU is
the CPU's plugin under the name "GPUCPU", as OpenVINO accepts only names that contain "CPU".
"""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from detector.core import engines
from detector.core.config.levels import resolve_config
from detector.core.engines import _ranking
from detector.core.engines._built import store
from detector.core.engines.base import EngineOptions
from detector.core.engines.openvino import (
    OpenvinoEngine,
    compiled,
    compiling,
    devices,
    hardware,
    layers,
)
from detector.core.errors import EngineError, UsageError
from detector.core.run.detect import detect
from detector.core.run.prepare import prepare_network
from detector.core.terminal.brief import _rates_line
from detector.lab.report.page import page
from detector.lab.session.read import read_session
from tests.conftest import CHECKOUT
from tests.engines.quantised import CONVOLUTIONS, pictures, quantised, small_network
from tests.networks import need_engine

need_engine("openvino", allow_module_level=True)


@pytest.fixture
def gpu(monkeypatch):
    engines.load_library("openvino")
    import openvino

    [plugin] = Path(openvino.__file__).parent.glob("libs/*openvino_intel_cpu_plugin*")
    real = openvino.Core

    def core():
        instance = real()
        instance.register_plugin(str(plugin), "GPUCPU")
        return instance

    monkeypatch.setattr(openvino, "Core", core)
    monkeypatch.setitem(devices.NAMES, "gpu", "GPUCPU")
    devices.open_core.cache_clear()
    yield
    devices.open_core.cache_clear()


def run(network, **options):
    with engines.open("openvino", network, EngineOptions(**options)) as engine:
        engine.requests[0].slot[:] = pictures(network, 3)
        [output] = [output.copy() for output in engine.requests[0].infer(1)]
        return output, types_of(engine), engine


def types_of(engine):
    return {node: layer.precision for layer in engine.execution() for node in layer.nodes}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8"])
def test_virtual_device_gives_the_results_of_the_real_device(tmp_path, gpu, precision):
    try:
        engines.graph_precision_for("openvino", precision)
    except EngineError as error:
        pytest.skip(f"machine: {error}")
    network = small_network(tmp_path)
    network = quantised(network, tmp_path) if precision == "int8" else network
    expected, types, plain = run(network, precision=precision)
    own = {"through": "hetero"}
    for device, name in (("cpu", "HETERO:CPU"), ("gpu", "HETERO:GPUCPU,CPU")):
        output, ran, engine = run(network, precision=precision, device=device, own=own)
        np.testing.assert_array_equal(output, expected)
        assert ran == types
        assert (engine.device, engine.device_name == "") == (device, device == "cpu")
        assert f"{name} runs on {devices.NAMES[device]}" in engine.notes[0]
        assert len(engine.notes) == 1 + len(plain.notes)


def test_the_layers_of_a_virtual_device_are_timed(tmp_path, monkeypatch):
    network = small_network(tmp_path)
    arguments = (network, EngineOptions(own={"through": "hetero"}), [pictures(network, 1)], 1)
    timed = engines.time_layers("openvino", *arguments)
    assert {node for layer in timed.layers for node in layer.nodes} >= set(CONVOLUTIONS)
    monkeypatch.setattr(layers, "_name", lambda mean: "another")
    with pytest.raises(EngineError, match=r"no layer times: the device reports none"):
        engines.time_layers("openvino", *arguments)


@pytest.fixture
def prepare(tmp_path):
    network = small_network(tmp_path)
    config = resolve_config(None, {"device": "gpu", "engines_dir": str(tmp_path / "e")})
    return lambda: prepare_network(network, "openvino", config, lambda most: most)


def test_compiled_model_is_kept_and_reused_unless_changed(gpu, prepare, monkeypatch):
    ready = prepare()
    artefact = ready.artefact
    path = Path(artefact.path)
    assert (artefact.built, path.suffix, path.stat().st_mode & 0o777) == (True, ".blob", 0o600)
    assert store.read_manifest(path)["facts"]["device"] == "gpu"
    expected, types, _ = run(ready.network)
    with engines.open("openvino", ready.network, ready.options) as engine:
        assert (engine.device, engine.concurrency, engine.threads) == ("gpu", 2, 1)
        engine.requests[0].slot[:] = pictures(ready.network, 3)
        np.testing.assert_array_equal(engine.requests[0].infer(1)[0], expected)
        assert types_of(engine) == types
    assert not prepare().artefact.built
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    again = prepare()
    assert again.artefact.built
    assert "content does not match" in again.notes[0]
    monkeypatch.setattr(compiled, "loaded_drivers", lambda: {"/usr/lib/libigdrcl.so": [1, 2]})
    other = prepare()
    assert (other.artefact.built, other.artefact.path != str(path)) == (True, True)
    assert "libigdrcl.so" in other.notes[0]


def test_error_for_an_unloadable_model_contains_its_path_and_the_remedy(gpu, prepare):
    ready = prepare()
    Path(ready.artefact.path).write_bytes(b"not a model")  # changed after its content was checked
    with pytest.raises(EngineError, match=r"failed to load .*\.blob.* cache=0\): ") as caught:
        engines.open("openvino", ready.network, ready.options)
    assert "Exception from" not in str(caught.value)


@pytest.mark.parametrize(
    ("device", "own", "kept"),
    [
        ("cpu", {}, False),
        ("cpu", {"cache": "1", "through": "hetero"}, True),
        ("gpu", {"cache": "0"}, False),
        ("gpu:1", {"through": "hetero"}, True),
        ("gpu", {"cache": "2"}, None),
    ],
)
def test_compiled_models_are_kept_for_gpus_or_if_requested(device, own, kept):
    options, is_wanted = EngineOptions(device=device, own=own), OpenvinoEngine.artefact.is_wanted
    if kept is None:
        with pytest.raises(UsageError, match=r"--engine-options cache="):
            is_wanted(options)
    else:
        assert is_wanted(options) is kept


def test_drivers_are_found_in_the_memory_map_of_the_process(tmp_path):
    driver, maps = tmp_path / "libze_intel_gpu.so.1", tmp_path / "maps"
    driver.write_bytes(b"12345")
    line = "7f00-7f01 r-xp 00000000 08:01 42   "
    maps.write_text(f"{line}{driver}\n{line}{tmp_path}/libc.so.6\n{line[:20]}\n")
    assert {path: facts[0] for path, facts in compiled.loaded_drivers(maps).items()} == {
        str(driver): 5
    }
    assert compiled.loaded_drivers(tmp_path / "none") == {}


def test_gpu_is_offered_but_auto_does_not_choose_it(gpu, tmp_path):
    [offer, absent] = engines.find("openvino").offers()
    assert (offer.option, offer.usable, "fp32" in offer.precisions) == ("--device gpu", True, True)
    assert (absent.option, absent.usable) == ("--device npu", False)
    assert _ranking.choose_by_rank("fp32", "gpu")[0] == "openvino"
    network = small_network(tmp_path)
    assert run(network)[2].device == "cpu"
    assert run(network, device="gpu:0")[2].device == "gpu"
    with pytest.raises(EngineError, match=r"--device gpu:1: OpenVINO lists gpu$"):
        engines.graph_precision_for("openvino", "fp32", "gpu:1")


def test_a_precision_that_the_device_does_not_list_is_refused(gpu, monkeypatch):
    monkeypatch.setattr(devices, "precisions_of", lambda core, own: ("fp16", "int8"))
    with pytest.raises(EngineError, match=r"runs fp16 and int8; use --precision fp16"):
        engines.graph_precision_for("openvino", "fp32", "gpu")
    assert engines.graph_precision_for("openvino", "int8", "gpu") == "int8-u8"
    assert engines.graph_precision_for("openvino", "int8", "cpu") == "int8-u8-front"


@pytest.mark.parametrize(
    ("precision", "hint", "actual", "note"),
    [
        ("fp32", "f32", "f32", ""),
        ("fp32", "f32", "f16", "fp32 was requested, but OpenVINO on Arc runs fp16"),
        ("int8", "f16", "f16", "int8 leaves in float run in fp16 on Arc"),
        ("int8", "bf16", "f32", "bf16 for float layers was requested, .* runs fp32"),
        ("fp16", "f16", None, "does not report in which types Arc computes"),
    ],
)
def test_executed_type_is_read_from_the_compiled_model(precision, hint, actual, note):
    def unsupported():
        raise RuntimeError("not supported")

    actual_type = SimpleNamespace(get_type_name=(lambda: actual) if actual else unsupported)
    facts = {"EXECUTION_DEVICES": ["GPU.1"], "INFERENCE_PRECISION_HINT": actual_type}
    model = SimpleNamespace(get_property=facts.get, get_runtime_model=unsupported)
    target = devices.Target("gpu:1", "GPU.1", "GPU.1", "Arc")
    compilation = compiling.Compilation(SimpleNamespace(details={}), target, hint, set(), 2, 1)
    first, *rest = compiling.notes_of(model, compilation, precision)
    assert first.endswith("GPU.1 runs on GPU.1; GPU.1 is Arc")
    assert [bool(engines.re.search(note, line)) for line in rest] == [True] * (note != "")


@pytest.mark.parametrize("kind", ["gpu", "npu"])
def test_error_for_a_missing_device_says_what_to_install(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(hardware, "DEV", tmp_path / "dev")
    monkeypatch.setattr(hardware, "SYS", tmp_path / "sys")
    about = hardware.KINDS[kind]
    assert about.packages in hardware.why_missing(kind)
    assert devices.unused_device() is None
    place = tmp_path / "sys/bus/pci/devices/0000:00:02.0"
    place.mkdir(parents=True)
    (place / "vendor").write_text("0x8086\n")
    (place / "class").write_text(f"{about.pci}0000\n")
    assert about.module in hardware.why_missing(kind)
    file = tmp_path / "dev" / about.files.replace("*", "0")
    link = tmp_path / "sys/class" / about.sys_class / file.name
    for path in (file.parent, link):
        path.mkdir(parents=True)
    file.touch()
    (link / "device").symlink_to(place)
    assert f"driver for it; install or update {about.packages}" in hardware.why_missing(kind)
    assert f"--device {kind}" in devices.unused_device()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert f"no permission for {file}; add your account to its group" in hardware.why_missing(kind)
    (place / "vendor").write_text("0x10de\n")
    assert f"no Intel {kind.upper()}" in hardware.why_missing(kind)


@pytest.mark.parametrize(
    ("name", "device", "error", "message"),
    [
        ("ort", "hetero:gpu,cpu", UsageError, "--device gpu; with .* through=hetero"),
        ("ort", "multi:npu,gpu", UsageError, "--device npu; with .* through=hetero"),
        ("openvino", "xpu", UsageError, "gpu .Intel. and npu"),
        ("ort", "gpu", EngineError, "use --engine openvino; NVIDIA's GPUs are --device cuda$"),
        ("openvino", "cuda:0", EngineError, "not run on cuda; it runs on cpu, gpu, npu; .* ort or"),
    ],
)
def test_error_for_an_unsupported_device_gives_advice(name, device, error, message):
    with pytest.raises(error, match=message):
        engines.graph_precision_for(name, "fp32", device)


@pytest.mark.slow
def test_run_and_report_show_the_device_name(gpu, tmp_path):
    flags = {"device": "gpu", "engine": "openvino", "precision": "fp32", "frames": 3}
    where = {"output": f"{tmp_path}/", "run_dir": f"{tmp_path}/run", "engines_dir": f"{tmp_path}/e"}
    config = resolve_config(None, {**flags, **where, "no_video": True})
    assert detect([str(CHECKOUT / "videos/street.mp4")], config).exit_code == 0
    session = read_session(tmp_path / "run")
    name = session.document.device_name
    assert (session.document.device, name != "") == ("gpu", True)
    assert list(tmp_path.glob("e/street-*-openvino-fp32-*.blob"))
    assert "openvino fp32 on gpu" in str(_rates_line(session.document))
    assert f"network on gpu {name}" in page(session).decode()
