"""Blocks give the outputs of plain numpy code. Names of layers and counts of weights are right."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from detector.core.models import catalogue
from detector.core.models.formats.yolo.blocks import BLOCKS, Design
from detector.core.models.formats.yolo.description import parse_description
from detector.core.models.formats.yolo.random_numbers import RandomNumbers
from detector.core.models.graph.build import count_macs, good_name
from tests.checkpoints import module, saved
from tests.known_answers import plain_conv, run_once
from tests.models.plain_yolo import (
    Plain,
    every_second_pixel,
    max_pool,
    random_tensors,
    silu,
    upsample,
)
from tests.networks import open_network, refusal

ENGINES = ("ort", "torch")
ANCHORS = [[4, 4, 6, 5]]  # two anchors and one class make 12 channels in a head


def described(rows: list, head: str = "Detect", **more) -> dict:
    last = [[-1], 1, head, ["nc", "anchors"]]
    return {"nc": 1, "anchors": ANCHORS, "backbone": rows[:1], "head": [*rows[1:], last], **more}


@pytest.fixture
def run(tmp_path: Path):
    """``run(description, engine)`` stores random tensors and runs the network that reads them.

    It returns (picture [c, h, w] in 0..1, a ``Plain`` with the same tensors, raw outputs).
    """

    def run_description(values: dict, engine: str = "ort", side: int = 8):
        tensors = random_tensors(Design(parse_description(values, "t")).architecture(side, side))
        path = tmp_path / "t.yaml"
        path.write_text(yaml.safe_dump(values))
        saved(tmp_path / "t.pt", tensors)
        network = open_network(str(path), size=(side, side))
        pictures = np.random.default_rng(5).integers(0, 256, (1, side, side, 3), np.uint8)
        (raw,) = run_once(network, pictures, engine)
        return pictures[0].transpose(2, 0, 1) / 255, Plain(tensors), raw[0]

    return run_description


STEM = [-1, 1, "Conv", [8, 3, 1]]


def after_stem(block):
    return lambda plain, x: block(plain, plain.conv("model.0", x))


CASES = {
    "Conv": ([[-1, 1, "Conv", [8, 3, 1]]], lambda p, x: p.conv("model.0", x)),
    "Conv 6x6 stride 2": (
        [[-1, 1, "Conv", [8, 6, 2, 2]]],
        lambda p, x: silu(
            p.norm(
                "model.0.bn", plain_conv(x, p.t["model.0.conv.weight"], stride=(2, 2), padding=2)
            )
        ),
    ),
    "Conv without activation": (
        [[-1, 1, "Conv", [8, 1, 1, None, 1, False]]],
        lambda p, x: p.conv("model.0", x, activation=lambda v: v),
    ),
    "Conv leaky": (
        [[-1, 1, "Conv", [8, 3, 2, None, 1, "nn.LeakyReLU(0.2)"]]],
        lambda p, x: p.conv("model.0", x, 2, activation=lambda v: np.where(v > 0, v, 0.2 * v)),
    ),
    "Conv grouped": (
        [STEM, [-1, 1, "Conv", [8, 3, 1, None, 4]]],
        after_stem(lambda p, x: p.conv("model.1", x, groups=4)),
    ),
    "Conv repeated": (
        [STEM, [-1, 2, "Conv", [8, 3, 1]]],
        after_stem(lambda p, x: p.conv("model.1.1", p.conv("model.1.0", x))),
    ),
    "DWConv": (
        [STEM, [-1, 1, "DWConv", [16, 3, 2]]],
        after_stem(lambda p, x: p.conv("model.1", x, 2, groups=8)),
    ),
    "Focus": ([[-1, 1, "Focus", [8, 3]]], lambda p, x: p.focus("model.0", x)),
    "ReOrg": (
        [[-1, 1, "ReOrg", []], [-1, 1, "Conv", [8, 3, 1]]],
        lambda p, x: p.conv("model.1", every_second_pixel(x)),
    ),
    "ReOrg after a layer with two readers": (
        [
            STEM,
            [-1, 1, "ReOrg", []],
            [-1, 1, "Conv", [8, 3, 1]],
            [1, 1, "Conv", [8, 1, 1]],
            [[-1, -2], 1, "Concat", [1]],
        ],
        after_stem(
            lambda p, x: np.concatenate(
                [p.conv("model.3", every_second_pixel(x)), p.conv("model.2", every_second_pixel(x))]
            )
        ),
    ),
    "Bottleneck": (
        [STEM, [-1, 1, "Bottleneck", [8]]],
        after_stem(lambda p, x: p.bottleneck("model.1", x)),
    ),
    "Bottleneck of another width": (
        [STEM, [-1, 1, "Bottleneck", [16]]],
        after_stem(lambda p, x: p.bottleneck("model.1", x)),
    ),
    "C3": ([STEM, [-1, 2, "C3", [16]]], after_stem(lambda p, x: p.c3("model.1", x, 2))),
    "C3 without shortcut": (
        [STEM, [-1, 1, "C3", [8, False]]],
        after_stem(lambda p, x: p.c3("model.1", x, 1, False)),
    ),
    "SPP": (
        [STEM, [-1, 1, "SPP", [8, [3, 5]]]],
        after_stem(lambda p, x: p.spp("model.1", x, (3, 5))),
    ),
    # Three pools of 5 in a row cover 5, 9 and 13 cells, like the three pools of SPP.
    "SPPF": ([STEM, [-1, 1, "SPPF", [8, 5]]], after_stem(lambda p, x: p.spp("model.1", x))),
    "nn.MaxPool2d": (
        [STEM, [-1, 1, "nn.MaxPool2d", [2, 2]]],
        after_stem(lambda p, x: max_pool(x, 2, 2, 0)),
    ),
    "MP": ([STEM, [-1, 1, "MP", []]], after_stem(lambda p, x: max_pool(x, 2, 2, 0))),
    "SP": ([STEM, [-1, 1, "SP", [5]]], after_stem(lambda p, x: max_pool(x, 5))),
    "nn.Upsample and Concat": (
        [
            STEM,
            [-1, 1, "MP", []],
            [-1, 1, "nn.Upsample", [None, 2, "nearest"]],
            [[-1, 0], 1, "Concat", [1]],
        ],
        after_stem(lambda p, x: np.concatenate([upsample(max_pool(x, 2, 2, 0)), x])),
    ),
    "Shortcut": (
        [STEM, [-1, 1, "Conv", [8, 1, 1]], [[-1, 0], 1, "Shortcut", [1]]],
        after_stem(lambda p, x: x + p.conv("model.1", x)),
    ),
    "SPPCSPC": ([STEM, [-1, 1, "SPPCSPC", [8]]], after_stem(lambda p, x: p.sppcspc("model.1", x))),
    "RepConv with identity": (
        [STEM, [-1, 1, "RepConv", [8, 3, 1]]],
        after_stem(lambda p, x: p.rep_conv("model.1", x)),
    ),
    "RepConv": (
        [STEM, [-1, 1, "RepConv", [16, 3, 2]]],
        after_stem(lambda p, x: p.rep_conv("model.1", x, 2)),
    ),
    "RepConv grouped": (
        [STEM, [-1, 1, "RepConv", [8, 3, 1, None, 2]]],
        after_stem(lambda p, x: p.rep_conv("model.1", x, groups=2)),
    ),
    "DownC": ([STEM, [-1, 1, "DownC", [16]]], after_stem(lambda p, x: p.down_c("model.1", x))),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_a_block_equals_plain_numpy(run, name, engine):
    rows, block = CASES[name]
    x, plain, raw = run(described(rows), engine)
    expected = plain.detect(f"model.{len(rows)}.m.0", block(plain, x))
    np.testing.assert_allclose(raw, expected, atol=2e-5)
    assert np.abs(expected).max() > 0.1
    stored = sum(t.size for name, t in plain.t.items() if "running" not in name)
    assert Design(parse_description(described(rows), "t")).architecture(8, 8).parameters == stored


def test_every_block_is_compared_somewhere():
    compared = {row[2] for rows, _ in CASES.values() for row in rows} | {
        "Detect",
        "IDetect",
        "IAuxDetect",
    }
    assert compared == BLOCKS.keys()


@pytest.mark.parametrize("engine", ENGINES)
def test_implicit_layers_are_folded(run, engine):
    x, plain, raw = run(described([STEM], "IDetect"), engine)
    np.testing.assert_allclose(
        raw, plain.implicit_detect("model.1", 0, plain.conv("model.0", x)), atol=2e-5
    )


def test_auxiliary_layers_are_counted_but_not_in_the_graph(tmp_path):
    values = described([STEM, [-1, 1, "Conv", [16, 1, 1]]], "IAuxDetect")
    values["head"][-1][0] = [0, 1]
    architecture = Design(parse_description(values, "t")).architecture(8, 8)
    tensors = random_tensors(architecture)
    network = open_network(
        str(saved(tmp_path / "t.pt", {"model": whole_model(values, tensors)})), size=(8, 8)
    )
    assert [node.name for node in network.graph.graph.node if node.op_type == "Conv"] == [
        "model.0.conv",
        "model.2.m.0",
    ]
    assert (
        network.parameters
        == architecture.parameters
        == sum(t.size for n, t in tensors.items() if "running" not in n)
    )
    assert network.parameters_fused == 3 * 8 * 9 + 8 + 8 * 12 + 12
    assert network.output_shapes == [(1, 12, 8, 8)]


def whole_model(
    values: dict, tensors: dict, conv: dict | None = None, act: str = "SiLU", eps: float = 1e-3
):
    leaves: dict = {}
    for name, array in tensors.items():
        *way, last = name.split(".")
        place = leaves
        for part in way:
            place = place.setdefault(part, {})
        place[last] = array

    def build(path: str, node: dict):
        parts = {
            name: build(f"{path}.{name}", part)
            for name, part in node.items()
            if isinstance(part, dict)
        }
        arrays = {name: part for name, part in node.items() if not isinstance(part, dict)}
        if "running_mean" in arrays:
            return module("torch.nn.modules.batchnorm.BatchNorm2d", **arrays, eps=eps)
        if "weight" in arrays:
            return module("torch.nn.modules.conv.Conv2d", **arrays, **(conv or {}))
        if "conv" in parts:
            parts["act"] = module(f"torch.nn.modules.activation.{act}", negative_slope=0.3)
            return module("models.common.Conv", parts)
        return module("torch.nn.modules.container.Sequential", parts, **arrays)

    return module(
        "models.yolo.Model",
        {"model": build("model", leaves["model"])},
        yaml=values,
        names=["thing"],
    )


def test_checkpoint_states_activation_and_epsilon(tmp_path):
    values = described([STEM])
    tensors = random_tensors(Design(parse_description(values, "t")).architecture(8, 8))
    path = saved(
        tmp_path / "t.pt", {"model": whole_model(values, tensors, act="LeakyReLU", eps=0.5)}
    )
    pictures = np.random.default_rng(5).integers(0, 256, (1, 8, 8, 3), np.uint8)
    network = open_network(str(path), size=(8, 8))
    (raw,) = run_once(network, pictures)
    variance = tensors["model.0.bn.running_var"] + 0.5 - 1e-3  # ``Plain`` itself adds 1e-3
    plain = Plain(
        {**tensors, "model.0.bn.running_var": variance}, lambda x: np.where(x > 0, x, 0.3 * x)
    )
    expected = plain.detect(
        "model.1.m.0", plain.conv("model.0", pictures[0].transpose(2, 0, 1) / 255)
    )
    np.testing.assert_allclose(raw[0], expected, atol=2e-5)
    assert network.names == ("thing",)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"conv": {"stride": (2, 2)}}, "model.0.conv has stride (2, 2), but"),
        ({"conv": {"dilation": (3, 3)}}, "model.0.conv has dilation (3, 3)"),
        ({"conv": {"groups": 2}}, "model.0.conv has groups 2"),
        ({"act": "GELU"}, "its activation torch.nn.modules.activation.GELU is not supported"),
        ({"eps": -1.0}, "eps of model.0.bn is not a number between 0 and 1"),
    ],
)
def test_a_changed_block_is_refused(tmp_path, changed, message):
    values = described([STEM])
    tensors = random_tensors(Design(parse_description(values, "t")).architecture(8, 8))
    path = saved(tmp_path / "t.pt", {"model": whole_model(values, tensors, **changed)})
    assert message in refusal(str(path), size=(8, 8))


def test_folded_checkpoint_gives_the_same_outputs(tmp_path, run):
    values = described([STEM, [-1, 1, "RepConv", [8, 3, 1]]])
    x, _, raw = run(values)
    network = open_network(str(tmp_path / "t.yaml"), size=(8, 8))
    folded = {}
    for tensor in network.graph.graph.initializer:
        from onnx import numpy_helper

        folded[tensor.name] = numpy_helper.to_array(tensor)
    # The graph divides its first weights by 255, for u8 pixels.
    folded["model.0.conv.weight"] = folded["model.0.conv.weight"] * 255
    saved(tmp_path / "t.pt", folded)
    again = open_network(str(tmp_path / "t.yaml"), size=(8, 8))
    pictures = np.round(x * 255).astype(np.uint8).transpose(1, 2, 0)[None]
    np.testing.assert_allclose(run_once(again, pictures)[0][0], raw, atol=1e-5)
    assert again.parameters == again.parameters_fused == network.parameters_fused


@pytest.mark.slow
def test_layers_keep_their_names():
    network = open_network("yolov5n.yaml", random_seed=0, size=(64, 64))
    names = [node.name for node in network.graph.graph.node]
    assert {
        "model.6.m.0.cv2.conv",
        "model.6.m.0.cv2.act",
        "model.6.m.0.add",
        "model.9.m.1",
        "model.24.m.2",
    } <= set(names)
    assert all(good_name(name) for name in names)
    assert [node.output[0] for node in network.graph.graph.node] == names
    assert [info.name for info in network.graph.graph.output] == [
        "model.24.m.0",
        "model.24.m.1",
        "model.24.m.2",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["yolov5n", "yolov5s-5.0", "yolov7-tiny"])
def test_architecture_and_graph_have_the_same_counts(name):
    network = open_network(f"{name}.yaml", random_seed=0, size=(64, 96))
    graph = network.graph.graph
    stored = sum(
        int(np.prod(tensor.dims))
        for tensor in graph.initializer
        if tensor.name.endswith((".weight", ".bias"))
    )
    values = yaml.safe_load((catalogue.folder() / "yolo" / f"{name}.yaml").read_text())
    architecture = Design(parse_description(values, name)).architecture(64, 96)
    assert network.parameters_fused == architecture.parameters_fused == stored
    assert network.macs == architecture.macs == count_macs(network.graph)
    assert network.parameters == architecture.parameters


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["yolov5n", "yolov7-tiny"])
def test_batch_equals_single_pictures_and_outputs_stay_in_range(engine, name):
    pictures = np.random.default_rng(1).integers(0, 256, (2, 64, 96, 3), np.uint8)
    both = run_once(
        open_network(f"{name}.yaml", random_seed=3, size=(64, 96), batch=2), pictures, engine
    )
    alone = open_network(f"{name}.yaml", random_seed=3, size=(64, 96))
    for at in range(2):
        for part, one in zip(both, run_once(alone, pictures[at : at + 1], engine), strict=True):
            np.testing.assert_allclose(part[at : at + 1], one, atol=2e-4)
    for raw in both:
        assert 0.1 < raw.std() < 10


@pytest.mark.slow
def test_seed_determines_the_network():
    first, again, other = (
        open_network("yolov5n.yaml", random_seed=seed, size=(64, 64)) for seed in (1, 1, 2)
    )
    assert first.graph.SerializeToString() == again.graph.SerializeToString()
    assert first.sha256 == again.sha256 != other.sha256
    assert first.graph.graph.initializer[0].raw_data != other.graph.graph.initializer[0].raw_data
    assert "(seed 1)" in first.warnings[-1]


def test_picture_is_folded_in_the_order_of_focus():
    """Focus joins the even columns, then the odd ones. In each, even rows come before odd rows."""
    x = np.arange(3 * 4 * 6, dtype=np.float32).reshape(3, 4, 6)
    values = SimpleNamespace(_values={"picture": x})
    folded = SimpleNamespace(name="f", folded=SimpleNamespace(name="picture"))
    expected = np.concatenate([x[:, ::2, ::2], x[:, 1::2, ::2], x[:, ::2, 1::2], x[:, 1::2, 1::2]])
    assert (RandomNumbers._find_value(values, folded) == expected).all()
