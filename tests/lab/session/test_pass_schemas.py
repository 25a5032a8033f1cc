"""docs/schema/passes holds the JSON Schema of every pass's file, as it follows from the types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detector.lab.session.passes import FACTS, pass_schema
from tests.session.test_schema import in_order

FOLDER = Path(__file__).parents[3] / "docs/schema/passes"


def schema_text(name: str) -> str:
    return json.dumps(pass_schema(name), indent=1) + "\n"


@pytest.mark.parametrize("name", FACTS)
def test_the_schema_is_that_of_the_type(name):
    assert in_order((FOLDER / f"{name}.json").read_text()) == in_order(schema_text(name)), (
        f"write it again: python -m {__name__}"
    )


def test_every_reference_leads_somewhere():
    for name in FACTS:
        schema = pass_schema(name)
        found = {part.split('"')[0] for part in schema_text(name).split('"#/$defs/')[1:]}
        assert found <= schema["$defs"].keys()


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in FACTS:
        (FOLDER / f"{name}.json").write_text(schema_text(name))
