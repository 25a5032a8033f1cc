"""A run in int8 calibrates once and reuses the result. Errors name the command to type."""

import copy
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from detector.core.config.schema import PACKAGED, CalibrationConfig, Config, NetworkConfig
from detector.core.engines._built import building, store
from detector.core.errors import EngineError, ModelError, SourceError, UsageError
from detector.core.models.base import Network
from detector.core.models.graph import int8, qdq
from detector.core.models.graph.int8 import FRONT, KINDS
from detector.core.run import quantize
from detector.core.run.quantize import making, search
from detector.core.run.quantize.calibrate import (
    FLOAT_IN_BF16,
    NARROW,
    SUFFIX,
    Calibration,
    Int8Result,
    packaged,
)
from detector.core.run.quantize.frames import hold_out
from detector.core.run.quantize.making import calibrate
from tests.known_answers import run_once
from tests.networks import open_network
from tests.run.quantize.graphs import SIDE, branched, depthwise
from tests.sources.clips import write_sound, write_video


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("clips") / "in.mp4", 12)


def config(calibrate: Path | str | None, model: str = "street", **more: object) -> Config:
    calibration = CalibrationConfig(None if calibrate is None else str(calibrate), **more)  # type: ignore[arg-type]
    return Config(network=NetworkConfig(model=model), calibration=calibration)


def calibrations_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*{SUFFIX}"))


@pytest.mark.slow
def test_calibration_serves_both_int8_kinds_at_any_batch_size(video: Path, tmp_path: Path) -> None:
    u8, notes = quantize.quantize_network(branched(), "int8-u8", config(video), tmp_path)
    assert (u8.precision, u8.path) == ("int8-u8", None)
    assert "6 frames" in notes[0]
    s8, notes = quantize.quantize_network(branched(3), "int8-s8", config(None), tmp_path)
    assert (s8.precision, s8.batch) == ("int8-s8", 3)
    assert calibrations_in(tmp_path)[0] in notes[0]
    assert len(calibrations_in(tmp_path)) == 1
    again, notes = quantize.quantize_network(branched(), "int8-u8", config(video), tmp_path)
    assert again.graph == u8.graph
    assert len(calibrations_in(tmp_path)) == 1
    assert u8.details["int8"]["layers"] == 3


