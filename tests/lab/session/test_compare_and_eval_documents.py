"""The documents of compare and eval: kinds of result, and errors of damaged files."""

import pytest

from detector.core.errors import UsageError
from detector.core.session.codec import from_json
from detector.lab.session.comparison import Comparison
from detector.lab.session.evaluation import read_result
from tests.one_line import one_line_error
from tests.session.test_schema import SCHEMAS


def test_schema_lists_each_kind_of_result():
    for name in ("eval", "evaluation"):
        kinds = SCHEMAS[name]["$defs"]["Result"]["anyOf"]
        assert [kind["$ref"].rpartition("/")[2] for kind in kinds] == [
            "EngineResult",
            "FileResult",
            "InterruptedResult",
        ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"detections": "x.json"}', "ap"),
        ('{"engine": 3}', "engine"),
        ("[1]", "object"),
        ("{", "not valid JSON"),
    ],
)
def test_damaged_evaluation_error_names_file_and_key(text, part):
    with one_line_error(UsageError, "runs/x/evaluation.json:", part):
        read_result(text, "runs/x/evaluation.json")


def test_damaged_comparison_error_names_file_and_key():
    with pytest.raises(UsageError, match=r"^saved\.json: .*`source`"):
        from_json('{"schema": 1, "rounds": 5}', Comparison, "saved.json")
