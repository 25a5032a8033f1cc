"""torch in reduced precision: casts, layers that stay float32, kernels, refusals and messages."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.errors import EngineError, ModelError, UsageError
from detector.core.models.graph.halves import convert_to_halves, sensitive_nodes
from tests.engines.quantised import quantised, small_network
from tests.known_answers import plus_one
from tests.networks import open_network

torch = pytest.importorskip("torch", reason="machine: torch is not installed")

from detector.core.engines.torch import abilities, halves  # noqa: E402


@pytest.fixture(scope="module")
def network():
    return open_network("yolov4-tiny-person-vehicle", random_seed=7, size=(64, 96))


ALL = EngineOptions(precision="bf16", own={"bf16": "all"})


def with_decoding():
    """Return plus_one with a third output, (x + 1) * 0.001, after the last convolution."""
    from onnx import TensorProto, helper, numpy_helper

    network = plus_one()
    graph = network.graph.graph
    graph.node.append(helper.make_node("Mul", ["0.conv", "small"], ["2.decoded"], name="2.decoded"))
    graph.initializer.append(numpy_helper.from_array(np.array(0.001, np.float32), "small"))
    graph.output.append(helper.make_tensor_value_info("2.decoded", TensorProto.FLOAT, (1, 3, 2, 3)))
    return replace(network, output_shapes=[*network.output_shapes, (1, 3, 2, 3)])


def test_layers_after_the_last_convolution_stay_float32():
    with engines.open("torch", with_decoding(), ALL) as engine:
        assert engine.module.get_submodule("0.conv").weight.dtype == torch.bfloat16
        assert engine.module.get_buffer("constants.small.value").dtype == torch.float32
        layers = {layer.name: layer.precision for layer in engine.execution()}
        assert layers["input.cast"] == "bf16"
        assert layers["2.decoded"] == "fp32"
        request = engine.requests[0]
        request.slot[:] = 99
        decoded = request.infer(1)[2].ravel()[0]
        assert decoded == np.float32(100) * np.float32(0.001), "must not be rounded to bf16"


def test_constant_read_by_bf16_and_float32_layers_is_kept_in_both_types():
    from onnx import helper

    network = with_decoding()
    graph = network.graph.graph
    graph.node.insert(
        2, helper.make_node("Mul", ["input.nchw", "small"], ["input.scaled"], name="input.scaled")
    )
    graph.node[3].input[0] = "input.scaled"
    with engines.open("torch", network, ALL) as engine:
        assert engine.module.get_buffer("constants.small.value").dtype == torch.float32
        assert engine.module.get_buffer("constants.small.value_bfloat16").dtype == torch.bfloat16
        engine.requests[0].slot[:] = 0
        np.testing.assert_array_equal(engine.requests[0].infer(1)[0], 1)


@pytest.mark.slow
def test_option_bf16_all_runs_every_layer_in_bf16(network):
    with engines.open("torch", network, ALL) as engine:
        convolutions = {layer.precision for layer in engine.execution() if layer.type == "Conv2d"}
        others = {layer.precision for layer in engine.execution() if layer.type != "Conv2d"}
    assert convolutions == {"bf16" if abilities.has_bf16() else "fp32"}
    assert others == {"bf16"}


@pytest.mark.slow
def test_sensitive_layers_stay_float32_in_mixed_bf16(network):
    """In yolov4-tiny, the first layers are sensitive: as many as have at most 20% of all MACs."""
    with engines.open("torch", network, EngineOptions(precision="bf16")) as engine:
        layers = {layer.name: layer.precision for layer in engine.execution()}
        sensitive = sensitive_nodes(network.graph)
        reduced = "bf16" if abilities.has_bf16() else "fp32"
        convolutions = {name: kind for name, kind in layers.items() if name.endswith("conv")}
        assert convolutions == {
            name: "fp32" if name in sensitive else reduced for name in convolutions
        }
        assert {"0.conv", "1.conv"} <= sensitive
        assert len(sensitive.intersection(convolutions)) < len(convolutions) / 2
        assert {layers[name] for name in sensitive} == {"fp32"}
        mixed_outputs = [output.copy() for output in engine.requests[0].infer(1)]
    with engines.open("torch", network) as engine:
        for plain, mixed in zip(engine.requests[0].infer(1), mixed_outputs, strict=True):
            assert 0 < np.abs(plain - mixed).mean() < 0.02 * np.abs(plain).mean()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_quantised_file_is_not_converted_to_half_precision(monkeypatch, tmp_path, precision):
    monkeypatch.setattr(abilities, "has_fp16", lambda: True)
    network = replace(quantised(small_network(tmp_path), tmp_path), precision="fp32")
    message = (
        f"small cannot become {precision}: the file is already quantised; --precision fp32 runs it"
    )
    with pytest.raises(EngineError, match=f"engine torch: {message}"):
        engines.open("torch", network, EngineOptions(precision=precision, device="cpu"))
    with pytest.raises(ModelError, match=message):
        convert_to_halves(network, precision)


def test_integers_are_not_cast_to_bfloat16():
    """A bf16 layer may read indices, which must stay integers."""
    indices = halves._floats_to(torch.arange(3), torch.bfloat16)
    assert indices.dtype == torch.int64
    assert halves._floats_to(torch.ones(3), torch.bfloat16).dtype == torch.bfloat16


KERNELS = """
from detector.core import engines
from detector.core.engines.base import EngineOptions
from tests.networks import open_network
network = open_network("yolov4-tiny-person-vehicle", random_seed=7, size=(64, 96))
options = EngineOptions(precision="bf16", threads=1, own={"bf16": "all"})
with engines.open("torch", network, options) as engine:
    engine.requests[0].infer(1)
