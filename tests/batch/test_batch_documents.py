"""docs/schema holds the JSON Schemas of batch's documents, as they follow from the types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detector.batch.documents import BatchProgress, BatchResult, ItemRecord
from detector.core.session.codec import json_schema

FOLDER = Path(__file__).parents[2] / "docs/schema"
SCHEMAS = {
    "batch": json_schema(BatchResult),
    "batch-item": json_schema(ItemRecord),
    "batch-progress": json_schema(BatchProgress),
}


def schema_text(name: str) -> str:
    return json.dumps(SCHEMAS[name], indent=1) + "\n"


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_is_that_of_the_type(name):
    assert (FOLDER / f"{name}.json").read_text() == schema_text(name), (
        f"write it again: python -m {__name__}"
    )


if __name__ == "__main__":
    for each in SCHEMAS:
        (FOLDER / f"{each}.json").write_text(schema_text(each))
