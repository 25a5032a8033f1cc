"""Training resumes from weights whose batch normalisation was folded away."""

from __future__ import annotations

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
def test_it_starts_with_what_the_weights_compute(tmp_path):
    """Test both modes: with these pictures' statistics, and with the batch's."""
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
    wanted = plain(pictures)
    for mode in (network.eval(), network.train()):
        for found, one in zip(mode(pictures), wanted, strict=True):
            assert torch.allclose(found, one, atol=1e-4)
    norms = [block.norm for block in network.blocks.values() if block.norm is not None]
    assert not all(torch.allclose(norm.running_var, torch.ones(())) for norm in norms)


def test_each_step_draws_one_of_the_canvases_and_again_the_same(tmp_path):
    canvases = ((288, 512), (384, 640))
    options = Options(tmp_path, steps=40, canvases=canvases)
    drawn = [size_at(step, options) for step in range(40)]
    assert set(drawn) == set(canvases)
    assert drawn == [size_at(step, options) for step in range(40)]


@pytest.mark.slow
def test_the_mean_of_a_run_and_of_weights_that_ship(tmp_path):
    torch.manual_seed(1)
    network = Street(read_layers(CFG))
    average, optimisers = Average(network), Optimisers(network)
    options = Options(tmp_path / "1", steps=1)
    options.run.mkdir()
    save(options, network, average, optimisers, 10)
    parts = [(options.run / "checkpoint.pt", 3.0), (SHIPPED, 1.0)]
    written = export.mix(parts, tmp_path / "mean", CFG)
    assert [path.name for path in written] == ["street.weights", "street.f16"]
    theirs = export.read(export.weights_from_checkpoint(parts[0][0], CFG), CFG)
    shipped = export.read(SHIPPED, CFG)
    for mean, one, other in zip(export.read(written[0], CFG), theirs, shipped, strict=True):
        for name in ("biases", "weights"):
            wanted = 0.75 * getattr(one, name) + 0.25 * getattr(other, name)
            np.testing.assert_allclose(getattr(mean, name), wanted, rtol=3e-5, atol=1e-6)


@pytest.mark.slow
def test_the_mean_of_a_file_with_itself_is_the_file(tmp_path):
    written = export.mix([(SHIPPED, 1.0), (SHIPPED, 2.0)], tmp_path, CFG)
    assert written[1].read_bytes() == SHIPPED.read_bytes()
