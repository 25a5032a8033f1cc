"""The engine trt against a fake TensorRT that computes: both majors, all three kinds of device memory, no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from detector import engines
from detector.config import resolve
from detector.engines import trt
from detector.engines.base import EngineOptions
from detector.errors import EngineError, UsageError
from tests.conformance import test_engines as conformance
from tests.fakes.install import MAJORS, install
from tests.fakes.packages import PACKAGES
from tests.known_answers import plus_one

EVERY = [(major, memory) for major in MAJORS for memory in PACKAGES]


@pytest.fixture(params=EVERY, ids=[f"trt{major}-{memory}" for major, memory in EVERY])
def machine(request, monkeypatch):
    return install(monkeypatch, *request.param)


@pytest.fixture
def name(machine) -> str:
    return "trt"


@pytest.fixture
def computing(machine) -> str:
    return "trt"


@pytest.fixture
def case(machine) -> conformance.Case:
    return conformance.Case("trt", "fp32")


# What every engine must do, trt does on each of the fakes.
test_known_answers = conformance.test_known_answers_at_every_filling_of_a_batch
test_shapes_types_and_slots = conformance.test_shapes_types_and_slots
test_the_slot_is_untouched_by_infer = conformance.test_the_slot_is_untouched_by_infer
test_outputs_stay = conformance.test_outputs_stay_until_that_requests_next_infer
test_requests_in_several_threads_do_not_mix = conformance.test_requests_in_several_threads_do_not_mix
test_close_twice_and_infer_after_it = conformance.test_close_twice_and_infer_after_it
test_no_thread_is_left_behind = conformance.test_no_thread_is_left_behind
test_a_graph_that_is_no_graph_is_our_error = conformance.test_a_graph_that_is_no_graph_is_our_error
test_a_description_that_is_not_the_graphs = conformance.test_a_description_that_is_not_the_graphs_is_our_error
test_options_that_cannot_be_are_refused = conformance.test_options_that_cannot_be_are_refused
test_an_absent_library_names_its_cure = conformance.test_an_absent_library_names_its_cure


def opened(network=None, **options):
    network = network or plus_one(options.get("batch", 1))
    return engines.open("trt", network, EngineOptions(requests=1, **options))


def test_nothing_is_left_on_the_device_and_nobody_waited_for_all_of_it(machine):
    with opened() as engine:
        for seed in range(3):
            engine.requests[0].slot[:] = conformance.pictures(seed)
            engine.requests[0].infer(1)
        assert engine.device_ms() > 0
        assert machine.device.allocations
    assert machine.device.allocations == {}
    assert machine.device.depth == 0
    assert machine.libcuda.retained == 0


def test_each_request_has_a_stream_of_its_own(machine):
    with engines.open("trt", plus_one(), EngineOptions(requests=3, concurrency=2)) as engine:
        for request in engine.requests:
            request.infer(1)
    assert len(set(machine.fake.runs)) == 3
    assert 0 not in machine.fake.runs


def test_a_request_waits_for_its_own_stream_only(machine):
    """What another stream has to do is still waiting when this one's result is there."""
    with engines.open("trt", plus_one(), EngineOptions(requests=2)) as engine:
        first, second = engine.requests
        with first._memory.active():
            second._given.upload(second._stream)
        first.infer(1)
        other = machine.device.streams[second._stream.handle]
        assert len(other.waiting) == 1
        second.infer(1)


def test_nvtx_ranges_hold_names_only(machine):
    with opened() as engine:
        assert engine.requests[0].context.nvtx_verbosity is machine.trt.ProfilingVerbosity.LAYER_NAMES_ONLY


def test_the_device_is_the_one_asked_for(monkeypatch):
    machine = install(monkeypatch, 11, gpus=(("Fake L4", (8, 9)), ("Fake L4", (8, 9))))
    opened_on, open_it = [], trt.memory.opened
    monkeypatch.setattr(trt.memory, "opened", lambda name, device: opened_on.append(device) or open_it(name, device))
    with opened(device="cuda:1") as engine:
        assert engine.device == "cuda:1"
    assert opened_on == [1]
    assert machine.libcuda.retained == 0


