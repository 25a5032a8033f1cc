"""Training restarts from weights with folded batch normalisation; files of weights are averaged."""

import struct

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="machine: torch is not installed")

from model import export  # noqa: E402
from model.loop import Options, save, size_at  # noqa: E402
from model.network import Street, read_layers  # noqa: E402
from model.optimiser import Average, Optimisers  # noqa: E402
from model.restart import read_into  # noqa: E402
from tests.conftest import CHECKOUT  # noqa: E402

CFG = CHECKOUT / "cfg/darknet/street.cfg"
SHIPPED = CHECKOUT / "cfg/weights/street.f16"


@pytest.mark.slow
@torch.no_grad()
def test_restarted_network_has_the_outputs_of_the_shipped_weights():
    """Check eval mode (with stored statistics) and train mode (with those of the batch)."""
    torch.manual_seed(0)
    pictures = torch.rand(2, 3, 96, 160)
    network = Street(read_layers(CFG))
    read_into(network, SHIPPED, [pictures])
    plain = Street(read_layers(CFG)).eval()
    filters = export.read(SHIPPED, CFG)
    for layer, stored in zip(plain.architecture.convolutions, filters, strict=True):
        block = plain.blocks[str(layer.index)]
        block.conv.weight.copy_(torch.from_numpy(stored.weights))
        (block.conv if block.norm is None else block.norm).bias.copy_(
            torch.from_numpy(stored.biases)
        )
    expected = plain(pictures)
    for mode in (network.eval(), network.train()):
        for output, expected_output in zip(mode(pictures), expected, strict=True):
            assert torch.allclose(output, expected_output, atol=1e-4)
    norms = [block.norm for block in network.blocks.values() if block.norm is not None]
    assert not all(torch.allclose(norm.running_var, torch.ones(())) for norm in norms)


def test_canvas_of_each_step_is_random_but_reproducible(tmp_path):
    canvases = ((288, 512), (384, 640))
    options = Options(tmp_path, steps=40, canvases=canvases)
    drawn = [size_at(step, options) for step in range(40)]
    assert set(drawn) == set(canvases)
    assert drawn == [size_at(step, options) for step in range(40)]


@pytest.mark.slow
def test_mix_is_the_average_of_a_checkpoint_and_shipped_weights(tmp_path):
    torch.manual_seed(1)
    network = Street(read_layers(CFG))
    average, optimisers = Average(network), Optimisers(network)
    options = Options(tmp_path / "1", steps=1)
    options.run.mkdir()
    save(options, network, average, optimisers, 10)
    parts = [(options.run / "checkpoint.pt", 3.0), (SHIPPED, 1.0)]
    written = export.mix(parts, tmp_path / "mean", CFG)
    assert [path.name for path in written] == ["street.weights", "street.f16"]
    weights = export.weights_from_checkpoint(parts[0][0], CFG)
    assert struct.unpack("<3iq", weights.read_bytes()[:20])[3] == 10 * options.batch  # pictures
    trained = export.read(weights, CFG)
    shipped = export.read(SHIPPED, CFG)
    for mean, trained_filter, shipped_filter in zip(
        export.read(written[0], CFG), trained, shipped, strict=True
    ):
        for name in ("biases", "weights"):
            expected = 0.75 * getattr(trained_filter, name) + 0.25 * getattr(shipped_filter, name)
            np.testing.assert_allclose(getattr(mean, name), expected, rtol=3e-5, atol=1e-6)


@pytest.mark.slow
def test_mix_of_a_file_with_itself_is_the_file(tmp_path):
    written = export.mix([(SHIPPED, 1.0), (SHIPPED, 2.0)], tmp_path, CFG)
    assert written[1].read_bytes() == SHIPPED.read_bytes()
