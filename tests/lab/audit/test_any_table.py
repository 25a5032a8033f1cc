"""The audit handles any table: no rule raises, and no rule takes quadratic time."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.lab.audit.case import Case, audit
from detector.lab.audit.machine import Machine
from detector.lab.audit.rule import MOST_HITS
from detector.lab.audit.tables import make_table
from tests.properties import STEADY

TITLES = [
    *("model", "engine", "precision", "executed precision", "batch", "size (pixels)", "threads"),
    *("device", "decoder", "video", "layer", "name", "stage", "step", "type", "contains", "bound"),
    *("changes", "latency (ms)", "latency with FP16 (ms)", "inference (ms)", "self CPU (ms)"),
    *("CPU total (ms)", "CPU total %", "self CPU %", "self CUDA total (ms)", "total (s)"),
    *("duration (s)", "mean (ms)", "min (ms)", "max (ms)", "p50 (ms)", "p90 (ms)", "std (ms)"),
    *("FPS", "inference FPS", "end-to-end FPS", "speed-up", "params (M)", "size (MB)", "GFLOPs"),
    *("mac (G)", "GFLOP/s", "GB/s", "utilization (%)", "percent of time", "calls", "count", "runs"),
    *("images", "package (J)", "waiting time (s)", "critical path (s)", "memory (MB)", "mAP"),
    *("quantity", "value", "unit", "latency", "concurrency"),
]
CELLS = [
    *("", "-", "0", "-1", "1", "2", "8", "100", "0.001", "14.1", "1e30", "1e-30", "1,234", "12,5"),
    *("97%", "2 ms", "5 s", "40 ± 4", "1 [0..2]", "~400", "1.31x", "yolov5n", "yolov5s", "fp32"),
    *("fp16", "int8", "cpu", "cuda", "total", "model.6", "model.6.m", "conv2d", "_convolution"),
    *("640x640", "448x640", "input", "peak", "peak: clock", "cores", "GHz", "GFLOP/s", "compute"),
    *("memory", "batch; onnx; int8", "Conv2d; ReLU", "inference", "post-processing", "load model"),
]
TABLE = st.lists(st.sampled_from(TITLES), min_size=2, max_size=7, unique=True).flatmap(
    lambda titles: st.tuples(
        st.just(titles),
        st.lists(
            st.lists(st.sampled_from(CELLS), min_size=len(titles), max_size=len(titles)),
            min_size=1,
            max_size=6,
        ),
    )
)
FACTS: dict[str, Any] = {
    "peak": 4.1e11,
    "bandwidth": 28e9,
    "cores": 8.0,
    "flops_per_cycle": 32.0,
    "pictures": 3.0,
    "card": "T4",
}


@pytest.mark.slow
@given(st.lists(TABLE, min_size=1, max_size=3), st.booleans())
@settings(STEADY, max_examples=60)
def test_no_rule_raises_for_any_table(tables, with_facts) -> None:
    audited_tables = [make_table(f"t{n}", titles, rows) for n, (titles, rows) in enumerate(tables)]
    document = audit(Case(audited_tables, machine=Machine(FACTS if with_facts else {})))
    for finding in document.findings:
        assert finding.where
        assert finding.evidence
        assert "nan" not in finding.evidence.lower().split()


@pytest.mark.slow
def test_large_table_is_audited_in_reasonable_time() -> None:
    """A rule that compares all pairs of rows takes 400 million steps, and memory for each pair."""
    titles = ["model", "engine", "precision", "batch", "latency (ms)", "FPS", "calls", "layer"]
    rows = [
        [f"m{n}", f"e{n % 7}", "fp32", str(n % 9), f"{n % 50 + 1}.5", "40", "3", f"model.{n}"]
        for n in range(20_000)
    ]
    document = audit(Case([make_table("t", titles, rows), make_table("u", titles, rows[:500])]))
    assert document.audited[0].rows == 20_000
    assert len(document.findings) <= document.rules * MOST_HITS