def test_outputs_outlive_the_engine(machine):
    engine = opened()
    given = conformance.pictures(3)
    engine.requests[0].slot[:] = given
    outputs = engine.requests[0].infer(1)
    engine.close()
    conformance.assert_answers(outputs, given)


# Each of these breaks one thing that a GPU would not forgive. If the fake did not notice, it would be worth nothing.
def no_address(machine, monkeypatch):
    monkeypatch.setattr(machine.trt.IExecutionContext, "set_tensor_address", lambda *_: True)


def no_wait(machine, monkeypatch):
    """The read-back is looked at before the stream's event has happened."""
    from detector.engines.tensorrt_parts import cuda_python_memory, pycuda_memory, torch_memory

    for event in (pycuda_memory.PycudaEvent, torch_memory.TorchEvent, cuda_python_memory.CudaEvent):
        monkeypatch.setattr(event, "wait", lambda self: None)
        monkeypatch.setattr(event, "ms_since", lambda self, earlier: 1.0)


def buffer_class(machine):
    from detector.engines.tensorrt_parts import cuda_python_memory, pycuda_memory, torch_memory

    classes = {
        "pycuda": pycuda_memory.PycudaBuffer,
        "torch": torch_memory.TorchBuffer,
        "cuda-python": cuda_python_memory.CudaBuffer,
    }
    return classes[machine.memory]


def no_upload(machine, monkeypatch):
    monkeypatch.setattr(buffer_class(machine), "upload", lambda self, stream: None)


def no_download(machine, monkeypatch):
    monkeypatch.setattr(buffer_class(machine), "download", lambda self, stream: None)


def default_stream(machine, monkeypatch):
    run = machine.trt.IExecutionContext.execute_async_v3
    monkeypatch.setattr(machine.trt.IExecutionContext, "execute_async_v3", lambda self, stream_handle: run(self, 0))


def another_stream(machine, monkeypatch):
    """The run is put on a stream that nobody waits for."""
    run = machine.trt.IExecutionContext.execute_async_v3
    other = machine.device.stream().handle
    monkeypatch.setattr(machine.trt.IExecutionContext, "execute_async_v3", lambda self, handle: run(self, other))


def no_run(machine, monkeypatch):
    monkeypatch.setattr(machine.trt.IExecutionContext, "execute_async_v3", lambda self, handle: True)


def too_small(machine, monkeypatch):
    allocate = machine.device.allocate
    monkeypatch.setattr(machine.device, "allocate", lambda size: allocate(size - 1))


def outputs_swapped(machine, monkeypatch):
    """The addresses of the two outputs are exchanged: one of them is too small."""
    put = machine.trt.IExecutionContext.set_tensor_address
    names = {"0.conv": "1.conv", "1.conv": "0.conv"}
    monkeypatch.setattr(
        machine.trt.IExecutionContext,
        "set_tensor_address",
        lambda self, name, memory: put(self, names.get(name, name), memory),
    )


def tf32_left_on(machine, monkeypatch):
    monkeypatch.setattr(machine.trt.IBuilderConfig, "clear_flag", lambda self, flag: None)


BREAKAGES = [
    no_address, no_wait, no_upload, no_download, default_stream, another_stream, no_run, too_small, outputs_swapped,
    tf32_left_on,
]  # fmt: skip


def right(machine) -> bool:
    """Does the engine give the right answers? Errors of ours count as no."""
    given = conformance.pictures(7, 1, 64, 96)
    try:
        with opened(plus_one(1, 64, 96), device_memory=machine.memory) as engine:
            for _ in range(2):
                engine.requests[0].slot[:] = given
                conformance.assert_answers(engine.requests[0].infer(1), given)
    except (EngineError, AssertionError):
        return False
    return True


