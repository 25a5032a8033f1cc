"""Conformance of every rule of ``audit``, including any added later. A rule fires on its bad
example, and not on its clean example."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detector.core.session.codec import from_builtins
from detector.core.session.document import Summary
from detector.lab.audit.rule import FOLDER, Rule, list_rules
from detector.lab.session.audit import SEVERITIES
from detector.lab.session.comparison import Comparison
from tests.conftest import CHECKOUT
from tests.lab.audit.cases import of_text
from tests.session.documents import DOCUMENT

OVER_TABLES = [rule for rule in list_rules() if rule.over in ("table", "all")]
OVER_RUNS = [rule for rule in list_rules() if rule.over == "run"]
OVER_COMPARISONS = [rule for rule in list_rules() if rule.over == "comparison"]

CLEAN_RUN: dict[str, Any] = {
    **DOCUMENT,
    "frames": {**DOCUMENT["frames"], "read": 100, "written": 100, "dropped": 0, "bad": 0},
    "seconds": {**DOCUMENT["seconds"], "run": 8.0},
    "exit": {"code": 0, "reason": "done"},
    "engine_threads": 1,
}
LIBRARIES = {"wall_s": 8.0, "process_s": 1.0, "unknown_s": 0.0, "others_s": 9.0, "stages": {}}
THREAD = {**DOCUMENT["threads"]["reader"], "busy_s": 4.0, "wall_s": 4.4}
# rule -> what to change in a clean run, so that the rule fires
PLANTED: dict[str, dict[str, Any]] = {
    "run-precision-not-executed": {"precision_effect": "int8 changed nothing"},
    "cores-taken-by-others": {"cpu": {**DOCUMENT["cpu"], "libraries": LIBRARIES}},
    "waited-for-cores": {"threads": {"reader": {**THREAD, "ready_s": 1.0, "foreign_share": 0.9}}},
    "waited-for-own-threads": {
        "threads": {"reader": {**THREAD, "ready_s": 1.0, "foreign_share": 0.1}},
        "engine_threads": DOCUMENT["cpu"]["cores"],
    },
    "more-threads-than-cores": {"engine_threads": 4},
    "swapped": {"disturbed": {"swapped_mb": 200.0}},
    "slowed-down": {"disturbed": {"throttled_s": 2.0}},
    "no-warm-up": {"seconds": {**CLEAN_RUN["seconds"], "warmup": 0.0}},
    "cut-short": {"exit": {"code": 130, "reason": "interrupted"}},
    "few-frames": {"frames": {**CLEAN_RUN["frames"], "read": 30, "written": 30}},
    "repeated-detections": {"frames": {**CLEAN_RUN["frames"], "reused": 20, "coasted": 20}},
    "random-weights": {"random_weights": 0},
    "lost-frames": {"frames": {**CLEAN_RUN["frames"], "bad": 2}},
}
ROW: dict[str, Any] = {
    "name": "b",
    "engine": "ort",
    "precision": "int8",
    "precision_executed": None,
    "precision_text": "",
    "precision_effect": None,
    "batch": 1,
    "fps": {"inference": None, "end_to_end": None},
    "ratio": {"inference": 2.0, "end_to_end": 1.5},
    "ratio_interval": {"inference": [1.9, 2.1], "end_to_end": [1.4, 1.6]},
    "agreement": {
        "matched": 0.99,
        "mean_iou": 0.9,
        "mean_score_diff": 0.0,
        "detections": 9,
        "detections_reference": 9,
        "frames": 9,
    },
    "ap": None,
    "stage_cpu_ms": None,
    "memory_mb": None,
    "load_s": None,
    "build_s": None,
    "threads": 1,
    "concurrency": 1,
    "device": "cpu",
    "notes": [],
    "error": None,
}
CLEAN_COMPARISON: dict[str, Any] = {
    "schema": 1,
    "source": "in.mp4",
    "rounds": 5,
    "budget": 0.95,
    "rows": [{**ROW, "name": "a", "agreement": None}, ROW],
    "comparable": True,
    "baseline": "a",
    "interval": "lowest and highest round",
    "warnings": [],
    "fastest": {"inference": "b", "end_to_end": "b"},
}
UNSURE = {"inference": [0.9, 2.1], "end_to_end": [1.4, 1.6]}
PLANTED_COMPARISONS: dict[str, dict[str, Any]] = {
    "not-comparable": {"warnings": ["the frames differ"], "comparable": False},
    "few-rounds": {"rounds": 1},
    "difference-within-noise": {
        "rows": [CLEAN_COMPARISON["rows"][0], {**ROW, "ratio_interval": UNSURE}]
    },
    "detections-disagree": {"rows": [{**ROW, "agreement": {**ROW["agreement"], "matched": 0.6}}]},
}


def complaints(rule: Rule) -> Iterator[str]:
    for kind, text in (("bad", rule.bad), ("clean", rule.clean)):
        document = of_text(text, rule.machine)
        hits = [hit for hit in document.findings if hit.rule == rule.id]
        if any(audited.unread for audited in document.audited):
            yield f"the {kind} example is read only in part"
        if bool(hits) != (kind == "bad"):
            yield f"the {kind} example has {len(hits)} findings"
        if any(not hit.evidence.strip() or not hit.where for hit in hits):
            yield "a finding lacks evidence or location"
        if kind == "bad" and not all(re.search(r"\d|,|:", hit.evidence) for hit in hits):
            yield "the evidence has no number and no row"


@pytest.mark.parametrize("rule", OVER_TABLES, ids=lambda rule: rule.id)
def test_rule_over_tables_fires_only_on_its_bad_example(rule: Rule) -> None:
    assert list(complaints(rule)) == []


@pytest.mark.parametrize("rule", OVER_RUNS, ids=lambda rule: rule.id)
def test_rule_over_runs_fires_only_on_a_planted_fault(rule: Rule) -> None:
    planted = from_builtins(_summary({**CLEAN_RUN, **PLANTED[rule.id]}), Summary, "planted")
    assert list(rule.findings(planted, "run"))
    assert not list(rule.findings(from_builtins(_summary(CLEAN_RUN), Summary, "clean"), "run"))


@pytest.mark.parametrize(
    ("foreign", "threads", "expected"),
    [
        (0.9, 2, {"waited-for-cores"}),
        (0.1, 2, {"waited-for-own-threads"}),
        (0.1, 1, set()),  # there is only one engine thread
        (0.5, 2, {"waited-for-cores", "waited-for-own-threads"}),
        (None, 2, {"waited-for-cores"}),  # the share is unknown
    ],
)
def test_waiting_for_cores_is_attributed_to_others_or_own_threads(
    foreign, threads, expected
) -> None:
    """The thread worked for 4 s. It was ready for another 1 s but got no core."""
    thread = {**THREAD, "ready_s": 1.0, "foreign_share": foreign}
    document = {**CLEAN_RUN, "threads": {"reader": thread}, "engine_threads": threads}
    document |= {"concurrency": 1, "cpu": {**DOCUMENT["cpu"], "cores": 2}}
    run = from_builtins(_summary(document), Summary, "run")
    fired = {hit.rule for rule in OVER_RUNS for hit in rule.findings(run, "run")}
    assert fired == expected


def _summary(document: dict[str, Any]) -> dict[str, Any]:
    names = set(Summary.__dataclass_fields__)
    return {key: value for key, value in document.items() if key in names}


@pytest.mark.parametrize("rule", OVER_COMPARISONS, ids=lambda rule: rule.id)
def test_rule_over_comparisons_fires_only_on_a_planted_fault(rule: Rule) -> None:
    planted = {**CLEAN_COMPARISON, **PLANTED_COMPARISONS[rule.id]}
    assert list(rule.findings(from_builtins(planted, Comparison, "planted"), "c"))
    assert not list(rule.findings(from_builtins(CLEAN_COMPARISON, Comparison, "clean"), "c"))


def test_every_rule_states_problem_and_remedy() -> None:
    ids = [rule.id for rule in list_rules()]
    assert len(ids) == len(set(ids)) > 60
    for rule in list_rules():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id), rule.id
        assert rule.severity in SEVERITIES
        assert rule.what.strip(), rule.id
        assert rule.cure.strip(), rule.id


def test_every_file_in_the_folder_of_rules_defines_a_rule() -> None:
    for file in FOLDER.glob("[!_]*.py"):
        assert "\n@" in file.read_text(), file.name


def test_pitfalls_page_lists_exactly_the_rules() -> None:
    page = Path(CHECKOUT / "docs/pitfalls.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE))
    assert named == {rule.id for rule in list_rules()}
