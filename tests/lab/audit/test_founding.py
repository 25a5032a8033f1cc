"""The audit flags all mistakes in the numbers of five reports (docs/founding-studies.md)."""

import re
from pathlib import Path

import pytest

from detector.lab.session.audit import Finding
from tests.lab.audit.cases import of_files

# Facts from the text of each report: the machine, and the claimed number of pictures.
FACTS = {
    "s0": ("card=T4", "peak=8.1TFLOPS", "bandwidth=320GB/s"),
    "s1": ("cores=8", "flops_per_cycle=32", "pictures=128"),
    "s2": (),
    "s3": (),
    "s4": ("card=Jetson Nano",),
    "s0,s1": (),
}
# number of a mistake -> (tables to audit together, rule, a table that the finding must name)
FLAGGED: dict[int, tuple[str, str, str]] = {
    1: ("s0", "fps-against-latency", "s0_latency_fps"),
    2: ("s0", "first-row-cold", "s0_latency_fps"),
    3: ("s0", "fraction-called-percent", "s0_models"),
    4: ("s0", "bound-without-test", "s0_models"),
    5: ("s0", "peak-differs", "s0_layers_yolov5s"),
    6: ("s0,s1", "mac-or-flop", "s1_roofline"),
    7: ("s0", "shares-do-not-sum", "s0_stages_line_profiler"),
    8: ("s0", "shares-contradict", "s0_stages_after_load"),
    9: ("s0", "asynchronous-without-wait", "s0_stages_after_load"),
    10: ("s0", "same-thing-differs", "s0_batch"),
    11: ("s0", "batch-without-effect", "s0_batch"),
    12: ("s0", "latency-of-a-batch", "s0_batch_tensor"),
    13: ("s0", "decimal-place-lost", "s0_memory_estimate"),
    14: ("s0", "effect-below-spread", "s0_fp16"),
    15: ("s0", "one-sample", "s0_cpu_gpu"),
    16: ("s0", "container-with-children", "s0_profiler_yolov5s"),
    17: ("s1", "peak-too-low", "s1_machine"),
    18: ("s1", "above-the-peak", "s1_roofline"),
    19: ("s1", "bound-without-test", "s1_roofline"),
    20: ("s1", "maximum-below-mean", "s1_layers"),
    21: ("s1", "container-with-children", "s1_layers"),
    22: ("s1", "profiler-inside", "s1_cprofile_yolov5n"),
    23: ("s1", "count-against-claim", "s1_cprofile_yolov5n"),
    24: ("s1", "unchanged-where-change-was-claimed", "s1_optimised"),
    25: ("s1", "several-changes-at-once", "s1_optimised"),
    26: ("s1", "worse-not-said", "s1_optimised"),
    27: ("s1", "derived-column", "s1_latency_fps"),
    28: ("s1", "mb-or-mib", "s1_roofline"),
    29: ("s1", "negative-memory", "s1_profiler_yolov5n"),
    30: ("s2", "container-with-children", "s2_layer_types"),
    31: ("s2", "not-a-sample", "s2_steps"),
    32: ("s2", "parts-do-not-sum", "s2_steps"),
    33: ("s2", "profiler-inside", "s2_profiler"),
    34: ("s2", "energy-without-idle", "s2_energy"),
    35: ("s3", "mac-or-flop", "s3_layers"),
    36: ("s3", "two-models", "s3_layers"),
    37: ("s3", "inference-above-its-layers", "s3_layers_total"),
    38: ("s3", "totals-contradict", "s3_images"),
    39: ("s3", "different-work-compared", "s3_profiler"),
    40: ("s3", "negative-time", "s3_profiler"),
    41: ("s4", "outside-time-differs", "s4_speeds"),
    42: ("s4", "precision-differs", "s4_speeds"),
    43: ("s4", "outside-time-differs", "s4_speeds"),
    44: ("s4", "start-up-inside", "s4_dependency_torch"),
    45: ("s4", "wait-in-asynchronous-call", "s4_dependency_torch"),
}
# number of a mistake -> figure that the list of mistakes gives and the evidence must contain
EVIDENCE = {
    1: "70.92 FPS",
    3: "3.937%",
    5: "300 GFLOP/s",
    7: "96.6%",
    13: "2979",
    17: "1203",
    18: "121.3%",
    23: "46.88",
    32: "3.5%",
    34: "15.32 W",
    35: "0.2477",
    37: "2499 ms",
    41: "169.5 ms",
    43: "4.098",
}


@pytest.fixture(scope="module")
def tables(shared: Path) -> Path:
    folder = shared / "audit"
    if not folder.is_dir():
        pytest.skip("the shared test data have no tables of the founding reports")
    return folder


@pytest.fixture(scope="module")
def findings_by_group(tables: Path) -> dict[str, tuple[Finding, ...]]:
    findings = {}
    for group, facts in FACTS.items():
        paths = [path for name in group.split(",") for path in sorted(tables.glob(f"{name}_*.csv"))]
        findings[group] = of_files(paths, facts).findings
    return findings


@pytest.mark.parametrize("number", FLAGGED)
def test_mistake_is_flagged(number: int, findings_by_group) -> None:
    group, rule, table = FLAGGED[number]
    of_rule = [finding for finding in findings_by_group[group] if finding.rule == rule]
    hits = [finding for finding in of_rule if f"{table}.csv" in " ".join(finding.where)]
    assert hits, f"{rule} does not name {table}"
    assert any(EVIDENCE.get(number, "") in finding.evidence for finding in hits)


def test_every_listed_mistake_is_tested(tables: Path) -> None:
    listed = re.findall(r"^\| (\d+) \|", (tables / "README.md").read_text(), re.MULTILINE)
    assert {int(number) for number in listed} == set(FLAGGED)


def test_all_columns_of_the_tables_are_read(tables: Path) -> None:
    document = of_files(sorted(tables.glob("*.csv")))
    assert [one.unread for one in document.audited if one.unread] == []