@pytest.mark.parametrize("breakage", [None, *BREAKAGES], ids=lambda b: b.__name__ if b else "whole")
@pytest.mark.parametrize(("major", "memory"), EVERY)
def test_what_a_gpu_would_not_forgive_is_noticed(monkeypatch, major, memory, breakage):
    machine = install(monkeypatch, major, memory)
    machine.memory = memory
    if breakage is not None:
        breakage(machine, monkeypatch)
    assert right(machine) is (breakage is None)


def test_pycudas_context_must_be_current_in_the_thread(monkeypatch):
    from contextlib import nullcontext

    from detector.engines.tensorrt_parts.pycuda_memory import Memory

    install(monkeypatch, 11, "pycuda")
    with opened() as engine, monkeypatch.context() as broken:
        broken.setattr(Memory, "active", lambda self: nullcontext())
        with pytest.raises(EngineError, match="none is current in this thread"):
            engine.requests[0].infer(1)
        broken.undo()  # close needs it again


def test_u8_into_anything_but_a_cast_is_refused_by_name(machine):
    network = plus_one()
    nodes = network.graph.graph.node
    nodes[0].op_type, nodes[1].op_type = "Transpose", "Cast"
    nodes[0].attribute[0].CopyFrom(nodes[1].attribute[0])
    del nodes[1].attribute[:]
    nodes[1].attribute.add(name="to", i=1, type=2)
    with pytest.raises(EngineError, match=r"Transpose at input\.cast: UINT8 can only be converted by a Cast"):
        opened(network)


def test_weak_typing_would_not_build(monkeypatch):
    machine = install(monkeypatch, 10)
    make = machine.trt.Builder.create_network
    monkeypatch.setattr(machine.trt.Builder, "create_network", lambda self, flags: make(self, 0))
    with pytest.raises(EngineError, match="weakly typed"):
        opened()


def test_an_operator_that_tensorrt_lacks_is_named_with_the_engines_that_can(machine):
    network = plus_one()
    network.graph.graph.node.add(op_type="Unique", name="9.odd", input=["0.conv"], output=["9.odd"])
    with pytest.raises(EngineError, match=r"Unique at 9\.odd: No importer .*; use --engine ort"):
        opened(network)


# Build and keep.


def built(machine, tmp_path, network=None, progress=None, **options):
    """What ``detect-video build`` does: one plan in a folder, with its facts."""
    from detector.variants import prepared

    own = options.pop("own", {})
    config = resolve(("test", {"engines_dir": str(tmp_path), "engine_options": [f"{k}={v}" for k, v in own.items()]}),
                     ("test", options))  # fmt: skip
    network = network or plus_one(config.runtime.batch)
    return prepared(network, "trt", config, lambda concurrency: concurrency, progress or (lambda *_: True))


