"""The evaluator against an independent one: yolox_nano on the shared labelled pictures."""

from __future__ import annotations

import json

import pytest

from detector.lab.analysis.accuracy import average_precision as ap
from model import evaluation

SETS = {
    "coco": "coco/val",
    "road": "highway/valid/road",
    "overpass": "highway/valid/overpass",
    "elevated": "highway/valid/elevated",
}


@pytest.mark.slow
@pytest.mark.nightly  # the same figures as those of eval, by day
def test_yolox_nano_has_the_reference_figures(shared):
    reference = json.loads((shared / "data/reference_ap.json").read_text())["results"]
    # One thread: a second one would spin between the layers, and double the CPU seconds.
    model = evaluation.open_yolox(shared / "data/weights/yolox_nano.onnx", (416, 416), threads=1)
    results = evaluation.judge_pictures(
        model, list(evaluation.read_validation(shared / "data/labelled"))
    )
    assert {group for group, _ in results} == set(SETS)
    for (group, name), rows in results.items():
        wanted = reference[SETS[group]]["yolox_nano"]["per_class"][name]
        assert sum(row.wanted for row in rows) == wanted["boxes"]
        assert ap.recall(rows, 0.25) == pytest.approx(wanted["recall_conf25"], abs=0.01)
        if "ap50" in wanted:
            assert ap.average_precision(rows) == pytest.approx(wanted["ap50"], abs=0.01)
            assert ap.precision(rows, 0.25) == pytest.approx(wanted["precision_conf25"], abs=0.01)
            interval = ap.interval(rows, ap.average_precision)
            assert interval == pytest.approx(wanted["ap50_interval"], abs=0.01)
