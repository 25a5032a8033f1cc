"""Training goes on from weights whose batch normalisation was folded away."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="machine: torch is not installed")

from model import export  # noqa: E402
from model.loop import Options, load, save, size_at  # noqa: E402
from model.network import Street, read_layers  # noqa: E402
from model.optimiser import Average, Optimisers  # noqa: E402
from model.restart import read_into  # noqa: E402
from tests.conftest import CHECKOUT  # noqa: E402

CFG = CHECKOUT / "cfg/darknet/street.cfg"
SHIPPED = CHECKOUT / "cfg/weights/street.f16"


@pytest.mark.slow
@torch.no_grad()
def test_it_starts_with_what_the_weights_compute(tmp_path):
    """In both modes: with the statistics of these very pictures, and with those of the batch."""
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
def test_the_mean_of_two_runs_can_be_gone_on_from(tmp_path):
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        network = Street(read_layers(CFG))
        average, optimisers = Average(network), Optimisers(network)
        options = Options(tmp_path / str(seed), steps=1)
        options.run.mkdir()
        save(options, network, average, optimisers, 10 * seed)
        states.append(average.network.state_dict())
    parts = [(tmp_path / "1/checkpoint.pt", 3.0), (tmp_path / "2/checkpoint.pt", 1.0)]
    written = export.mix(parts, tmp_path / "mean", CFG)
    assert [path.name for path in written] == ["checkpoint.pt", "street.weights", "street.f16"]
    network = Street(read_layers(CFG))
    average = Average(network)
    assert load(written[0], network, average, Optimisers(network)) == 20
    for name, found in average.network.state_dict().items():
        wanted = 0.75 * states[0][name] + 0.25 * states[1][name]
        torch.testing.assert_close(found.float(), wanted.float(), atol=1e-6, rtol=1e-5)
        assert torch.equal(found, network.state_dict()[name])