def plans(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.plan"))


@pytest.fixture(params=MAJORS)
def eleven(request, monkeypatch):
    return install(monkeypatch, request.param, "cuda-python")


def test_a_plan_is_built_once_and_runs(eleven, tmp_path):
    first = built(eleven, tmp_path)
    again = built(eleven, tmp_path)
    assert len(eleven.fake.builds) == 1
    assert first.options.artefact == again.options.artefact
    assert again.build_s == 0
    assert Path(first.options.artefact).read_bytes()[:4] == b"ftrt"
    with engines.open("trt", first.network, first.options) as engine:
        given = conformance.pictures(1)
        engine.requests[0].slot[:] = given
        conformance.assert_answers(engine.requests[0].infer(1), given)
        assert engine.notes == (f"TensorRT {eleven.trt.__version__} on Fake L4, device memory by cuda-python",)


def test_the_manifest_holds_the_key_and_the_facts(eleven, tmp_path):
    from detector.artefacts import manifest_of

    manifest = manifest_of(built(eleven, tmp_path, precision="tf32").options.artefact)
    key = manifest["key"]
    assert key["tensorrt"] == eleven.trt.__version__
    assert (key["gpu"], key["capability"], key["cuda"], key["batches"]) == ("Fake L4", "8.9", 13, [1, 1, 1])
    assert key["precision"] == "tf32"
    assert manifest["facts"]["gpu"] == "Fake L4"


def test_another_gpu_means_another_plan_and_is_said(monkeypatch, tmp_path):
    built(install(monkeypatch, 11), tmp_path)
    other = install(monkeypatch, 11, gpus=(("Fake H100", (9, 0)),))
    ready = built(other, tmp_path)
    assert len(plans(tmp_path)) == 2
    assert "capability 8.9 is now 9.0; gpu Fake L4 is now Fake H100; built again" in " ".join(ready.notes)


def test_precision_is_the_graphs_and_tf32_a_flag(eleven, tmp_path):
    built(eleven, tmp_path)
    built(eleven, tmp_path, precision="tf32")
    assert [made["tf32"] for made in eleven.fake.builds] == [False, True]


def test_a_range_of_batches_is_one_plan_with_two_profiles_that_serves_each_of_them(eleven, tmp_path):
    built(eleven, tmp_path, own={"max_batch": 8})
    assert [profile["images"] for profile in eleven.fake.builds[0]["profiles"]] == [
        [[1, 2, 3, 3]] * 3,
        [[1, 2, 3, 3], [8, 2, 3, 3], [8, 2, 3, 3]],
    ]
    for batch in (1, 4, 8):
        ready = built(eleven, tmp_path, batch=batch)
        with engines.open("trt", ready.network, ready.options) as engine:
            assert engine.requests[0].context._profile == (0 if batch == 1 else 1)
            given = conformance.pictures(batch, batch)
            engine.requests[0].slot[:] = given
            conformance.assert_answers(engine.requests[0].infer(batch), given)
    assert len(eleven.fake.builds) == 1
    built(eleven, tmp_path, batch=9)
    assert len(eleven.fake.builds) == 2


def test_own_options_reach_the_builder(eleven, tmp_path):
    own = {"workspace_mb": 64, "level": 1, "version_compatible": 1, "hardware_compatible": "ampere", "detailed": 0}
    ready = built(eleven, tmp_path, own=own)
    made = eleven.fake.builds[0]
    assert made["limits"] == {"WORKSPACE": 64 << 20}
    assert made["level"] == 1
    assert made["flags"] == ["VERSION_COMPATIBLE"]
    assert made["hardware"] == "AMPERE_PLUS"
    assert not made["detailed"]
    with engines.open("trt", ready.network, ready.options) as engine:  # its own runtime may start: we built it
        assert {layer.precision for layer in engine.execution()} == {"unknown"}


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"max_batch": "x"}, "max_batch=x: a whole number from 1 on"),
        ({"min_batch": "2"}, "--batch 1 is outside of the plan's batches 2..1"),
        ({"opt_batch": "3"}, "opt_batch=3: outside of the plan's batches 1..1"),
        ({"hardware_compatible": "volta"}, "it is same or ampere"),
        ({"level": "6"}, "level=6: it is 0 to 5"),
        ({"detailed": "maybe"}, "detailed=maybe: 1 or 0 is wanted"),
        ({"colour": "1"}, "engine trt has no such option; it has min_batch"),
    ],
)
def test_own_options_that_cannot_be_are_refused(monkeypatch, own, message):
    install(monkeypatch)
    with pytest.raises(UsageError, match=message):
        engines.open("trt", plus_one(), EngineOptions(own=own))


def test_timings_are_kept_beside_the_plans_and_used_again(eleven, tmp_path):
    built(eleven, tmp_path)
    [timings] = tmp_path.glob("*.timings")
    assert timings.name.startswith("trt-Fake-L4-")
    built(eleven, tmp_path, precision="tf32")
    assert [made["timings_known"] for made in eleven.fake.builds] == [0, len(b"timings;")]
    timings.write_bytes(b"rubbish that is no cache")
    built(eleven, tmp_path, own={"level": 1})
    assert eleven.fake.builds[-1]["timings_known"] == 0


