"""docs/schema holds the JSON Schemas that follow from the documents' types."""

import json
from pathlib import Path
from typing import Any

import pytest

from detector.batch.documents import BatchProgress, BatchResult, ItemRecord
from detector.core.session.codec import json_schema
from detector.core.session.document import SessionDocument, Summary
from detector.core.session.measured import Measurements
from detector.lab.session.audit import AuditDocument
from detector.lab.session.comparison import Comparison
from detector.lab.session.evaluation import SUBTYPES, Evaluation, Result
from detector.lab.session.passes import FACTS, pass_schema
from detector.lab.session.profile import NsysDocument, profile_schema
from detector.lab.session.where import Where
from detector.lab.session.why import Why
from tests.session.documents import DOCUMENT

FOLDER = Path(__file__).parents[2] / "docs/schema"
SCHEMAS = {
    "summary": json_schema(Summary),
    "session": json_schema(SessionDocument),
    "profile": profile_schema(),
    "recording": json_schema(NsysDocument),
    "why": json_schema(Why),
    "compare": json_schema(Comparison),
    "eval": json_schema(Evaluation, SUBTYPES),
    "evaluation": json_schema(Result, SUBTYPES),
    "measured": json_schema(Measurements),
    "audit": json_schema(AuditDocument),
    "where": json_schema(Where),
    "batch": json_schema(BatchResult),
    "batch-item": json_schema(ItemRecord),
    "batch-progress": json_schema(BatchProgress),
    **{f"passes/{name}": pass_schema(name) for name in FACTS},
}


def schema_text(name: str) -> str:
    return json.dumps(SCHEMAS[name], indent=1) + "\n"


def sort_alternatives(text: str) -> str:
    """Sort alternatives, because their order depends on msgspec's version."""

    def sort(node: dict[str, Any]) -> dict[str, Any]:
        if "anyOf" in node:
            node["anyOf"].sort(key=json.dumps)
        return node

    return json.dumps(json.loads(text, object_hook=sort), indent=1) + "\n"


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_file_equals_the_schema_of_the_type(name):
    assert sort_alternatives((FOLDER / f"{name}.json").read_text()) == sort_alternatives(
        schema_text(name)
    ), f"update it with python -m {__name__}"


def test_every_reference_is_defined():
    for name, schema in SCHEMAS.items():
        references = {part.split('"')[0] for part in schema_text(name).split('"#/$defs/')[1:]}
        assert references <= schema["$defs"].keys(), name


def test_keys_that_every_run_writes_are_required():
    required = set(SCHEMAS["session"]["$defs"]["SessionDocument"]["required"])
    assert required <= DOCUMENT.keys()
    assert {"model", "frames", "fps", "stages", "threads", "verdict", "exit", "loop"} <= required
    assert not {"video", "sources", "session"} & required


if __name__ == "__main__":
    (FOLDER / "passes").mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        (FOLDER / f"{name}.json").write_text(schema_text(name))