@pytest.mark.slow
def test_built_graph_is_reused(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = quantize.quantize_network(branched(), "int8-u8", config(video), tmp_path)
    exported = building.export(first, tmp_path)
    built: list[str] = []
    monkeypatch.setattr(qdq, "quantised_graph", lambda *arguments: built.append(arguments[3]))
    again, _ = quantize.quantize_network(branched(), "int8-u8", config(video), tmp_path)
    assert again.path == exported.path
    assert again.graph == first.graph
    assert building.export(again, tmp_path) == exported._replace(built=False)
    assert built == []
    other, _ = quantize.quantize_network(
        branched(), "int8-u8", config(video, calibrate_frames=4), tmp_path
    )
    assert other.graph is None
    signed, _ = quantize.quantize_network(branched(), "int8-s8", config(video), tmp_path)
    assert signed.graph is None
    assert built == ["int8-u8", "int8-s8"]


def test_fp32_graph_is_not_read_if_the_int8_graph_exists(video: Path, tmp_path: Path) -> None:
    first, _ = quantize.quantize_network(branched(), "int8-u8", config(video), tmp_path)
    _, stored_notes = quantize.quantize_network(branched(), "int8-u8", config(None), tmp_path)
    unreadable = replace(branched(), graph=lambda: pytest.fail("the fp32 graph was read"))
    with pytest.raises(pytest.fail.Exception):
        quantize.quantize_network(unreadable, "int8-u8", config(None), tmp_path)
    exported = building.export(first, tmp_path)
    again, notes = quantize.quantize_network(unreadable, "int8-u8", config(None), tmp_path)
    assert (again.path, notes) == (exported.path, stored_notes)
    assert store.Graphs(tmp_path).load(branched()), "exporting int8 also exports fp32"
    assert again.details == first.details
    assert again.graph == first.graph


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [False, True])
def test_cpu_with_16_bit_sums_gets_7_bit_weights(
    narrow: bool, video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of CPU needs its own calibration. Weights for TensorRT always have 8 bits."""
    monkeypatch.setattr(int8, "adds_int8_in_16_bits", lambda: not narrow)
    quantize.quantize_network(branched(), "int8-u8", config(video), tmp_path)
    monkeypatch.setattr(int8, "adds_int8_in_16_bits", lambda: narrow)
    network, notes = quantize.quantize_network(branched(), "int8-u8", config(video), tmp_path)
    assert len(calibrations_in(tmp_path)) == 2
    assert ("weights have 7 bits" in notes[-1]) == narrow
    assert largest_weight(network) == (64 if narrow else 127)
    signed, notes = quantize.quantize_network(branched(), "int8-s8", config(video), tmp_path)
    assert largest_weight(signed) == 127
    assert "weights have 7 bits" not in notes[-1]


def largest_weight(network: Network) -> int:
    arrays = (
        numpy_helper.to_array(tensor)
        for tensor in network.graph.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8
    )
    return max(int(np.abs(values.astype(np.int32)).max()) for values in arrays)


def test_note_states_the_agreement_of_the_packaged_calibration_for_7_bit_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "adds_int8_in_16_bits", lambda: True)
    network = open_network("street-1")
    calibration = packaged(network, "street-1")
    assert calibration is not None
    _, notes = quantize.quantize_network(network, "int8-u8", config(PACKAGED, "street-1"), tmp_path)
    assert (
        f"with those in fp32 the agreement is {calibration.result[NARROW].agreement:.3f}"
        in notes[-2]
    )
    assert "VNNI" in notes[-1]
    assert "7 bits" in notes[-1]


@pytest.mark.parametrize("model", ["street", "street-1"])
def test_packaged_calibration_may_state_its_agreement_with_float_layers_in_bf16(
    model: str, tmp_path: Path
) -> None:
    """Only "street" states this agreement. Engines read it in ``Network.details``."""
    network = open_network(model)
    calibration = packaged(network, model)
    assert calibration is not None
    assert (FLOAT_IN_BF16 in calibration.result) == (model == "street")
    front, _ = quantize.quantize_network(network, FRONT, config(PACKAGED, model), tmp_path)
    known = (
        calibration.result[FLOAT_IN_BF16].agreement if FLOAT_IN_BF16 in calibration.result else None
    )
    assert front.details["int8"]["float_in_bf16"] == known
    signed, _ = quantize.quantize_network(network, "int8-s8", config(PACKAGED, model), tmp_path)
    assert signed.details["int8"]["float_in_bf16"] is None


@pytest.mark.slow
def test_agreement_on_the_held_out_frames_reaches_the_budget(tmp_path: Path) -> None:
    """The stored agreement of int8 with fp32 was measured on the held-out frames."""
    pictures = hold_out(
        np.random.default_rng(0).integers(0, 256, (24, SIDE, SIDE, 3)).astype(np.uint8)
    )
    network = branched()
    calibration = calibrate(network, pictures, CalibrationConfig("in.mp4", budget=0.99))
    for kind in KINDS[:2]:
        result = calibration.result[kind]
        assert result.agreement >= 0.99
        assert result.agreement >= result.plain
        graph = qdq.quantised_graph(network.graph, calibration.ranges, set(result.kept), kind)
        count = matched = 0
        for slot in pictures.held_out:
            fp32, quantised = (
                run_once(each, slot[None])[-1][0, 0] >= 0.25
                for each in (network, replace(network, graph=graph))
            )
            count += fp32.sum() + quantised.sum()
            matched += (fp32 & quantised).sum()
        assert result.agreement == pytest.approx(2 * matched / count)


@pytest.mark.slow
def test_calibration_is_deterministic_and_can_be_read_back() -> None:
    pictures = hold_out(
        np.random.default_rng(0).integers(0, 256, (7, SIDE, SIDE, 3)).astype(np.uint8)
    )
    options = CalibrationConfig("in.mp4", budget=0.99)
    first, second = (calibrate(branched(), pictures, options) for _ in range(2))
    assert first == second
    assert Calibration.from_json(first.to_json()) == first


def test_missing_calibration_is_reported_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--model street .*--calibrate IN"):
        quantize.quantize_network(branched(), "int8-u8", config(None), tmp_path)


@pytest.mark.parametrize("other", ["weights", "size", "family"])
def test_calibration_of_another_network_is_not_used(
    other: str, video: Path, tmp_path: Path
) -> None:
    network = branched()
    quantize.quantize_network(network, "int8-u8", config(video), tmp_path)
    if other == "weights":
        changed = replace(network, sha256="1" * 64)
    elif other == "family":  # the family decides whether pixels are 0..1 or 0..255
        changed = replace(network, family="another")
    else:
        changed = replace(network, input=replace(network.input, width=8))
    with pytest.raises(UsageError, match="no calibration of"):
        quantize.quantize_network(changed, "int8-u8", config(None), tmp_path)


def test_scales_per_channel_require_a_calibration_made_with_openvino(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    network = depthwise()
    with monkeypatch.context() as absent:
        absent.setattr(making.engines, "is_installed", lambda name: name != "openvino")
        without, notes = quantize.quantize_network(network, FRONT, config(video), tmp_path)
    assert without.precision == "int8-u8"
    assert "calibrated without OpenVINO" in notes[-1]
    quantised, notes = quantize.quantize_network(network, FRONT, config(video), tmp_path)
    assert (quantised.precision, len(calibrations_in(tmp_path))) == (FRONT, 2)
    assert not any("without OpenVINO" in note for note in notes)
    for_ort, notes = quantize.quantize_network(network, "int8-u8", config(None), tmp_path)
    assert (for_ort.precision, "without OpenVINO" in notes[-1]) == ("int8-u8", False)


def test_depthwise_network_refuses_a_calibration_without_ranges_per_channel(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        for module in (making, qdq):
            earlier.setattr(module, "depthwise_inputs", lambda graph: [])
        earlier.setattr(making.engines, "is_installed", lambda name: name != "openvino")
        quantize.quantize_network(depthwise(), "int8-u8", config(video), tmp_path)
    with pytest.raises(UsageError, match="no calibration of"):
        quantize.quantize_network(depthwise(), FRONT, config(None), tmp_path)


@pytest.mark.slow
def test_damaged_calibration_is_named_and_replaced(video: Path, tmp_path: Path) -> None:
    quantize.quantize_network(branched(), "int8-u8", config(video), tmp_path)
    (name,) = calibrations_in(tmp_path)
    (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match=rf"{name}: its content"):
        quantize.quantize_network(branched(), "int8-u8", config(None), tmp_path)
    _, notes = quantize.quantize_network(branched(), "int8-u8", config(video), tmp_path)
    assert "its manifest" in notes[0]
    quantize.quantize_network(branched(), "int8-u8", config(None), tmp_path)


def test_forged_calibration_is_refused(video: Path, tmp_path: Path) -> None:
    """The manifest has the digest of the changed file, but no proof that we wrote this file."""
    quantize.quantize_network(branched(), "int8-u8", config(video), tmp_path)
    path = tmp_path / calibrations_in(tmp_path)[0]
    document = json.loads(path.read_text())
    document["ranges"] = {name: [0.0, 0.001] for name in document["ranges"]}
    path.write_text(json.dumps(document))
    manifest = store.read_manifest(path)
    manifest |= {"file_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    path.with_suffix(".json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match=r"lacks proof .*calibrate"):
        quantize.quantize_network(branched(), "int8-u8", config(None), tmp_path)


@pytest.mark.slow
def test_calibration_of_the_requested_method_is_used(video: Path, tmp_path: Path) -> None:
    for method in ("percentile", "minmax"):
        quantize.quantize_network(
            branched(), "int8-u8", config(video, calibrate_method=method), tmp_path
        )
    assert len(calibrations_in(tmp_path)) == 2
    for method in ("percentile", "minmax"):
        _, notes = quantize.quantize_network(
            branched(), "int8-u8", config(None, calibrate_method=method), tmp_path
        )
        assert method in notes[1]


def test_source_without_frames_leaves_no_file(tmp_path: Path) -> None:
    sound, folder = write_sound(tmp_path / "sound.mp4"), tmp_path / "engines"
    for source in (sound, tmp_path / "absent.mp4", tmp_path):
        with pytest.raises(SourceError) as caught:
            quantize.quantize_network(branched(), "int8-u8", config(source), folder)
        assert caught.value.exit_code == 3
        assert "\n" not in str(caught.value)
    assert not folder.exists()


@pytest.mark.slow
def test_random_weights_are_quantized_without_a_search(video: Path, tmp_path: Path) -> None:
    network = open_network("street", random_seed=1, size=(64, 64))
    quantised, notes = quantize.quantize_network(
        network, "int8-u8", config(video, budget=1.0), tmp_path
    )
    assert quantised.details["int8"]["kept"] == []
    assert any("random weights" in note for note in notes)


def test_frames_without_detections_are_noted(tmp_path: Path) -> None:
    network = branched()
    finds_nothing = replace(network, head=lambda outputs, conf: network.head(outputs, 1e9))
    pictures = hold_out(np.zeros((4, SIDE, SIDE, 3), np.uint8))
    calibration = calibrate(finds_nothing, pictures, CalibrationConfig("dark.mp4"))
    assert any("detects nothing" in line for line in calibration.sentences("int8-u8"))


def test_stopped_calibration_leaves_no_file(video: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="stopped"):
        quantize.quantize_network(
            branched(), "int8-u8", config(video), tmp_path, lambda doing, done, of: done < 3
        )
    assert calibrations_in(tmp_path) == []


def test_only_fp32_can_become_int8(video: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="fp16"):
        quantize.quantize_network(
            replace(branched(), precision="fp16"), "int8-u8", config(video), tmp_path
        )


def test_file_name_and_manifest_describe_the_calibration(video: Path, tmp_path: Path) -> None:
    quantize.quantize_network(branched(), "int8-u8", config(video), tmp_path)
    (name,) = calibrations_in(tmp_path)
    assert name.startswith(f"tiny-{SIDE}x{SIDE}-int8-")
    manifest = store.read_manifest(tmp_path / name)
    assert manifest["key"]["method"] == "minmax"
    assert set(manifest["facts"]) - {FLOAT_IN_BF16, FRONT} == {"int8-u8", "int8-s8"}


@pytest.mark.parametrize(
    ("flags", "installed", "agreement", "known"),
    [
        (["avx512_bf16"], True, 0.99, True),
        (["avx512_bf16"], True, 0.5, False),  # the agreement in bf16 is below the budget
        (["avx512_bf16"], False, 0.99, False),
        ([], True, 0.99, False),
    ],
)
def test_float_layers_in_bf16_are_measured_only_where_bf16_is_usable(
    flags: list[str],
    installed: bool,
    agreement: float,
    known: bool,
    video: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without OpenVINO, bf16 is not measured, so CPUs with and without bf16 share a calibration."""

    def measured(
        _: Network, ranges: object, kind: str, result: Int8Result, by: object
    ) -> Int8Result:
        return replace(result, agreement=agreement)

    monkeypatch.setattr(making, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(making.engines, "is_installed", lambda name: installed or name == "ort")
    monkeypatch.setattr(making, "float_in_bf16", measured)
    network, _ = quantize.quantize_network(branched(), FRONT, config(video), tmp_path)
    assert network.details["int8"]["float_in_bf16"] == (agreement if known else None)
    monkeypatch.setattr(making, "cpu_flags", lambda: frozenset({"avx512_bf16"} - {*flags}))
    quantize.quantize_network(branched(), FRONT, config(video), tmp_path)
    assert len(calibrations_in(tmp_path)) == (2 if installed else 1)


def test_openvino_measures_float_layers_in_bf16(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU without bf16, OpenVINO runs fp32 instead, but the measurement works the same."""
    pytest.importorskip("openvino")
    monkeypatch.setattr(making, "cpu_flags", lambda: frozenset({"avx512_bf16"}))
    network, _ = quantize.quantize_network(branched(), FRONT, config(video, budget=0.0), tmp_path)
    assert 0 <= network.details["int8"]["float_in_bf16"] <= 1


def test_graph_that_openvino_refuses_is_still_calibrated(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_engine(name: str, *rest: Any) -> Any:
        if name == "openvino":
            raise EngineError("engine openvino: does not run this graph")
        return real(name, *rest)

    real = search.engines.open
    monkeypatch.setattr(making, "cpu_flags", lambda: frozenset({"avx512_bf16"}))
    monkeypatch.setattr(search.engines, "open", open_engine)
    network, _ = quantize.quantize_network(branched(), FRONT, config(video), tmp_path)
    assert network.details["int8"]["float_in_bf16"] is None


def dynamic(model: onnx.ModelProto) -> onnx.ModelProto:
    """Quantise dynamically, so that the graph has nodes that compute with integers."""
    from onnxruntime.quantization import quantize_dynamic

    onnx.save(model, "float.onnx")
    quantize_dynamic("float.onnx", "dynamic.onnx")
    return onnx.load("dynamic.onnx")


def without_constant_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        if node.op_type == "Conv":
            node.input[1] = f"{node.input[1]}.computed"
    return model


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (dynamic, "is already quantised"),
        (without_constant_weights, "none of its layers can be int8"),
    ],
)
def test_graph_without_a_quantizable_layer_is_refused(
    video, tmp_path, monkeypatch, change, why
) -> None:
    monkeypatch.chdir(tmp_path)
    network = branched()
    changed = replace(network, graph=change(copy.deepcopy(network.graph)))
    with pytest.raises(UsageError, match=f"--precision int8: {network.name}: .*{why}"):
        quantize.quantize_network(changed, "int8-u8", config(video), tmp_path)
    assert not calibrations_in(tmp_path)