"""


@pytest.mark.slow
def test_onednn_log_shows_bf16_kernels():
    """All 21 convolutions read and write bf16 in the channels-last layout."""
    if not (torch.backends.mkldnn.is_available() and abilities.has_bf16()):
        pytest.skip("machine: this CPU has no bf16, or this torch has no oneDNN")
    environment = {**os.environ, "ONEDNN_VERBOSE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    log = subprocess.run(
        [sys.executable, "-c", KERNELS], env=environment, capture_output=True, text=True, check=True
    )
    executed = [line.split(",") for line in log.stdout.splitlines() if ",exec," in line]
    convolutions = [fields for fields in executed if "convolution" in fields]
    assert len(convolutions) == 21
    for fields in convolutions:
        source, *_, result = [
            part for field in fields if field.startswith("src:") for part in field.split()
        ]
        assert source.startswith("src:bf16:")
        assert result.startswith("dst:bf16:")
        assert "acdb" in source  # oneDNN's name for NHWC
        assert "acdb" in result


@pytest.mark.slow
def test_bf16_runs_with_a_note_on_a_cpu_without_bf16(monkeypatch, network):
    monkeypatch.setattr(abilities, "cpu_facts", lambda: {"avx2", "avx512f"})
    with engines.open("torch", network, EngineOptions(precision="bf16")) as engine:
        assert "no bf16 arithmetic" in " ".join(engine.notes)
        assert {layer.precision for layer in engine.execution() if layer.type == "Conv2d"} == {
            "fp32"
        }
        assert all(np.isfinite(output).all() for output in engine.requests[0].infer(1))


@pytest.mark.parametrize(
    ("precision", "has_fp16", "reason"),
    [
        (
            "fp16",
            False,
            r"engine torch: fp16 cannot run here: this CPU has no fp16 arithmetic "
            r"\(AVX512-FP16",
        ),
        ("tf32", True, "engine torch: tf32 cannot run here: TF32 needs an NVIDIA GPU"),
    ],
)
def test_unsupported_precision_is_refused_with_the_reason(monkeypatch, precision, has_fp16, reason):
    monkeypatch.setattr(abilities, "has_fp16", lambda: has_fp16)
    for call in (
        lambda: engines.graph_precision_for("torch", precision, "cpu"),
        lambda: engines.open("torch", plus_one(), EngineOptions(precision=precision, device="cpu")),
    ):
        with pytest.raises(EngineError, match=reason):
            call()


@pytest.mark.slow
def test_fp16_runs_on_a_cpu_with_fp16(monkeypatch, network):
    monkeypatch.setattr(abilities, "has_fp16", lambda: True)
    with engines.open("torch", network, EngineOptions(precision="fp16", device="cpu")) as engine:
        assert {layer.precision for layer in engine.execution()} == {"fp16"}
        assert all(np.isfinite(output).all() for output in engine.requests[0].infer(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "own", [{"channels_last": "0"}, {"channels_last": "off"}, {"channels_last": "1"}, {}]
)
def test_memory_layout_does_not_change_results(network, own):
    given = np.random.default_rng(5).integers(0, 256, network.input_shape, np.uint8)
    with (
        engines.open("torch", network) as usual,
        engines.open("torch", network, EngineOptions(own=own)) as engine,
    ):
        weight = engine.module.get_submodule("29.conv").weight
        last = own.get("channels_last", "1") == "1"
        assert weight.is_contiguous(
            memory_format=torch.channels_last if last else torch.contiguous_format
        )
        for one in (usual, engine):
            one.requests[0].slot[:] = given
        for output, expected in zip(
            engine.requests[0].infer(1), usual.requests[0].infer(1), strict=True
        ):
            np.testing.assert_allclose(output, expected, atol=1e-4)


def test_channels_last_skips_constants_that_are_not_4d():
    """torch refuses the layout channels_last for a constant of five dimensions."""
    from onnx import TensorProto, helper, numpy_helper

    network = plus_one()
    graph = network.graph.graph
    graph.node.append(helper.make_node("Mul", ["0.conv", "five"], ["2.mul"], name="2.mul"))
    graph.initializer.append(numpy_helper.from_array(np.ones((1, 1, 1, 1, 1), np.float32), "five"))
    graph.output.append(helper.make_tensor_value_info("2.mul", TensorProto.FLOAT, (1, 1, 3, 2, 3)))
    network = replace(network, output_shapes=[*network.output_shapes, (1, 1, 3, 2, 3)])
    with engines.open("torch", network) as engine:
        assert engine.requests[0].infer(1)[2].shape == (1, 1, 3, 2, 3)


@pytest.mark.parametrize(
    ("own", "precision", "message"),
    [
        ({"compile": "maybe"}, "fp32", "--engine-options compile=maybe: give 1 or 0"),
        ({"graphs": "1"}, "fp32", "--engine-options graphs: .*GPU"),
        ({"stream": "1"}, "fp32", "engine torch has no such option; its options: channels_last"),
        ({"bf16": "some"}, "bf16", "--engine-options bf16=some: give mixed or all"),
    ],
)
def test_invalid_own_options_are_usage_errors(own, precision, message):
    with pytest.raises(UsageError, match=message):
        engines.open("torch", plus_one(), EngineOptions(own=own, precision=precision, device="cpu"))


def test_compile_without_a_compiler_is_refused(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EngineError, match="CXX=no-such-compiler"):
        engines.open("torch", plus_one(), EngineOptions(own={"compile": "1"}, device="cpu"))


COMPILED = """
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from detector.core import engines
from detector.core.engines.base import EngineOptions
from tests.known_answers import plus_one
from torch._dynamo.utils import counters
own = {"compile": "1", "bf16": "all"}
given = np.arange(18, dtype=np.uint8).reshape(1, 2, 3, 3)
for precision in ("fp32", "bf16"):
    options = EngineOptions(own=own, threads=1, concurrency=2, device="cpu", precision=precision)
    with engines.open("torch", plus_one(), options) as engine:
        for request in engine.requests:
            request.slot[:] = given
        with ThreadPoolExecutor(2) as pool:
            for outputs in pool.map(lambda request: request.infer(1), engine.requests):
                np.testing.assert_array_equal(outputs[0], given.transpose(0, 3, 1, 2) + 1.0)
        print([layer.precision for layer in engine.execution()])
print(counters["stats"]["unique_graphs"])
"""


# Turn off the features that save time only with many kernels: parallel compilers, precompiled
# headers, and a trial compilation for each set of the CPU's vector instructions.
COMPILED_ONCE = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
}


@pytest.mark.slow
@pytest.mark.nightly  # the compiler takes a quarter of a minute
def test_compiled_network_gives_the_same_answers_in_threads(tmp_path):
    """Use another process, since the compiler emits deprecation warnings and leaves threads
    running. Both precisions share that process, since importing the compiler takes seconds."""
    try:
        abilities.check_compiler(torch.device("cpu"))
    except EngineError as error:
        pytest.skip(f"machine: {error}")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        **COMPILED_ONCE,
    }
    done = subprocess.run(
        [sys.executable, "-c", COMPILED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # A CPU without bf16 arithmetic runs the two convolutions in float32. The engine reports this.
    multiplied = "bf16" if abilities.has_bf16() else "fp32"
    assert done.stdout.splitlines() == [
        str(["fp32"] * 4),
        str(["bf16", "bf16", multiplied, multiplied]),
        "2",  # each precision is compiled once, while its engine is opened
    ]
