"""The documents of compare and eval: their kinds of result, and what damaged ones say."""

from __future__ import annotations

import pytest

from detector.core.errors import UsageError
from detector.core.session.codec import from_json
from detector.lab.session.comparison import Comparison
from detector.lab.session.evaluation import read_result
from tests.session.test_schema import SCHEMAS


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
