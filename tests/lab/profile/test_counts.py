"""The layers' FLOPs, compared with torch's counter for batches of 1 and 4."""

import csv
import io
from dataclasses import replace

import pytest

from detector.core import engines
from detector.core.config.levels import resolve_config
from detector.core.session.store import Session
from detector.lab.peaks import caches, kernels
from detector.lab.profile import layers as pass_layers
from detector.lab.profile.base import Occasion
from detector.lab.profile.batches import open_with_batches
from detector.lab.report.tables import csv_files
from detector.lab.session.passes import PassRecord
from detector.lab.session.read import read_session
from tests.lab.report.sessions import CLIP, ran
from tests.networks import need_engine

SIDE = {"street": "128x128", "yolov5n.yaml": "64x64"}
# The published number of parameters minus those of batch norms, which we fold into convolutions.
PARAMETERS = {"yolov5n.yaml": 1_867_405}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(pass_layers, "BUDGET_S", 0.1)
    monkeypatch.setattr(kernels, "BUDGET_S", 0.02)
    monkeypatch.setattr(caches, "EACH_S", 0.001)
    monkeypatch.setattr(caches, "LARGEST", 1 << 20)


def occasion_of(folder, model, batch, engine="torch", sheet=None):
    need_engine(engine)
    flags = {"engine": engine, "model": model, "size": SIDE[model], "frames": 4, "threads": 1}
    if model.endswith(".yaml"):
        flags["random_weights"] = 0
    session = ran(folder, **flags, batch=batch)
    config = resolve_config(None, {**flags, "batch": batch})
    return Occasion(str(CLIP), config, Session(session), read_session(session), sheet=sheet)


def counted_by_torch(occasion):
    """Return torch's count of FLOPs for a batch. A multiply-accumulate counts as 2."""
    from torch.utils.flop_counter import FlopCounterMode

    machine, batches = open_with_batches(occasion)
    alone = replace(machine.options, requests=1, concurrency=1)
    with engines.open("torch", machine.network, alone) as engine:
        (request,) = engine.requests
        request.slot[:] = batches[0]
        with FlopCounterMode(display=False) as counter:
            request.infer(len(request.slot))
    return counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("model", SIDE)
def test_flops_are_the_same_as_in_the_counter_of_torch(tmp_path, model, batch):
    occasion = occasion_of(tmp_path, model, batch)
    facts, theirs = pass_layers.measure_layers(occasion), counted_by_torch(occasion)
    assert sum(row.flops for row in facts.rows) == theirs
    assert 2 * facts.macs * batch == theirs  # ``macs`` is per picture
    for rows in (facts.by_block, facts.rows):
        assert sum(row.parameters for row in rows) == facts.parameters
        assert sum(row.ms for row in rows) == pytest.approx(facts.sum_ms)
        assert sum(row.flops for row in rows) == theirs
        assert all(row.flops == 2 * row.macs for row in rows)
    assert facts.parameters == PARAMETERS.get(model, facts.parameters) > 0
    blocks = [row.block for row in facts.by_block]
    assert len(blocks) == len(set(blocks)) < len(facts.rows)
    assert [row.order for row in facts.rows] == list(range(1, len(facts.rows) + 1))
    assert all(row.shape[0] == batch for row in facts.rows if row.macs)


@pytest.mark.slow
def test_layer_csv_has_units_and_counts(tmp_path):
    occasion = occasion_of(tmp_path, "street", 1, "ort", (8100.0, 320.0))
    facts = pass_layers.measure_layers(occasion)
    record = PassRecord(available=True, facts=facts)
    occasion.session.write_pass("layers", record.as_builtins())
    text = csv_files(read_session(occasion.session.folder))["layer_timer.csv"]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [int(row["order"]) for row in rows] == [row.order for row in facts.rows]
    for name in ("macs", "flops", "bytes", "parameters"):
        assert [int(row[name]) for row in rows] == [getattr(row, name) for row in facts.rows]
    assert {"ms", "gflops_s", "gbytes_s", "flops_per_byte", "share_of_roof", "block"} <= {*rows[0]}
    assert all(row["shape"].count("x") >= 2 for row in rows if int(row["macs"]))
