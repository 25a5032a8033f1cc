"""With two requests in flight, the CPU time of engine threads is divided among inferences."""

import json
import sys

import numpy as np
import pytest

from tests.cli.command import detect_video
from tests.conftest import CHECKOUT
from tests.networks import need_engine

TICK_S = 0.05  # tolerance: schedstat counts a running thread up to its last tick


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="machine: no clock of another thread")
@pytest.mark.parametrize("engine", ["ort", "openvino", "torch"])
def test_cpu_time_of_inferences_equals_that_of_the_engine_threads(tmp_path, engine):
    need_engine(engine)
    done = detect_video(
        *(CHECKOUT / "videos/street.mp4", "--engine", engine, "--precision", "fp32"),
        *("--size", "320x192", "--threads", 2, "--concurrency", 2, "--frames", 24),
        *("--save", "jsonl", "--run-dir", "run", "--engines-dir", "engines", "-o", "out/"),
        cwd=tmp_path,
        imports_torch=True,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "run/session.json").read_text())
    with np.load(tmp_path / "run/spans.npz") as spans:
        infer = spans["stage"] == spans["stage_names"].tolist().index("infer")
        booked = spans["library_ns"][infer & (spans["kind"] == 0)]
    stage, cpu = document["stages"]["infer"], document["cpu"]
    assert len(booked) == stage["calls"] == 24
    assert booked.min() >= 0
    assert booked.sum() / 1e9 == pytest.approx(stage["library_cpu_s"], abs=1e-3)
    # At least the engine threads' CPU time in the steady state, at most that in the whole run.
    steady = cpu["libraries"]["stages"].get("infer", {"cpu_s": 0.0})["cpu_s"]
    assert steady - TICK_S <= stage["library_cpu_s"] <= cpu["library_threads_s"] + TICK_S
