"""The training loop: resuming, the log, canvases, and a start from other weights."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="machine: torch is not installed")

from model import loop  # noqa: E402
from model.batches import Augmenter  # noqa: E402
from model.network import Street, read_layers  # noqa: E402
from tests.training.conftest import ROOT  # noqa: E402
from tests.training.test_data import no_teacher, picture  # noqa: E402


@pytest.fixture(autouse=True)
def _small_canvases(monkeypatch):
    monkeypatch.setattr(loop, "PHASES", ((0.5, (64, 64)), (1.0, (64, 96))))


def run(folder, steps, **settings):
    torch.manual_seed(3)
    network = Street(read_layers(ROOT / "cfg/darknet/street.cfg"))
    options = loop.Options(folder, steps, batch=2, bf16=False, **settings)
    average = loop.train(
        network,
        Augmenter([picture(i) for i in range(3)]),
        no_teacher,
        options,
        lambda _: {"ap": 0.5},
    )
    return [value.clone() for value in average.network.state_dict().values()]


class StoppedError(Exception):
    pass


@pytest.mark.slow
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", 4)
    monkeypatch.setattr(loop, "CHECKPOINT_S", -1)  # after every step
    save, saves = loop.save, []

    def stopping(*arguments):
        save(*arguments)
        saves.append(1)
        if len(saves) == 2:
            raise StoppedError

    monkeypatch.setattr(loop, "save", stopping)
    with pytest.raises(StoppedError):
        run(tmp_path / "parts", 4)
    monkeypatch.setattr(loop, "save", save)
    for expected, resumed in zip(whole, run(tmp_path / "parts", 4), strict=True):
        np.testing.assert_allclose(expected.numpy(), resumed.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("consistency", [0.0, 1.0])
def test_run_writes_log_and_checkpoint(tmp_path, consistency):
    run(tmp_path, 2, consistency=consistency)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rows[0]["step"] == 0
    assert ("unsteady" in rows[0]) == bool(consistency)
    assert rows[0]["loss"] > 0
    assert [row for row in rows if "ap" in row][-1] == {"step": 2, "ap": 0.5}
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 2
    assert not list(tmp_path.glob("*.part"))


def test_canvas_grows_with_the_steps(tmp_path):
    assert [loop.size_at(step, loop.Options(tmp_path, 10)) for step in (0, 4, 5, 9, 10)] == [
        (64, 64)
    ] * 2 + [(64, 96)] * 3
    assert loop.size_at(0, loop.Options(tmp_path, 10, full_canvas=True)) == (64, 96)


@pytest.mark.slow
def test_start_uses_the_average_of_a_finished_run(tmp_path):
    before = run(tmp_path / "first", 3)
    start = tmp_path / "first" / "checkpoint.pt"
    after = run(tmp_path / "second", 1, start=start, peak=1e-6, full_canvas=True)
    rows = [
        json.loads(line) for line in (tmp_path / "second" / "log.jsonl").read_text().splitlines()
    ]
    assert rows[0]["step"] == 0
    assert rows[0]["rate"] == 0  # rounded to 0
    trained = [
        name for name, _ in Street(read_layers(ROOT / "cfg/darknet/street.cfg")).named_parameters()
    ]
    names = list(Street(read_layers(ROOT / "cfg/darknet/street.cfg")).state_dict())
    for name, expected, result in zip(names, before, after, strict=True):
        if name in trained:
            np.testing.assert_allclose(expected.numpy(), result.numpy(), rtol=1e-4, atol=1e-5)
    again = run(tmp_path / "second", 1, start=start, peak=1.0)  # resumes from its own checkpoint
    for expected, result in zip(after, again, strict=True):
        np.testing.assert_array_equal(expected.numpy(), result.numpy())
