"""Graphs of cfg files: outputs as of plain code, and the expected names, sizes and MACs."""

from pathlib import Path

import numpy as np
import pytest

from detector.core.models import catalogue
from detector.core.models.formats.darknet.cfg import parse_cfg
from detector.core.models.formats.darknet.layers import read_architecture
from detector.core.models.formats.darknet.weights import random_weights
from detector.core.models.graph.build import count_macs, good_name
from detector.core.models.graph.operators import ACTIVATIONS
from tests.known_answers import darknet_maxpool, plain_conv, run_once
from tests.networks import open_network

ENGINES = ("ort", "torch")


@pytest.fixture
def cfg(tmp_path: Path):
    """``cfg(sections)`` writes a cfg for 8x8 pixels. The default ``head`` needs 7 channels."""

    def write(sections: str, height: int = 8, width: int = 8, head: str = "") -> Path:
        path = tmp_path / "t.cfg"
        head = head or "[yolo]\nanchors=4,4\nclasses=2\nnum=1\n"
        path.write_text(f"[net]\nwidth={width}\nheight={height}\n{sections}\n{head}")
        return path

    return write


def filters_of(path: Path, seed: int = 3):
    sections, _ = parse_cfg(path.read_text(), str(path))
    return random_weights(read_architecture(sections), seed)


def picture(height: int = 8, width: int = 8, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (1, height, width, 3), np.uint8)


