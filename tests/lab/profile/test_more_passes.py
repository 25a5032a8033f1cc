"""What the passes torch and device find on this machine, or say."""

from __future__ import annotations

import gzip
import json

import pytest

from detector.core import engines
from tests.cli.command import detect_video, summary_of
from tests.conftest import CHECKOUT
from tests.lab.profile.budgets import with_short_budgets
from tests.networks import open_network

STREET = CHECKOUT / "videos/street.mp4"
pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # by day: test_pinned.py


def profiled(place, engine, passes):
    done = detect_video(
        "profile",
        STREET,
        "--frames",
        4,
        "--engine",
        engine,
        "--device",
        "cpu",
        "--run-dir",
        "run",
        "--only",
        passes,
        "--json",
        cwd=place,
        env=with_short_budgets(place),
    )
    assert done.returncode == 0, done.stderr
    return summary_of(done)


def test_torch_and_device(tmp_path):
    if reason := engines.usable()["torch"]:
        pytest.skip(f"machine: engine torch: {reason}")
    document = profiled(tmp_path, "torch", "torch,device")
    assert [*document["not_available"]] == ["device"]
    assert "CPU" in document["not_available"]["device"]
    facts = document["torch"]
    names = {row["name"]: row for row in facts["rows"]}
    convolutions = sum(node.op_type == "Conv" for node in open_network("street").graph.graph.node)
    assert names["aten::conv2d"]["calls"] == convolutions  # a frame
    assert facts["rows"] == sorted(facts["rows"], key=lambda row: -row["share"])
    assert sum(row["share"] for row in facts["rows"]) <= 1 + 1e-9
    assert any("[1, 3, 352, 608]" in row["shapes"] for row in facts["by_shape"])
    trace = json.loads(gzip.decompress((tmp_path / "run" / facts["trace"]).read_bytes()))
    assert any(event.get("name") == "aten::conv2d" for event in trace["traceEvents"])
    table = detect_video("report", "run", "--format", "table", cwd=tmp_path).stdout
    assert "over 5 steady frames" in table
