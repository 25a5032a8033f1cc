"""The passes ``layers`` and ``roofline``: figures add up, and a missing figure has a reason."""

import pytest

from detector.core.config.levels import resolve_config
from detector.core.session.store import Session
from detector.lab.analysis.layers import ABOVE
from detector.lab.profile.base import Occasion
from detector.lab.profile.batches import open_with_batches
from detector.lab.session.read import read_session
from tests.cli.command import run_ok, summary_of
from tests.conftest import CHECKOUT
from tests.lab.report.sessions import ran

STREET = CHECKOUT / "videos/street.mp4"


def check_layers(document):
    layers, roofline = document["layers"], document["roofline"]
    rows = layers["rows"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["ms"] for row in rows) == pytest.approx(layers["sum_ms"])
    assert sum(one["ms"] for one in layers["by_type"]) == pytest.approx(layers["sum_ms"])
    assert sum(row["macs"] for row in rows) == layers["macs"] == roofline["macs"]
    assert roofline["flops"] == 2 * roofline["macs"]
    placed = [row for row in rows if row["utilisation"] is not None]
    mean = sum(row["utilisation"] * row["ms"] for row in placed) / sum(row["ms"] for row in placed)
    assert max(row["utilisation"] for row in placed) >= mean
    assert all(row["flag"] == "peak under-measured" for row in placed if row["utilisation"] > ABOVE)
    assert (layers["flag"] is None) == (abs(layers["sum_ms"] / layers["forward_ms"] - 1) <= 0.1)
    assert roofline["peaks"]["fp32"] == roofline["peaks"]["gflops_s"]["fp32"] > 0
    assert roofline["bound"] in ("compute", "memory", "launch overhead", "neither")


@pytest.mark.slow
def test_passes_give_the_reason_if_the_engine_has_no_layers(tmp_path):
    done = run_ok(
        "profile",
        STREET,
        *"--frames 4 --engine null --run-dir run --only layers,roofline --json".split(),
        cwd=tmp_path,
    )
    reasons = summary_of(done)["not_available"]
    assert reasons["layers"].startswith("engine null: ")
    assert reasons["layers"] in reasons["roofline"]


@pytest.mark.slow
def test_layers_are_timed_with_the_threads_of_the_run(tmp_path):
    """The pass opens the engine with one request. By default, that request would use all cores, and
    layers would be faster than the peak, which is measured with the run's threads."""
    folder = ran(tmp_path, engine="ort", frames=2, concurrency=2)
    plain = read_session(folder)
    config = resolve_config(None, {"engine": "ort", "concurrency": 2})
    machine, _ = open_with_batches(Occasion(str(STREET), config, Session(folder), plain))
    assert machine.options is not None
    assert machine.options.threads == machine.engine.threads == plain.document.engine_threads
