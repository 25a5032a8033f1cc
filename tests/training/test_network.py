"""The network agrees with its exported files. Half-precision gradients agree with torch's."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="machine: torch is not installed")

from detector.core.models.formats.darknet.weights import read_weights  # noqa: E402
from model import export, optimiser  # noqa: E402
from model.network import CERTAIN, Street, convolve_half, decode, read_layers  # noqa: E402
from tests.networks import open_network  # noqa: E402
from tests.training.conftest import ROOT  # noqa: E402

CFG = ROOT / "cfg/darknet/street.cfg"
SIZE = (64, 96)


@pytest.fixture
def network():
    torch.manual_seed(1)
    street = Street(read_layers(CFG))
    for block in street.blocks.values():  # statistics like those after some training
        if block.norm is not None:
            block.norm.running_mean.normal_(0, 0.1)
            block.norm.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(block.norm.weight, 0.5, 1.5)
            torch.nn.init.normal_(block.norm.bias, 0, 0.1)
    return street.eval()


def rows_of_package(weights, picture):
    import onnxruntime

    package = open_network(str(CFG), weights=str(weights), size=SIZE)
    session = onnxruntime.InferenceSession(
        package.graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return package.dense(session.run(None, {session.get_inputs()[0].name: picture[None]}))[0]


def rows_of_training(network, picture):
    x = torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        boxes, logits = decode(network(x), SIZE)
    boxes = boxes[0].numpy()
    return (
        (boxes[:, :2] + boxes[:, 2:]) / 2,
        boxes[:, 2:] - boxes[:, :2],
        logits[0].sigmoid().numpy(),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "tolerance"), [("weights", 1e-3), ("f16", 0.05)])
def test_exported_files_give_the_same_rows_as_the_network(network, tmp_path, suffix, tolerance):
    picture = np.random.default_rng(0).integers(0, 255, (*SIZE, 3), dtype=np.uint8)
    paths = {path.suffix[1:]: path for path in export.write(network, tmp_path, 0)}
    rows = rows_of_package(paths[suffix], picture)
    centres, sizes, scores = rows_of_training(network, picture)
    np.testing.assert_allclose(rows[:, :2], centres, atol=10 * tolerance)
    np.testing.assert_allclose(rows[:, 2:4], sizes, rtol=5 * tolerance, atol=10 * tolerance)
    np.testing.assert_allclose(rows[:, 5:], scores, atol=tolerance)
    assert rows[:, 4].min() > 0.999999  # objectness is a constant


@pytest.mark.slow
def test_folding_the_normalisation_keeps_the_outputs(network, tmp_path):
    export.write_weights(network, tmp_path / "a.weights", 0)
    filters = export.read(tmp_path / "a.weights", CFG)
    export.write_filters(filters, tmp_path / "b.weights", "<f4")
    picture = np.random.default_rng(0).integers(0, 255, (*SIZE, 3), dtype=np.uint8)
    a, b = (rows_of_package(tmp_path / f"{name}.weights", picture) for name in "ab")
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_calibrating_weights_scales_and_shifts_the_logits(network, tmp_path):
    export.write_weights(network, tmp_path / "a.weights", 0)
    filters = export.read(tmp_path / "a.weights", CFG)
    export.calibrate_scores(filters, CFG, (2.0, 0.8), (-1.0, 0.5))
    export.write_filters(filters, tmp_path / "b.weights", "<f4")
    picture = np.random.default_rng(0).integers(0, 255, (*SIZE, 3), dtype=np.uint8)
    a, b = (
        np.log(p / (1 - p))
        for p in (rows_of_package(tmp_path / f"{n}.weights", picture)[:, 5:] for n in "ab")
    )
    np.testing.assert_allclose(b, a * [2.0, 0.8] + [-1.0, 0.5], atol=4e-3)


@pytest.mark.slow
def test_training_step_keeps_objectness_constant(network, tmp_path):
    optimisers = optimiser.Optimisers(network.train())
    maps = network(torch.rand(2, 3, *SIZE))
    sum(m.square().mean() for m in maps).backward()
    optimisers.step(1.0)
    network.pin_objectness()
    export.write_weights(network, tmp_path / "a.weights", 0)
    architecture = read_layers(CFG)
    indices = [layer.index for layer in architecture.convolutions]
    filters = dict(zip(indices, read_weights(tmp_path / "a.weights", architecture), strict=True))
    for layer in architecture.yolos:
        assert filters[layer.inputs[0]].biases[4] == CERTAIN
        assert not filters[layer.inputs[0]].weights[4].any()


@pytest.mark.parametrize(
    ("inputs", "filters", "kernel", "stride"),
    [(3, 16, 3, 2), (16, 32, 3, 2), (16, 8, 1, 1), (16, 16, 3, 1)],
)
def test_half_precision_convolution_has_the_gradients_of_torch(inputs, filters, kernel, stride):
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(inputs, filters, kernel, stride, kernel // 2).to(
        memory_format=torch.channels_last
    )
    x = (
        torch.randn(2, inputs, 12, 20)
        .contiguous(memory_format=torch.channels_last)
        .requires_grad_()
    )
    out, half = conv(x), convolve_half(conv, x)
    direction = torch.randn_like(out)
    parts = [x, conv.weight, conv.bias]
    for exact, near in zip(
        (out, *torch.autograd.grad(out, parts, direction)),
        (half, *torch.autograd.grad(half, parts, direction.bfloat16())),
        strict=True,
    ):
        assert (exact - near.float()).abs().max() < 0.015 * exact.abs().max()


@pytest.mark.slow
def test_orthogonalised_matrices_have_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((3, 8, 20), (3, 20, 8)):
        values = torch.linalg.svdvals(optimiser.orthogonalise(torch.randn(*shape)))
        assert 0.6 < values.min() <= values.max() < 1.3


def test_rate_rises_during_warm_up_then_falls():
    assert optimiser.rate(0, 1000) == pytest.approx(1 / 150)
    assert optimiser.rate(150, 1000) == pytest.approx(1.0)
    assert optimiser.rate(1000, 1000) == pytest.approx(optimiser.LAST)
    falling = [optimiser.rate(step, 1000) for step in range(150, 1000)]
    assert falling == sorted(falling, reverse=True)
