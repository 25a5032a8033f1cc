"""The peaks of this computer: how they are measured, kept and checked."""

from __future__ import annotations

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
from detector.lab.peaks import PeakSetup, caches, kept, kernels
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
def test_the_bandwidth_is_that_of_the_working_set(touched, rate):
    """A smaller set counts as at least as fast as a larger one, whatever was measured."""
    assert SOME.bandwidth_at(touched) == rate
    assert replace(SOME, bandwidths=()).bandwidth_at(touched) == 10.0


def test_threads_of_more_than_the_run_has_do_not_count():
    wide = Bandwidth(bytes=10**9, threads=2, gbytes_s=500.0, spread=0.0)
    both = replace(SOME, bandwidths=(*CURVE, wide))
    assert both.bandwidth_at(100) == 100.0
    assert replace(both, threads=2).bandwidth_at(100) == 500.0


def test_of_two_measurements_the_higher_peaks_stay():
    slow = replace(CURVE[0], gbytes_s=1.0)
    other = replace(SOME, gflops_s={"fp32": 4.0, "int8": 9.0}, bandwidths=(slow, *CURVE[1:]))
    for both in (keep_higher_peaks(SOME, other), keep_higher_peaks(other, SOME)):
        assert both.gflops_s == {"fp32": 5.0, "int8": 9.0}
        assert both.bandwidths[0].gbytes_s == 80.0


def test_sizes_double_up_to_what_memory_allows(monkeypatch):
    assert caches.list_sizes(1 << 16) == [1 << 14, 1 << 15, 1 << 16]
    monkeypatch.setattr(caches, "machine_bytes", lambda: caches.MEMORY_PARTS << 15)
    assert caches.list_sizes(1 << 30) == [1 << 14, 1 << 15]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_curve_for_every_number_of_threads(threads, short, monkeypatch):
    curve = caches.measure(threads)
    assert {one.threads for one in curve} == ({1} if threads == 1 else {1, 2, 3})
    assert all(one.gbytes_s > 0 and one.spread >= 0 for one in curve)
    both = [("L2", 1 << 16, False), ("L3", 1 << 19, True)]  # one for each core, one for all
    monkeypatch.setattr(caches, "read_cache_sizes", lambda: both)
    found = [(one.name, one.bytes) for one in caches.find_levels(curve, threads)]
    assert found == [("L2", threads << 16), ("L3", 1 << 19), ("memory", curve[-1].bytes)]


def test_cache_sizes_are_linux_s(tmp_path):
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


def openvino_has_bf16():
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "precision"),
    [("ort", "int8"), ("openvino", "int8"), ("openvino", "bf16"), ("torch", "fp32")],
)
def test_an_engine_s_own_convolutions_are_timed(engine, precision, short):
    if engines.usable()[engine] is not None or engines.find(engine).refusal(precision, "cpu"):
        pytest.skip("machine: the engine is not here")
    found = kernels.measure(engine, precision, 1, {})
    if precision == "bf16" and not openvino_has_bf16():
        precision = "fp32"  # OpenVINO runs fp32 instead if the CPU lacks bf16
    assert set(found) == {"fp32", precision}  # and no reorder, pool or DQ that was given the work
    assert all(str(engines.find(engine).library) in one.by for one in found.values())
    # No layer can be faster than another by more than kernels differ: one that is was credited with
    # the work of a neighbour. A core with AMX does 4096 int8 operations a cycle, and 64 of float32
    # where it has one unit of AVX-512 (26 times as many were measured).
    assert found[precision].gflops_s < 64 * found["fp32"].gflops_s < 1e5


@pytest.mark.slow
def test_work_is_that_of_the_convolution_and_not_of_what_took_its_name():
    """In an int8 graph the DequantizeLinear after an output has the convolution's name."""
    plain = kernels.make_chain()
    names = original_names(kernels._convert(plain, "int8-u8").graph)
    assert names == {"out_raw": "out", "out": "out_raw"}
    assert original_names(plain.graph) == {}


@pytest.mark.slow
def test_openvino_names_a_convolution_whose_bias_is_zero(monkeypatch):
    if engines.usable()["openvino"] is not None:
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


def test_a_machine_is_measured_once(config, monkeypatch):
    measured = []

    def measure(of, known=None):
        measured.append((of.precision, of.threads, known is not None))
        return SOME

    monkeypatch.setattr(peaks, "measure_peaks", measure)
    first, second = (peaks.find_peaks(ORT, config) for _ in range(2))
    assert to_json(first) == to_json(second)
    assert measured == [("fp32", 1, False)]
    peaks.find_peaks(replace(ORT, precision="int8"), config)
    assert measured[1:] == [("int8", 1, True)]  # with the bandwidths that are known
    peaks.find_peaks(replace(ORT, threads=2), config)
    assert measured[2:] == [("fp32", 2, False)]


def test_higher_measurement_of_another_precision_raises_the_peak(config, monkeypatch):
    """The lower one was disturbed. Bandwidths count for every engine."""
    reached = {"fp32": {"fp32": 5.0}, "int8": {"fp32": 3.0, "int8": 9.0}}
    monkeypatch.setattr(
        peaks, "measure_peaks", lambda of, known: replace(SOME, gflops_s=reached[of.precision])
    )
    assert peaks.find_peaks(ORT, config).gflops_s == {"fp32": 5.0}
    for _ in range(2):
        found = peaks.find_peaks(replace(ORT, precision="int8"), config)
        assert found.gflops_s == {"fp32": 5.0, "int8": 9.0}
    assert peaks.find_peaks(ORT, config).gflops_s == {
        "fp32": 5.0
    }  # no type that it did not measure
    monkeypatch.setattr(
        peaks,
        "measure_peaks",
        lambda of, known: replace(SOME, gflops_s={"fp32": 1.0}, bandwidth_gbytes_s=99.0),
    )
    other = peaks.find_peaks(replace(ORT, engine="openvino"), config)
    assert other.gflops_s == {"fp32": 1.0}
    assert peaks.find_peaks(ORT, config).bandwidth_gbytes_s == 99.0
    assert peaks.find_peaks(replace(ORT, threads=2), config).gflops_s == {"fp32": 1.0}


@pytest.mark.parametrize("what", ["schema", "machine", "library", "looked", "content", "proof"])
def test_what_is_not_of_now_is_not_believed(what, config, monkeypatch):
    monkeypatch.setattr(peaks, "measure_peaks", lambda of, known: SOME)
    peaks.find_peaks(ORT, config)
    key = kept.make_key("ort", "fp32", 1, {})
    assert kept.find(config, key) is not None
    if what == "schema":
        monkeypatch.setattr(kept, "SCHEMA", kept.SCHEMA + 1)
    elif what in ("content", "proof"):
        path = Path(str(config.runtime.engines_dir), kept.FILE)
        document = json.loads(path.read_text())
        document["records"][0]["peaks"]["gflops_s"]["fp32"] = 50.0
        path.write_text("[]" if what == "content" else json.dumps(document))
    else:
        key = {**key, what: "another"}
    assert kept.find(config, key) is None


def test_measuring_again_never_lowers_a_peak(config, monkeypatch):
    monkeypatch.setattr(peaks, "measure_peaks", lambda of: replace(SOME, gflops_s={"fp32": 3.0}))
    assert peaks.measure_again(ORT, config, SOME).gflops_s["fp32"] == 5.0
    found = kept.find(config, kept.make_key("ort", "fp32", 1, {}))
    assert found is not None
    assert found.gflops_s["fp32"] == 5.0
