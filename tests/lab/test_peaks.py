"""Peak rates of this machine: measuring, storing and checking them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from detector.core import engines
from detector.core.config.levels import merge_levels
from detector.core.engines.base import EngineOptions
from detector.core.models.graph.qdq import original_names
from detector.core.session.codec import to_json
from detector.lab import peaks
from detector.lab.peaks import PeakSetup, caches, kernels, records
from detector.lab.session.network import Bandwidth, Peaks, keep_higher_peaks

ORT = PeakSetup("ort", "fp32", 1, {})
CURVE = tuple(
    Bandwidth(bytes=size, threads=1, gbytes_s=rate, spread=0.1)
    for size, rate in ((1000, 80.0), (10_000, 100.0), (100_000, 40.0), (1_000_000, 10.0))
)
SOME = Peaks(gflops_s={"fp32": 5.0}, threads=1, bandwidth_gbytes_s=10.0, bandwidths=CURVE)


@pytest.fixture
def config(tmp_path):
    return merge_levels(("test", {"engines_dir": str(tmp_path / "engines")}))


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(kernels, "BUDGET_S", 0.01)
    monkeypatch.setattr(caches, "EACH_S", 0.001)
    monkeypatch.setattr(caches, "LARGEST", 1 << 18)


@pytest.mark.parametrize(
    ("touched", "rate"),
    [(0, 100.0), (1000, 100.0), (10_001, 40.0), (1_000_000, 10.0), (10**9, 10.0)],
)
def test_bandwidth_depends_on_the_working_set(touched, rate):
    """For a smaller working set, the bandwidth is at least as high as for a larger one."""
    assert SOME.bandwidth_at(touched) == rate
    assert replace(SOME, bandwidths=()).bandwidth_at(touched) == 10.0


def test_bandwidth_of_another_number_of_threads_is_ignored():
    wide = Bandwidth(bytes=10**9, threads=2, gbytes_s=500.0, spread=0.0)
    combined = replace(SOME, bandwidths=(*CURVE, wide))
    assert combined.bandwidth_at(100) == 100.0
    assert replace(combined, threads=2).bandwidth_at(100) == 500.0


def test_higher_peaks_of_two_measurements_are_kept():
    slow = replace(CURVE[0], gbytes_s=1.0)
    other = replace(SOME, gflops_s={"fp32": 4.0, "int8": 9.0}, bandwidths=(slow, *CURVE[1:]))
    for combined in (keep_higher_peaks(SOME, other), keep_higher_peaks(other, SOME)):
        assert combined.gflops_s == {"fp32": 5.0, "int8": 9.0}
        assert combined.bandwidths[0].gbytes_s == 80.0


def test_measured_sizes_double_up_to_the_memory_limit(monkeypatch):
    assert caches.list_sizes(1 << 16) == [1 << 14, 1 << 15, 1 << 16]
    monkeypatch.setattr(caches, "machine_bytes", lambda: caches.MEMORY_PARTS << 15)
    assert caches.list_sizes(1 << 30) == [1 << 14, 1 << 15]


@pytest.mark.parametrize("threads", [1, 3])
def test_bandwidth_is_measured_for_each_number_of_threads(threads, short, monkeypatch):
    curve = caches.measure(threads)
    assert {one.threads for one in curve} == ({1} if threads == 1 else {1, 2, 3})
    assert all(one.gbytes_s > 0 and one.spread >= 0 for one in curve)
    combined = [("L2", 1 << 16, False), ("L3", 1 << 19, True)]  # L2 per core, L3 shared
    monkeypatch.setattr(caches, "read_cache_sizes", lambda: combined)
    levels = [(one.name, one.bytes) for one in caches.find_levels(curve, threads)]
    assert levels == [("L2", threads << 16), ("L3", 1 << 19), ("memory", curve[-1].bytes)]


def test_cache_sizes_are_read_from_sysfs(tmp_path):
    for at, (kind, level, size, cores) in enumerate(
        [
            ("Data", 1, "48K", "0"),
            ("Instruction", 1, "32K", "0"),
            ("Unified", 2, "1M", "0"),
            ("Unified", 3, "x", "0-7"),
            ("Unified", 3, "32M", "0-7"),
        ]
    ):
        folder = tmp_path / f"index{at}"
        folder.mkdir()
        for name, value in zip(
            ("type", "level", "size", "shared_cpu_list"), (kind, level, size, cores), strict=True
        ):
            (folder / name).write_text(f"{value}\n")
    assert caches.read_cache_sizes(tmp_path) == [
        ("L1", 48 << 10, False),
        ("L2", 1 << 20, False),
        ("L3", 32 << 20, True),
    ]
    assert caches.read_cache_sizes(Path(tmp_path, "none")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "precision"),
    [("ort", "int8"), ("openvino", "int8"), ("openvino", "bf16"), ("torch", "fp32")],
)
def test_convolutions_of_an_engine_are_timed(engine, precision, short):
    if engines.why_unusable()[engine] is not None or engines.find(engine).refusal(precision, "cpu"):
        pytest.skip("machine: the engine is not here")
    peaks_found = kernels.measure(engine, precision, 1, {})
    if precision == "bf16":
        from openvino import Core

        if "BF16" not in Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            precision = "fp32"  # OpenVINO runs fp32 instead if the CPU lacks bf16
    # No reorder, pool or DequantizeLinear node counts as having done the work of a convolution.
    assert set(peaks_found) == {"fp32", precision}
    assert all(str(engines.find(engine).library) in one.by for one in peaks_found.values())
    # If a layer seems faster than the CPU, its neighbour's work was counted, too. Per cycle, a core
    # does 32 float32 operations with one AVX-512 unit, and 64 times as many int8 ones with AMX.
    assert peaks_found[precision].gflops_s < 64 * peaks_found["fp32"].gflops_s < 1e5


@pytest.mark.slow
def test_dequantize_node_does_not_count_as_the_convolution():
    """In an int8 graph, the last convolution has a new name; the node after it has the old one."""
    plain = kernels.make_chain()
    names = original_names(kernels._convert(plain, "int8-u8").graph)
    assert names == {"out_raw": "out", "out": "out_raw"}
    assert original_names(plain.graph) == {}


@pytest.mark.slow
def test_openvino_lists_a_convolution_with_zero_bias(monkeypatch):
    if engines.why_unusable()["openvino"] is not None:
        pytest.skip("machine: the engine is not here")
    plain = kernels.make_chain()
    for tensor in plain.graph.graph.initializer:
        if tensor.name.endswith(".bias"):
            zeros = np.zeros(tuple(tensor.dims), np.float32)
            tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))
    options = EngineOptions(requests=1, threads=1)
    with engines.open("openvino", plain, options) as engine:
        listed = {layer.name: layer.nodes for layer in engine.execution()}
    names = [f"{at}.conv" for at in range(len(kernels.LAYERS))]
    assert [name for name in names if name in listed.get(f"{name}/WithoutBiases", (name,))] == names


def test_peaks_are_measured_once(config, monkeypatch):
    setups = []

    def measure(setup, known=None):
        setups.append((setup.precision, setup.threads, known is not None))
        return SOME

    monkeypatch.setattr(peaks, "measure_peaks", measure)
    first, second = (peaks.find_peaks(ORT, config) for _ in range(2))
    assert to_json(first) == to_json(second)
    assert setups == [("fp32", 1, False)]
    peaks.find_peaks(replace(ORT, precision="int8"), config)
    assert setups[1:] == [("int8", 1, True)]  # bandwidths are known, so they are not measured again
    peaks.find_peaks(replace(ORT, threads=2), config)
    assert setups[2:] == [("fp32", 2, False)]


def test_higher_measurement_of_another_precision_raises_the_peak(config, monkeypatch):
    """Other programs only lower a rate, so we keep the higher rate. Engines share bandwidths."""
    reached = {"fp32": {"fp32": 5.0}, "int8": {"fp32": 3.0, "int8": 9.0}}
    monkeypatch.setattr(
        peaks,
        "measure_peaks",
        lambda setup, known: replace(SOME, gflops_s=reached[setup.precision]),
    )
    assert peaks.find_peaks(ORT, config).gflops_s == {"fp32": 5.0}
    for _ in range(2):
        found = peaks.find_peaks(replace(ORT, precision="int8"), config)
        assert found.gflops_s == {"fp32": 5.0, "int8": 9.0}
    found = peaks.find_peaks(ORT, config)
    assert found.gflops_s == {"fp32": 5.0}, "a type that this run does not measure was added"
    other = replace(SOME, gflops_s={"fp32": 1.0}, bandwidth_gbytes_s=99.0)
    monkeypatch.setattr(peaks, "measure_peaks", lambda setup, known: other)
    assert peaks.find_peaks(replace(ORT, engine="openvino"), config).gflops_s == {"fp32": 1.0}
    assert peaks.find_peaks(ORT, config).bandwidth_gbytes_s == 99.0
    assert peaks.find_peaks(replace(ORT, threads=2), config).gflops_s == {"fp32": 1.0}


@pytest.mark.parametrize("change", ["schema", "machine", "library", "looked", "content", "proof"])
def test_outdated_or_changed_record_is_ignored(change, config, monkeypatch):
    monkeypatch.setattr(peaks, "measure_peaks", lambda setup, known: SOME)
    peaks.find_peaks(ORT, config)
    key = records.make_key("ort", "fp32", 1, {})
    assert records.find(config, key) is not None
    if change == "schema":
        monkeypatch.setattr(records, "SCHEMA", records.SCHEMA + 1)
    elif change in ("content", "proof"):
        path = Path(str(config.runtime.engines_dir), records.FILE)
        document = json.loads(path.read_text())
        document["records"][0]["peaks"]["gflops_s"]["fp32"] = 50.0
        path.write_text("[]" if change == "content" else json.dumps(document))
    else:
        key = {**key, change: "another"}
    assert records.find(config, key) is None


def test_measuring_again_never_lowers_a_peak(config, monkeypatch):
    monkeypatch.setattr(peaks, "measure_peaks", lambda setup: replace(SOME, gflops_s={"fp32": 3.0}))
    assert peaks.measure_again(ORT, config, SOME).gflops_s["fp32"] == 5.0
    peaks_found = records.find(config, records.make_key("ort", "fp32", 1, {}))
    assert peaks_found is not None
    assert peaks_found.gflops_s["fp32"] == 5.0