def as_network_input(pictures: np.ndarray) -> np.ndarray:
    """Return the first picture as [c, h, w] in 0..1."""
    return pictures[0].transpose(2, 0, 1) / 255


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        ("size=1", {}),
        ("size=3\npad=1", {"padding": 1}),
        ("size=3\npad=1\nbatch_normalize=1", {"padding": 1}),
        ("size=3\npadding=2\nstride=2", {"padding": 2, "stride": (2, 2)}),
        ("size=3\npad=1\npadding=7", {"padding": 1}),  # pad overrides padding
        ("size=2\nstride=2", {"stride": (2, 2)}),
        ("size=3\npad=1\nstride_x=2\nstride_y=1", {"padding": 1, "stride": (1, 2)}),
        ("size=3\npad=1\ndilation=2", {"padding": 2, "dilation": 2}),
    ],
)
def test_first_convolution_with_folded_pixel_scale_equals_plain_code(cfg, engine, keys, arguments):
    path = cfg(f"[convolutional]\nfilters=7\nactivation=linear\n{keys}\n")
    (stored,) = filters_of(path)
    pictures = picture()
    expected = plain_conv(as_network_input(pictures), stored.weights, **arguments)
    if stored.scales is not None:
        expected -= stored.means[:, None, None]
        expected *= (stored.scales / np.sqrt(stored.variances + 1e-5))[:, None, None]
    expected += stored.biases[:, None, None]
    (output,) = run_once(open_network(str(path), random_seed=3), pictures, engine)
    np.testing.assert_allclose(output[0], expected, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("groups", [2, 6])  # 6: depthwise
def test_grouped_convolution_equals_plain_code(cfg, engine, groups):
    path = cfg(
        "[convolutional]\nfilters=6\nactivation=linear\n"
        f"[convolutional]\nfilters=6\nsize=3\npad=1\ngroups={groups}\nactivation=linear\n"
        "[route]\nlayers=0,1,-1\n",
        head="[convolutional]\nfilters=7\nactivation=linear\n[yolo]\nanchors=4,4\nclasses=2\n",
    )
    first, second, last = filters_of(path)
    pictures = picture()
    a = plain_conv(as_network_input(pictures), first.weights) + first.biases[:, None, None]
    b = plain_conv(a, second.weights, padding=1, groups=groups) + second.biases[:, None, None]
    expected = plain_conv(np.concatenate([a, b, b]), last.weights) + last.biases[:, None, None]
    (output,) = run_once(open_network(str(path), random_seed=3), pictures, engine)
    np.testing.assert_allclose(output[0], expected, atol=1e-5)


PLAIN_ACTIVATIONS = {
    "linear": lambda x: x,
    "leaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.minimum(np.maximum(x, 0), 6),
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    # as in darknet's activations.h
    "hard_mish": lambda x: np.where(x > 0, x, np.where(x > -2, x * x / 2 + x, 0)),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}


def test_every_activation_has_plain_code():
    assert ACTIVATIONS.keys() == PLAIN_ACTIVATIONS.keys()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activation_equals_its_formula(cfg, tmp_path, engine, name):
    path = cfg(f"[convolutional]\nfilters=7\nactivation={name}\n")
    (stored,) = filters_of(path)
    header = np.array([0, 2, 5, 0, 0], "<i4").tobytes()
    weights = stored.weights * 8  # reaches every branch: below -3, above 6
    path.with_suffix(".weights").write_bytes(header + stored.biases.tobytes() + weights.tobytes())
    pictures = picture()
    x = plain_conv(as_network_input(pictures), weights) + stored.biases[:, None, None]
    assert x.min() < -3
    assert x.max() > 6
    (output,) = run_once(open_network(str(path)), pictures, engine)
    np.testing.assert_allclose(output[0], PLAIN_ACTIVATIONS[name](x), atol=2e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "side"),
    [
        (2, 2, None, 8),  # the usual pool
        (2, 2, None, 9),  # an odd side: the last window extends beyond it
        (2, 1, None, 8),  # yolov3-tiny's pool keeps the size: it pads only right and below
        (5, 1, None, 8),  # spatial pyramid pooling
        (3, 2, 0, 8),
        (3, 2, 1, 8),
        (3, 3, 2, 8),
    ],
)
def test_maxpool_equals_darknets_loop(cfg, engine, kernel, stride, padding, side):
    # The input must be a multiple of the stride; a convolution reduces it to ``side``.
    whole = -(-side // stride) * stride
    keys = "" if padding is None else f"padding={padding}\n"
    head = f"[maxpool]\nsize={kernel}\nstride={stride}\n{keys}[yolo]\nanchors=4,4\nclasses=2\n"
    path = cfg(
        f"[convolutional]\nfilters=7\nsize={whole - side + 1}\nactivation=linear\n",
        whole,
        whole,
        head,
    )
    (stored,) = filters_of(path)
    stored.biases -= 50  # all values are negative: zero padding would be the maximum
    path.with_suffix(".weights").write_bytes(
        np.array([0, 2, 5, 0, 0], "<i4").tobytes()
        + stored.biases.tobytes()
        + stored.weights.tobytes()
    )
    pictures = picture(whole, whole)
    x = plain_conv(as_network_input(pictures), stored.weights) + stored.biases[:, None, None]
    assert x.shape[1:] == (side, side)
    assert x.max() < 0
    expected = darknet_maxpool(x, kernel, stride, kernel - 1 if padding is None else padding)
    (output,) = run_once(open_network(str(path)), pictures, engine)
    np.testing.assert_allclose(output[0], expected, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_network_of_route_shortcut_upsample_and_dropout_equals_plain_code(cfg, engine):
    """One network has all these layers; plain code computes them one by one."""
    path = cfg(
        "[convolutional]\nfilters=8\nactivation=linear\n"  # 0
        "[route]\nlayers=-1\ngroups=2\ngroup_id=1\n"  # 1: channels 4..7
        "[route]\nlayers=0\ngroups=4\ngroup_id=0\n"  # 2: channels 0, 1
        # 3: the second halves of layers 2, 1 and 0
        "[route]\nlayers=-1,1,0\ngroups=2\ngroup_id=1\n"
        "[dropout]\nprobability=.5\n"  # 4
        "[shortcut]\nfrom=3\nactivation=leaky\n"  # 5: the sum of layers 4 and 3
        "[shortcut]\nfrom=-2,3\n"  # 6: the sum of layers 5, 4 and 3
        "[upsample]\nstride=2\nscale=.5\n",  # 7
        head="[yolo]\nanchors=4,4\nclasses=2\n[route]\nlayers=6\n[avgpool]\n[yolo]\nanchors=4,4\nclasses=2\n",
    )
    (stored,) = filters_of(path)
    pictures = picture()
    x = plain_conv(as_network_input(pictures), stored.weights) + stored.biases[:, None, None]
    joined = np.concatenate([x[1:2], x[6:8], x[4:8]])
    doubled = PLAIN_ACTIVATIONS["leaky"](2 * joined)
    total = doubled + 2 * joined
    network = open_network(str(path), random_seed=3)
    large, mean = run_once(network, pictures, engine)
    np.testing.assert_allclose(large[0], 0.5 * total.repeat(2, 1).repeat(2, 2), atol=1e-5)
    np.testing.assert_allclose(mean[0], total.mean((1, 2), keepdims=True), atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("here", "others"),
    [
        (4, (7,)),  # yolov3-tiny-prn: the first 4 of 7 are added
        (7, (4,)),  # csresnext50-panet-spp: 4 are added to the first 4 of 7
        (5, (5, 8)),
        (6, (2, 6, 9, 3)),
    ],
)
def test_shortcut_adds_common_channels(cfg, engine, here, others):
    """As in darknet, the output has as many channels as the layer before the shortcut."""
    convolutions = "".join(
        f"[convolutional]\nfilters={count}\nactivation=linear\n[route]\nlayers={2 * at}\n"
        for at, count in enumerate((*others, here))
    )
    named = ",".join(str(2 * at) for at in range(len(others)))
    path = cfg(
        f"{convolutions}[shortcut]\nfrom={named}\nactivation=leaky\n",
        head="[convolutional]\nfilters=7\nactivation=linear\n[yolo]\nanchors=4,4\nclasses=2\n",
    )
    *before, last = filters_of(path)
    pictures = picture()
    x, outputs = as_network_input(pictures), []
    for stored in before:
        x = plain_conv(x, stored.weights) + stored.biases[:, None, None]
        outputs.append(x)
    total = outputs[-1].copy()
    for one in outputs[:-1]:
        common = min(len(total), len(one))
        total[:common] += one[:common]
    total = PLAIN_ACTIVATIONS["leaky"](total)
    expected = plain_conv(total, last.weights) + last.biases[:, None, None]
    network = open_network(str(path), random_seed=3)
    (output,) = run_once(network, pictures, engine)
    np.testing.assert_allclose(output[0], expected, atol=2e-5)
    assert all(good_name(node.name) for node in network.graph.graph.node)


@pytest.mark.parametrize("engine", ENGINES)
def test_scale_channels_and_sam_equal_plain_code(cfg, engine):
    """enet-coco and channel attention have scale_channels, cspx-p7-mish has sam."""
    path = cfg(
        "[convolutional]\nfilters=7\nactivation=linear\n"  # 0
        "[avgpool]\n"  # 1
        "[scale_channels]\nfrom=0\nactivation=leaky\n"  # 2: a factor for each channel
        "[convolutional]\nfilters=1\nactivation=logistic\n"  # 3
        "[scale_channels]\nfrom=2\nscale_wh=1\n"  # 4: a factor for each position
        "[sam]\nfrom=-5\n"  # 5: layer 4 times layer 0
    )
    first, second = filters_of(path)
    pictures = picture()
    x = plain_conv(as_network_input(pictures), first.weights) + first.biases[:, None, None]
    scaled = PLAIN_ACTIVATIONS["leaky"](x * x.mean((1, 2), keepdims=True))
    places = PLAIN_ACTIVATIONS["logistic"](
        plain_conv(scaled, second.weights) + second.biases[:, None, None]
    )
    (output,) = run_once(open_network(str(path), random_seed=3), pictures, engine)
    np.testing.assert_allclose(output[0], scaled * places * x, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_pixel_scale_is_a_node_if_the_first_layer_is_not_a_convolution(cfg, engine):
    path = cfg(
        "[maxpool]\nsize=2\nstride=2\n",
        head="[convolutional]\nfilters=7\nactivation=linear\n[yolo]\nanchors=1,1\nclasses=2\n",
    )
    (stored,) = filters_of(path)
    pictures = picture()
    pooled = darknet_maxpool(as_network_input(pictures), 2, 2, 1)
    expected = plain_conv(pooled, stored.weights) + stored.biases[:, None, None]
    (output,) = run_once(open_network(str(path), random_seed=3), pictures, engine)
    np.testing.assert_allclose(output[0], expected, atol=1e-5)


def test_two_heads_that_read_one_map_give_two_outputs(cfg):
    path = cfg(
        "[convolutional]\nfilters=7\nactivation=linear\n",
        head="[yolo]\nanchors=4,4\nclasses=2\n[route]\nlayers=0\n[yolo]\nanchors=8,8\nclasses=2\n",
    )
    network = open_network(str(path), random_seed=3)
    assert [info.name for info in network.graph.graph.output] == ["0.conv", "3.yolo"]
    one, two = run_once(network, picture())
    np.testing.assert_array_equal(one, two)


def test_pictures_of_a_batch_do_not_mix(cfg):
    path = cfg("[convolutional]\nfilters=7\nsize=3\npad=1\nactivation=mish\n")
    network = open_network(str(path), random_seed=3, batch=3)
    assert network.input_shape == (3, 8, 8, 3)
    pictures = np.concatenate([picture(seed=seed) for seed in range(3)])
    (together,) = run_once(network, pictures)
    one = open_network(str(path), random_seed=3)
    for at in range(3):
        np.testing.assert_allclose(
            together[at : at + 1], run_once(one, pictures[at : at + 1])[0], atol=1e-6
        )
    assert network.macs == one.macs  # for one picture, not for the batch


@pytest.mark.slow
def test_yolov4_tiny_has_its_published_size():
    """Its weights file has 24,251,276 bytes (header: 20); darknet prints 6.9 BFLOPs (2 x MACs)."""
    network = open_network("yolov4-tiny", random_seed=0)
    assert network.parameters == (24_251_276 - 20) // 4
    assert 2 * network.macs / 1e9 == pytest.approx(6.91, abs=0.01)


@pytest.mark.parametrize("name", ["street", "street-1"])
def test_all_numbers_of_packaged_weights_are_used(name):
    network = open_network(name)
    weights = catalogue.folder() / "weights" / f"{name}.f16"
    assert network.parameters * 2 + 20 == weights.stat().st_size
    assert network.warnings == []
    assert (network.family, len(network.names), network.random_seed) == ("darknet", 2, None)


@pytest.mark.slow
def test_packaged_person_vehicle_cfg_equals_the_shared_one(shared):
    ours = open_network("yolov4-tiny-person-vehicle", random_seed=7)
    labs = open_network(str(shared / "data/weights/yolov4-tiny-person-vehicle.cfg"), random_seed=7)
    assert ours.parameters * 4 + 20 == 23_530_556
    assert ours.graph.graph == labs.graph.graph  # every node, shape and weight
    assert ours.names == labs.names == ("person", "vehicle")
    rng = np.random.default_rng(0)
    raw = [rng.normal(size=shape).astype(np.float32) for shape in ours.output_shapes]
    np.testing.assert_array_equal(ours.dense(raw), labs.dense(raw))


@pytest.mark.slow
def test_node_names_follow_our_rule():
    graph = open_network("yolov4-tiny", random_seed=0).graph.graph
    for node in graph.node:
        assert list(node.output) == [node.name]
        assert good_name(node.name), node.name
    names = [node.name for node in graph.node]
    assert names[:4] == ["input.cast", "input.transpose", "0.conv", "0.act"]
    assert "3.route" in names
    assert [info.name for info in graph.output] == ["29.conv", "36.conv"]


def test_macs_of_convolutions_and_products_are_counted():
    from onnx import TensorProto, helper

    def info(name, *shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], group=2),
            helper.make_node("ConvTranspose", ["x", "t"], ["b"]),
            helper.make_node("Gemm", ["m", "n"], ["c"], transA=1),
            helper.make_node("MatMul", ["p", "q"], ["d"]),
            helper.make_node("Add", ["d", "d"], ["e"]),
        ],
        "g",
        [
            info("x", 2, 4, 5, 5),
            info("w", 6, 2, 3, 3),
            info("t", 4, 3, 2, 2),
            info("m", 7, 2),
            info("n", 7, 9),
            info("p", 2, 3, 4),
            info("q", 4, 5),
        ],
        [
            info("a", 2, 6, 3, 3),
            info("b", 2, 3, 6, 6),
            info("c", 2, 9),
            info("d", 2, 3, 5),
            info("e", 2, 3, 5),
        ],
    )
    conv, transposed, gemm, matmul = 2 * 6 * 9 * 2 * 9, 2 * 4 * 25 * 3 * 4, 2 * 9 * 7, 2 * 3 * 5 * 4
    assert count_macs(helper.make_model(graph)) == (conv + transposed + gemm + matmul) // 2