def test_progress_is_told_and_a_no_cancels(eleven, tmp_path):
    told = []
    built(eleven, tmp_path, progress=lambda *step: told.append(step) or True)
    assert told[:3] == [("Building", 0, 2), ("Building", 1, 2), ("Timing layers", 0, 4)]
    assert told[-1] == ("Building", 2, 2)
    with pytest.raises(EngineError, match="the build was cancelled; nothing was kept"):
        built(eleven, tmp_path, precision="tf32", progress=lambda doing, done, of: done < 1)
    assert len(plans(tmp_path)) == 1


def test_ctrl_c_while_building_passes_through(eleven, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(eleven, tmp_path, progress=interrupted)
    assert plans(tmp_path) == []


def test_a_batch_that_is_held_in_constants_names_the_node(eleven, tmp_path):
    network = plus_one(2)
    graph = network.graph.graph
    graph.initializer.add(name="pads", data_type=1, dims=[2, 3, 2, 3], float_data=[0.0] * 36)
    graph.node[2].output[0] = "shifted"
    graph.node.add(op_type="Add", name="2.add", input=["shifted", "pads"], output=["0.conv"])
    with pytest.raises(EngineError, match=r"node 2\.add \(Add\) holds the batch in its constants.*: --batch 2"):
        built(eleven, tmp_path, network, batch=2, own={"max_batch": 8})
    built(eleven, tmp_path, network, batch=2)  # for one batch it is as good as any


# Run.


def test_what_was_executed_is_told_by_node(eleven):
    with engines.open("trt", plus_one(), EngineOptions(precision="tf32")) as engine:
        layers = {layer.name: layer for layer in engine.execution()}
    assert layers["0.conv"].type == "CaskConvolution"
    assert layers["0.conv"].precision == "tf32"
    assert layers["input.cast"].precision == "fp32"
    assert layers["0.conv"].nodes == ("0.conv",)


def half(network):
    """The network in float16, as the conversion for --precision fp16 writes it: cast in, cast out."""
    from onnx import TensorProto, helper, numpy_helper

    graph = network.graph.graph
    graph.node[0].attribute[0].i = TensorProto.FLOAT16
    for tensor in graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float16"), tensor.name))
    for node in list(graph.node[2:]):
        name, node.output[0] = node.output[0], f"{node.name}.half"
        graph.node.append(helper.make_node("Cast", [node.output[0]], [name], name=f"{name}.cast", to=TensorProto.FLOAT))
    network.precision = "fp16"
    return network


def test_halves_are_run_as_halves_and_told(eleven):
    given = conformance.pictures(5)
    with opened(half(plus_one()), precision="fp16") as engine:
        engine.requests[0].slot[:] = given
        conformance.assert_answers(engine.requests[0].infer(1), given)  # small whole numbers are exact in float16
        layers = {layer.name: layer.precision for layer in engine.execution()}
        assert engine.precision == "fp16"
    assert layers["0.conv"] == layers["1.conv"] == "fp16"
    assert layers["0.conv.cast"] == "fp32"


@pytest.mark.parametrize(
    ("layer", "precision", "nodes"),
    [
        # TensorRT 10: format and type in one
        ({"Name": "0.conv + 0.act", "Inputs": [{"Format/Datatype": "Thirty-two wide channel vectorized row major "
          "Int8 format"}]}, "int8", ("0.conv", "0.act")),
        ({"Name": "x", "Inputs": [{"Format/Datatype": "Half"}], "Metadata": "[ONNX Layer: 0.conv]"}, "fp16",
         ("0.conv",)),
        # TensorRT 11: apart
        ({"Name": "x", "Inputs": [{"Format": "Row major linear", "Datatype": "BFloat16"}]}, "bf16", ()),
        ({"Name": "x", "Inputs": [{"DataType": "Float"}], "TacticName": "sm80_xmma_fprop_tf32f32"}, "tf32", ()),
        ({"Name": "r", "LayerType": "Reformat", "Inputs": [{"Datatype": "UInt8"}],
          "Outputs": [{"Datatype": "Half"}]}, "fp16", ()),
        ({"Name": "PWN(0.act)", "Inputs": []}, "unknown", ("0.act",)),
        ("0.conv + 0.act", "unknown", ("0.conv", "0.act")),  # built without details
    ],
)  # fmt: skip
def test_layers_of_both_layouts_of_the_inspector(layer, precision, nodes):
    from detector.engines.tensorrt_parts.inspection import layers_of

    [found] = layers_of({"Layers": [layer]}, {"0.conv", "0.act"})
    assert (found.precision, found.nodes) == (precision, nodes)


def test_out_of_memory_names_a_batch_that_fits(machine, monkeypatch):
    options = EngineOptions(batch=8, requests=4, device_memory="auto")
    machine.device.total = 9 << 20  # a context of the fake takes 1 MB a picture: one of four fits
    with pytest.raises(EngineError) as caught:
        engines.open("trt", plus_one(8), options)
    assert str(caught.value) == (
        "engine trt: out of GPU memory: plus_one at batch 8 in 4 requests needs more than 32 MB, 9 MB are free; "
        "try --batch 2, or --concurrency 1"
    )
    assert machine.device.allocations == {}
    machine.device.total = 1 << 10
    with pytest.raises(EngineError, match="try --concurrency 1, a smaller --size"):
        opened()


def test_out_of_memory_while_building_names_the_cure(eleven, tmp_path):
    limit = eleven.trt.IBuilderConfig.set_memory_pool_limit
    eleven.trt.IBuilderConfig.set_memory_pool_limit = lambda self, pool, size: limit(self, pool, 1)
    with pytest.raises(EngineError, match=r"out of memory; try --batch 2, or --engine-options workspace_mb=256"):
        built(eleven, tmp_path, batch=4, own={"workspace_mb": 1})


def spoiled(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoiled, "it is damaged, or no plan at all"),
        (lambda data: b"PK\3\4" + data[4:], r"no TensorRT plan: it begins with b'PK"),
        (lambda data: b"", "no TensorRT plan: it begins with b''"),
        (lambda data: data[:9], "it is damaged, or no plan at all"),
    ],
)
def test_a_corrupt_plan_is_refused_by_name(eleven, tmp_path, change, message):
    ready = built(eleven, tmp_path)
    file = Path(ready.options.artefact)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(EngineError, match=message) as caught:
        engines.open("trt", ready.network, ready.options)
    assert str(file) in str(caught.value)
    assert eleven.device.allocations == {}


