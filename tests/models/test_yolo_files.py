"""Checkpoints, state dicts, safetensors files and descriptions are read, or refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from detector.core.errors import ModelError
from detector.core.models.formats.checkpoint import open_checkpoint
from detector.core.models.formats.yolo.blocks import Design
from detector.core.models.formats.yolo.description import parse_description
from tests.checkpoints import (
    Reduced,
    Stored,
    foreign,
    module,
    pickled,
    random_checkpoint,
    saved,
    whole_model,
    zipped,
)
from tests.models.plain_yolo import random_tensors
from tests.networks import open_network, refusal

SMALL = {
    "nc": 2,
    "anchors": [[4, 4, 6, 5]],
    "backbone": [[-1, 1, "Conv", [8, 3, 2]]],
    "head": [[[-1], 1, "Detect", ["nc", "anchors"]]],
}
SIZE = (8, 8)


def tensors_of(values: dict = SMALL, seed: int = 0) -> dict[str, np.ndarray]:
    return random_tensors(Design(parse_description(values, "t")).architecture(2048, 2048), seed)


@pytest.fixture
def described(tmp_path: Path):
    def open_described(content, values: dict = SMALL, **more):
        (tmp_path / "t.yaml").write_text(yaml.safe_dump(values))
        saved(tmp_path / "t.pt", content)
        return open_network(str(tmp_path / "t.yaml"), size=SIZE, **more)

    return open_described


def graph_bytes(network) -> bytes:
    return network.graph.SerializeToString()


def test_wrapped_state_dicts_give_the_same_network(described):
    tensors = tensors_of()
    plain = graph_bytes(described(tensors))
    wrong = {name: tensor + 1 for name, tensor in tensors.items()}
    counted = {**tensors, "model.0.bn.num_batches_tracked": np.array(3)}
    for content in (
        {"state_dict": tensors},
        {"model": tensors, "epoch": 3},
        {"model": wrong, "ema": tensors},  # the averaged weights win
        {"ema": None, "model": tensors},
        {f"module.{name}": tensor for name, tensor in tensors.items()},
        {f"model.{name}": tensor for name, tensor in tensors.items()},
        counted,
    ):
        network = described(content)
        assert graph_bytes(network) == plain
        assert network.parameters == 8 * 3 * 9 + 16 + 8 * 14 + 14
        assert network.parameters_fused == network.parameters - 8


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_float16_and_float64_weights_equal_float32_ones(described, dtype):
    tensors = {name: tensor.astype(np.float16) for name, tensor in tensors_of().items()}
    network = described({name: tensor.astype(dtype) for name, tensor in tensors.items()})
    assert graph_bytes(network) == graph_bytes(
        described({n: t.astype(np.float32) for n, t in tensors.items()})
    )


def test_bfloat16_and_big_endian_files_are_read(tmp_path):
    values = np.float32([1.0, -2.5, 0.00390625, 3.0])
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    for order in "<>":
        path = saved(tmp_path / "x.pt", {"model.0.conv.weight": upper}, order)
        with open_checkpoint(path) as (contents, _):
            np.testing.assert_array_equal(contents.tensors["model.0.conv.weight"].array(), values)


def test_a_transposed_view_is_read_through_its_strides(tmp_path):
    tensor = Reduced(
        foreign("torch._utils", "_rebuild_tensor_v2"), Stored("0", "float32", 7), 1, (2, 3), (1, 2)
    )
    numbers = np.arange(7, dtype=np.float32)
    path = zipped(tmp_path / "x.pt", pickled({"model.0.w": tensor})[0], {"0": numbers.tobytes()})
    with open_checkpoint(path) as (contents, _):
        np.testing.assert_array_equal(contents.tensors["model.0.w"].array(), [[1, 3, 5], [2, 4, 6]])


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], **entries) -> Path:
    kinds = {"float16": "F16", "float32": "F32", "float64": "F64", "int64": "I64", "uint16": "BF16"}
    header: dict = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        end = len(data) + array.nbytes
        header[name] = {
            "dtype": kinds[array.dtype.name],
            "shape": array.shape,
            "data_offsets": [len(data), end],
        }
        data += array.tobytes()
    text = json.dumps({**header, **entries}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_safetensors_hold_the_same_network(tmp_path, described):
    expected = graph_bytes(described(tensors_of()))
    (tmp_path / "t.pt").unlink()
    write_safetensors(tmp_path / "t.safetensors", tensors_of())
    assert graph_bytes(open_network(str(tmp_path / "t.yaml"), size=SIZE)) == expected
    given = str(write_safetensors(tmp_path / "other.safetensors", tensors_of()))
    assert graph_bytes(open_network(str(tmp_path / "t.yaml"), weights=given, size=SIZE)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_network_of_bare_tensors_is_found_among_the_packaged_ones(tmp_path, suffix):
    """Tensors of yolov5n are recognised, also with another number of classes."""
    path = random_checkpoint(tmp_path / "yolov5n.pt")
    whole = open_network("yolov5n.yaml", weights=str(path), size=(64, 64))
    with open_checkpoint(path) as (contents, _):
        tensors = {name: tensor.array() for name, tensor in contents.tensors.items()}
    if suffix == ".safetensors":
        path = write_safetensors(path.with_suffix(suffix), tensors)
    network = open_network(str(path), size=(64, 64))
    assert graph_bytes(network) == graph_bytes(whole)
    assert (network.family, network.parameters) == ("yolov5", 1_872_157)
    fewer = {name: tensor[:21] if ".24.m." in name else tensor for name, tensor in tensors.items()}
    saved(tmp_path / "two.pt", fewer)
    assert open_network(str(tmp_path / "two.pt"), size=(64, 64)).output_shapes[0] == (1, 21, 8, 8)


@pytest.mark.slow
def test_error_for_unknown_tensors_says_which_option_to_give(tmp_path):
    path = saved(tmp_path / "mine.pt", tensors_of())
    with pytest.raises(ModelError, match=r"--weights mine\.pt"):
        open_network(str(path))


def test_stored_anchors_replace_the_anchors_of_the_description(described):
    """``anchors`` are in cells (of stride 2 here), ``anchor_grid`` is in pixels."""
    cells = {**tensors_of(), "model.1.anchors": np.float16([[[1, 2], [3, 4]]])}
    assert described(cells).head.keywords["layers"][0].anchors == ((2, 4), (6, 8))
    grid = {**cells, "model.1.anchor_grid": np.float32([10, 20, 30, 40]).reshape(1, 1, 2, 1, 1, 2)}
    assert described(grid).head.keywords["layers"][0].anchors == ((10, 20), (30, 40))
    damaged = {**cells, "model.1.anchor_grid": np.float32([9, 9, 9, 9]).reshape(1, 1, 1, 2, 1, 2)}
    assert described(damaged).head.keywords["layers"][0].anchors == ((2, 4), (6, 8))
    assert described(tensors_of()).head.keywords["layers"][0].anchors == ((4, 4), (6, 5))
    assert described(cells, {**SMALL, "anchors": 2}).head.keywords["layers"][0].anchors == (
        (2, 4),
        (6, 8),
    )
    with pytest.raises(ModelError, match="have anchors"):
        described(tensors_of(), {**SMALL, "anchors": 2})
    with pytest.raises(ModelError, match="positive, finite numbers"):
        described({**tensors_of(), "model.1.anchors": np.float32([[[0, 2], [3, np.inf]]])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.0.bn.running_mean"), "lacks the tensor model.0.bn.running_mean"),
        (
            lambda t: t.update({"model.7.w": np.ones(2, np.float32)}),
            "tensor 'model.7.w' belongs to no layer",
        ),
        (
            lambda t: t.update({"model.0.bn.bias": np.ones(9, np.float32)}),
            "model.0.bn.bias is 9, but the description needs 8",
        ),
        (
            lambda t: t.update({"model.1.m.0.weight": np.ones((16, 8, 1, 1), np.float32)}),
            "model.1.m.0.weight is 16x8x1x1, but the description needs 14x8x1x1",
        ),
        (lambda t: t["model.0.conv.weight"].fill(np.nan), "weights of model.0.conv are not finite"),
        (lambda t: t["model.0.bn.running_var"].fill(-1), "weights of model.0.conv are not finite"),
    ],
)
def test_weights_of_another_network_are_refused(described, change, message):
    tensors = tensors_of()
    change(tensors)
    with pytest.raises(ModelError) as caught:
        described(tensors)
    assert message in str(caught.value)
    assert "t.pt" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        {"epoch": 1, "optimizer": {}},
        [1, 2],
        "text",
        {"model": {"a": 1}},
        {"model": {}},
        {"fc.weight": np.ones(2, np.float32)},
        {"model": module("models.yolo.Model")},
    ],
)
def test_a_checkpoint_without_a_network_is_refused(tmp_path, content):
    assert refusal(str(saved(tmp_path / "x.pt", content))).startswith(f"{tmp_path}/x.pt: ")


def whole(**more):
    return whole_model(tensors_of(), SMALL, **more)


@pytest.mark.parametrize(
    ("stored", "names"),
    [(["a", "b"], ("a", "b")), ({0: "a", 1: "b"}, ("a", "b")), ({1: "b", 0: "a"}, ("a", "b"))],
)
def test_class_names_are_read_from_the_checkpoint(tmp_path, stored, names):
    network = open_network(str(saved(tmp_path / "x.pt", {"model": whole(names=stored)})), size=SIZE)
    assert network.names == names
    assert network.warnings == []


def test_stored_names_are_ignored_if_their_number_is_wrong(tmp_path):
    path = saved(tmp_path / "x.pt", {"model": whole(names=["a", "b", "c"])})
    network = open_network(str(path), size=SIZE)
    assert network.names == ("class0", "class1")
    assert "3 names for 2" in network.warnings[0]
    (tmp_path / "given").write_text("x\ny\n")
    assert open_network(str(path), names=str(tmp_path / "given"), size=SIZE).names == ("x", "y")
    (tmp_path / "given").write_text("x\ny\nz\n")
    with pytest.raises(ModelError, match=r"3 names.* x\.pt has 2.*--names"):
        open_network(str(path), names=str(tmp_path / "given"), size=SIZE)


def options(**values):
    namespace = foreign("argparse", "Namespace")()
    namespace.__dict__ = values
    return namespace


@pytest.mark.parametrize(
    ("stored", "size"),
    [
        ({"imgsz": 320}, (320, 320)),
        ({"img_size": [416, 416]}, (416, 416)),
        (options(imgsz=96), (96, 96)),
        ({"imgsz": 321}, (640, 640)),  # not a multiple of the stride, 2
        ({"imgsz": "big"}, (640, 640)),
        (None, (640, 640)),
    ],
)
def test_stored_training_size_is_used(tmp_path, stored, size):
    path = saved(tmp_path / "x.pt", {"model": whole(), "opt": stored})
    assert open_network(str(path)).input_shape == (1, *size, 3)
    assert open_network(str(path), size=(32, 64)).input_shape == (1, 32, 64, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:7], "its header"),
        (lambda b: (1 << 60).to_bytes(8, "little") + b[8:], "its header reaches beyond"),
        (lambda b: (1 << 25).to_bytes(8, "little") + bytes(1 << 25), "header has 33554432 bytes"),
        (lambda b: b[:8] + b"x" + b[9:], "its header is not JSON"),
        (lambda b: b[:-1], "reaches beyond the end of the file"),
        (lambda b: (2).to_bytes(8, "little") + b"[]", "its header lists no tensors"),
        (lambda b: (2).to_bytes(8, "little") + b"{}", "not a YOLOv5 or YOLOv7 checkpoint"),
    ],
)
def test_damaged_safetensors_are_refused(tmp_path, change, message):
    path = write_safetensors(tmp_path / "x.safetensors", tensors_of())
    path.write_bytes(change(path.read_bytes()))
    assert message in refusal(str(path))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}, "the entry of 'model.0.x'"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "the entry of 'model.0.x'"),
        ({"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}, "the entry of 'model.0.x' is wrong"),
        (7, "the entry of 'model.0.x' is wrong"),
        ({"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}, "stored as F8_E4M3"),
    ],
)
def test_wrong_entry_of_safetensors_is_refused(tmp_path, entry, message):
    path = write_safetensors(tmp_path / "x.safetensors", tensors_of(), **{"model.0.x": entry})
    assert message in refusal(str(path))


def test_description_without_weights_is_refused():
    with pytest.raises(ModelError, match=r"--weights FILE .*--random-weights"):
        open_network("yolov5n.yaml")


def test_random_weights_replace_the_weights_of_a_checkpoint(tmp_path):
    path = str(saved(tmp_path / "x.pt", {"model": whole(names=["a", "b"])}))
    network = open_network(path, random_seed=3, size=SIZE)
    assert graph_bytes(network) != graph_bytes(open_network(path, size=SIZE))
    assert (network.random_seed, network.names) == (3, ("a", "b"))
    assert ["(seed 3)" in line for line in network.warnings] == [True]


@pytest.mark.parametrize("size", [(8, 7), (0, 8), (8, 8194)])
def test_size_that_is_zero_too_large_or_not_a_multiple_of_the_stride_is_refused(tmp_path, size):
    path = saved(tmp_path / "x.pt", {"model": whole()})
    with pytest.raises(ModelError, match=r"--size.*8192"):
        open_network(str(path), size=size)
