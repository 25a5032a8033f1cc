"""A run that can never fit into memory is refused before an engine is opened."""

from contextlib import nullcontext

import pytest

from detector.core.config.levels import COMMAND_LINE, merge_levels
from detector.core.errors import ModelError, UsageError
from detector.core.run import prepare
from detector.core.run.prepare import prepare_network
from tests.models import exports
from tests.networks import open_network

MB = 1 << 20


@pytest.fixture
def network(tmp_path):
    return open_network(exports.yolox().save(tmp_path / "m.onnx", exports.STATED))


def prepare_with_requests(network, folder, requests, **options):
    config = merge_levels((COMMAND_LINE, {"engines_dir": str(folder), "engine": "ort", **options}))
    return prepare_network(network, "ort", config, lambda concurrency: requests)


def test_run_that_cannot_fit_into_memory_is_refused(network, tmp_path, monkeypatch):
    sizes: list[int] = []

    def too_much(needed: int) -> str | None:
        sizes.append(needed)
        return "all there is" if needed > MB else None

    monkeypatch.setattr(prepare, "too_much", too_much)
    assert prepare_with_requests(network, tmp_path, 2).artefact.path
    slot, outputs = 64 * 64 * 3, 84 * 8 * 4
    assert sizes[0] == 2 * (slot + outputs)
    with pytest.raises(UsageError, match="all there is"):
        prepare_with_requests(network, tmp_path, 100)
    monkeypatch.setattr(
        prepare, "too_much", lambda needed: "x" if needed > 64 * 64 * 3 * 8 else None
    )
    with pytest.raises(ModelError, match="batch 1"):
        prepare_with_requests(network, tmp_path, 1)


@pytest.mark.parametrize(
    ("device", "driver", "fits"),
    [("cuda", False, True), ("auto", True, True), ("auto", False, False), ("cpu", True, False)],
)
def test_memory_of_the_machine_is_not_checked_for_a_gpu(
    network, monkeypatch, tmp_path, device, driver, fits
):
    monkeypatch.setattr(prepare, "too_much", lambda needed: "x" if needed > MB / 2 else None)
    monkeypatch.setattr(prepare, "_peak_bytes", lambda network: MB)
    monkeypatch.setattr(prepare, "NVIDIA_DRIVER", tmp_path if driver else tmp_path / "none")
    options = prepare._options(
        "ort", merge_levels((COMMAND_LINE, {"device": device})), "fp32", lambda concurrency: 1, True
    )
    with nullcontext() if fits else pytest.raises(ModelError, match="needs x"):
        prepare._refuse_what_cannot_fit(network, "ort", options)