def test_a_plan_of_another_gpu_or_version_is_refused_by_name(monkeypatch, tmp_path):
    ready = built(install(monkeypatch, 10), tmp_path)
    for major, gpus, message in (
        (10, (("Fake H100", (9, 0)),), "it was built for another GPU"),
        (11, (("Fake L4", (8, 9)),), "it was built by another version of TensorRT"),
    ):
        install(monkeypatch, major, gpus=gpus)
        with pytest.raises(EngineError, match=message) as caught:
            engines.open("trt", ready.network, ready.options)
        assert ready.options.artefact in str(caught.value)


# The driver comes first.


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ({"gpus": ()}, "the NVIDIA driver finds no GPU"),
        ({"error": 100}, "the NVIDIA driver finds no GPU"),
        ({"error": 999}, r"the NVIDIA driver does not start \(CUDA_ERROR_UNKNOWN, error 999\)"),
        (None, r"no NVIDIA driver \(libcuda\.so\.1 cannot be opened\)"),
    ],
)
def test_nothing_of_tensorrt_is_started_before_the_driver_answers(monkeypatch, driver, reason):
    machine = install(monkeypatch, 11)
    machine.fake.alive = False  # from here on Runtime and Builder would crash
    if driver is None:

        def none():
            raise OSError("libcuda.so.1: cannot open shared object file")

        monkeypatch.setattr(trt.driver, "library", none)
    else:
        machine.libcuda.gpus, machine.libcuda.error = (
            list(driver.get("gpus", machine.libcuda.gpus)),
            driver.get("error", 0),
        )
    assert engines.usable()["trt"] is not None
    for call in (lambda: engines.load("trt"), lambda: opened(), lambda: trt.build_key(plus_one(), EngineOptions())):
        with pytest.raises(EngineError, match=f"engine trt: {reason}"):
            call()
    name, _ = engines.choose()
    assert name != "trt"
    assert machine.fake.builds == []


