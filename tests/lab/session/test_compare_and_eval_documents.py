"""The documents of compare, eval and audit: their JSON Schemas, and what damaged ones say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detector.core.errors import UsageError
from detector.core.session.codec import from_json, json_schema
from detector.core.session.measured import Measurements
from detector.lab.session.audit import AuditDocument
from detector.lab.session.comparison import Comparison
from detector.lab.session.evaluation import SUBTYPES, Evaluation, Result, read_result
from detector.lab.session.where import Where

FOLDER = Path(__file__).parents[3] / "docs/schema"
SCHEMAS = {
    "compare": json_schema(Comparison),
    "eval": json_schema(Evaluation, SUBTYPES),
    "evaluation": json_schema(Result, SUBTYPES),
    "measured": json_schema(Measurements),
    "audit": json_schema(AuditDocument),
    "where": json_schema(Where),
}


def schema_text(name: str) -> str:
    return json.dumps(SCHEMAS[name], indent=1) + "\n"


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_is_that_of_the_type(name):
    assert (FOLDER / f"{name}.json").read_text() == schema_text(name), (
        f"write it again: python -m {__name__}"
    )


def test_each_kind_of_result_is_in_the_schema():
    for name in ("eval", "evaluation"):
        kinds = SCHEMAS[name]["$defs"]["Result"]["anyOf"]
        assert [kind["$ref"].rpartition("/")[2] for kind in kinds] == [
            "EngineResult",
            "FileResult",
            "InterruptedResult",
        ]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ('{"detections": "x.json"}', ["ap"]),
        ('{"engine": 3}', ["engine"]),
        ("[1]", ["object"]),
        ("{", ["not valid JSON"]),
    ],
)
def test_a_damaged_evaluation_is_one_line_with_file_and_key(text, facts):
    with pytest.raises(UsageError) as raised:
        read_result(text, "runs/x/evaluation.json")
    message = str(raised.value)
    assert message.startswith("runs/x/evaluation.json:")
    assert "\n" not in message
    for fact in facts:
        assert fact in message


def test_a_damaged_comparison_is_one_line_with_file_and_key():
    with pytest.raises(UsageError, match=r"^saved\.json: .*`source`"):
        from_json('{"schema": 1, "rounds": 5}', Comparison, "saved.json")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in SCHEMAS:
        (FOLDER / f"{name}.json").write_text(schema_text(name))
