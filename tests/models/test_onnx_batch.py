"""A file's fixed batch or size is changed only if the result is proved to be right."""

import numpy as np
import pytest

from detector.core.errors import ModelError
from tests.known_answers import run_once
from tests.models import exports
from tests.models.exports import STATED, Export
from tests.networks import open_network, refusal

RNG = np.random.default_rng(3)


def pictures(count: int, height: int = 64, width: int = 64) -> np.ndarray:
    return RNG.integers(0, 256, (count, height, width, 3), np.uint8)


@pytest.mark.parametrize(
    "graph", [exports.yolox, exports.decoded, exports.anchor_free, exports.finished, exports.parts]
)
def test_batch_gives_the_same_as_its_pictures_alone(tmp_path, graph):
    path = graph().save(tmp_path / "m.onnx", STATED)
    inputs = np.stack([picture // (at + 1) for at, picture in enumerate(pictures(5))])
    together = run_once(open_network(path, batch=5), inputs)
    one = open_network(path)
    alone = [run_once(one, picture[None]) for picture in inputs]
    for at, output in enumerate(together):
        assert len(output) == 5
        np.testing.assert_allclose(
            output, np.concatenate([outputs[at] for outputs in alone]), rtol=1e-5, atol=1e-6
        )
    assert any(not np.array_equal(output[0], output[1]) for output in together), "pictures differ"


def test_fixed_batch_of_three_can_become_one(tmp_path):
    inputs = pictures(3)
    path = exports.decoded(batch=3).save(tmp_path / "m.onnx", STATED)
    [three] = run_once(open_network(path, batch=3), inputs)
    [one] = run_once(open_network(path, batch=1), inputs[:1])
    np.testing.assert_allclose(one[0], three[0], rtol=1e-6)


def mixing(operator):
    """Make a graph whose ``operator`` mixes the pictures of a batch, or may mix them."""
    export = Export()
    colours = export.colours()
    match operator:
        case "Reshape":  # [1, 1, 3] -> [3, 1], without the batch axis
            flat = export.add("Reshape", colours, export.ints(3, 1))
            colours = export.add("Reshape", flat, export.ints(1, 1, 3))
        case "ReduceMax":  # along the batch axis
            colours = export.add("ReduceMax", colours, axes=[0])
        case "Softmax":
            colours = export.add("Softmax", colours, axis=0)
        case "Concat":  # a constant next to the pictures' rows
            export.outputs.clear()
            rows = export.const(np.zeros((1, 250, 8)))
            two = export.add(
                "Concat",
                export.table(colours, [(1.0,) * 5] * 2, 2),
                export.scores(colours, 2, 2),
                axis=2,
            )
            return export.out("output0", export.add("Concat", two, rows, axis=1))
        case "CumSum":
            colours = export.add("CumSum", colours, export.const(0, np.int64))

    table = export.table(colours, [(1.0,) * 5] * 2, 252)
    return export.out(
        "output0", export.add("Concat", table, export.scores(colours, 2, 252), axis=2)
    )


@pytest.mark.parametrize("operator", ["Reshape", "ReduceMax", "Softmax", "Concat", "CumSum"])
def test_refusal_names_the_node_that_mixes_pictures(tmp_path, operator):
    path = mixing(operator).save(tmp_path / "m.onnx", STATED)
    assert open_network(path).batch == 1
    reason = refusal(path, batch=8)
    assert "1, and node /model.9/" in reason
    assert "8 pictures" in reason
    assert "use --batch 1" in reason


@pytest.mark.parametrize(
    "graph",
    [exports.nms_inside(), exports.nms_inside(batch="b"), exports.anchor_free(pixels="chw")],
)
def test_file_for_one_picture_refuses_a_batch(tmp_path, graph):
    with pytest.raises(ModelError, match=r"--batch 1\b"):
        open_network(graph.save(tmp_path / "yolov7.onnx", STATED), batch=2)


# ---- sizes


def test_fully_convolutional_file_takes_another_size(tmp_path):
    path = exports.yolox().save(tmp_path / "m.onnx")
    network = open_network(path, size=(96, 160), batch=2)
    assert network.output_shapes == [(2, (96 * 160) * 21 // 1024, 8)]
    assert network.dense(run_once(network, pictures(2, 96, 160))).shape == (1, 315, 8)
    np.testing.assert_allclose(
        network.dense(run_once(network, pictures(1, 96, 160)[[0, 0]]))[0, 314, :2], [144, 80]
    )


def test_constant_grid_is_refused_at_another_size(tmp_path):
    """32x128 has as many cells as 64x64: the shapes would fit, but the boxes would be wrong."""
    path = exports.yolox(decode=True).save(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r" 64x64, .* node .*\((Add|Split)\)"):
        open_network(path, size=(32, 128))
    with pytest.raises(ModelError, match=r"64x64.*128x128"):
        open_network(path, size=(128, 128))


# ---- channel order and Focus, folded into the first convolution


def run_file(path: str, rgb: np.ndarray) -> np.ndarray:
    """Run an unchanged YOLOX file on each picture alone. The file reads BGR."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    bgr = rgb[..., ::-1].transpose(0, 3, 1, 2).astype(np.float32)
    return np.concatenate([session.run(None, {"images": one[None]})[0] for one in bgr])


def test_folded_focus_equals_the_unchanged_file(tmp_path):
    """The first convolution takes over the channel order and the Focus."""
    path = exports.yolox(focus=True).save(tmp_path / "yolox.onnx")
    inputs = pictures(3)
    expected = run_file(path, inputs)
    assert len(np.unique(expected[:, :, 4])) > 200, "each pixel counts"
    network = open_network(path, batch=3)
    np.testing.assert_allclose(run_once(network, inputs)[0], expected, atol=2e-4)
    maps = [(stride, (64 // stride) ** 2) for stride in (8, 16, 32)]
    assert network.macs == sum(cells * 8 * 3 * stride**2 for stride, cells in maps)
    assert network.parameters == sum(8 * 3 * stride**2 + 8 for stride, _ in maps)


@pytest.mark.slow
def test_published_yolox_nano_equals_the_unchanged_file(shared):
    path = str(shared / "data/weights/yolox_nano.onnx")
    inputs = pictures(3, 416, 416)
    network = open_network(path, batch=3)
    np.testing.assert_allclose(run_once(network, inputs)[0], run_file(path, inputs), atol=2e-4)
    assert network.parameters == 904463  # 18 of the file's 904,481 values are sizes and bounds
    assert 2 * network.macs == 1045106816