def test_a_driver_that_is_too_old_for_the_package_is_said(monkeypatch):
    install(monkeypatch, 11, cuda=12040)
    monkeypatch.setattr(trt, "version", lambda package: "11.4.0")
    assert engines.usable()["trt"] == (
        "tensorrt 11.4.0 is made for CUDA 13, the driver serves 12.4: update the driver, or: pip install tensorrt-cu12"
    )


@pytest.mark.parametrize(
    ("gpus", "precision", "device", "reason"),
    [
        ((("L4", (8, 9)),), "fp32", "cuda:2", "there is no cuda:2: GPUs are cuda:0 L4"),
        ((("T4", (7, 5)),), "bf16", "auto", r"T4 has compute capability 7\.5; bf16 needs 8\.0"),
        ((("T4", (7, 5)),), "tf32", "cuda", r"tf32 needs 8\.0 \(Ampere\) or newer"),
        ((("V100", (7, 0)),), "fp16", "auto", r"TensorRT needs 7\.5 \(Turing\) or newer"),
        ((("T4", (7, 5)),), "fp16", "auto", None),
        ((("T4", (7, 5)), ("L4", (8, 9))), "bf16", "cuda:1", None),
    ],
)
def test_what_the_gpu_cannot_do_is_refused_with_the_reason(monkeypatch, gpus, precision, device, reason):
    install(monkeypatch, 11, gpus=gpus)
    if reason is None:
        assert engines.graph_wanted("trt", precision, device) == trt.PRECISIONS[precision]
        return
    with pytest.raises(EngineError, match=reason):
        engines.graph_wanted("trt", precision, device)


def test_auto_takes_trt_where_it_is_usable_and_not_on_the_cpu(monkeypatch):
    install(monkeypatch, 11)
    assert engines.choose()[0] == "trt"
    assert engines.choose(device="cuda:0")[0] == "trt"
    assert engines.choose(device="cpu")[0] == "ort"


# Device memory.


def test_auto_memory_takes_torch_when_it_is_loaded_then_pycuda_then_cuda_python(monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(trt.memory, "_installed", lambda name: name in there)
    monkeypatch.setattr(trt.memory, "_torch_has_cuda", lambda: True)
    there = {"pycuda", "cuda-python", "torch"}
    for wanted in ("pycuda", "cuda-python", "torch"):
        assert trt.memory.chosen("auto") == wanted
        there.discard(wanted)
    with pytest.raises(EngineError, match=r"nothing to allocate GPU memory with; install one: pip install"):
        trt.memory.chosen("auto")
    with pytest.raises(EngineError, match=r"--device-memory pycuda: not installed; install it with: pip install"):
        trt.memory.chosen("pycuda")
    with pytest.raises(UsageError, match="there are auto, pycuda, torch, cuda-python"):
        trt.memory.chosen("opencl")
    monkeypatch.setitem(sys.modules, "torch", object())
    there = {"pycuda", "torch"}
    assert trt.memory.chosen("auto") == "torch"
    monkeypatch.setattr(trt.memory, "_torch_has_cuda", lambda: False)  # the CPU build
    assert trt.memory.chosen("auto") == "pycuda"
