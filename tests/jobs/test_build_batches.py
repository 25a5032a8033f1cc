"""The batches of ``build --batch``."""

import pytest

from detector.core.errors import UsageError
from detector.core.jobs.build import parse_batches


@pytest.mark.parametrize(
    ("text", "batches"), [("8", (8, 8)), ("1..8", (1, 8)), (" 2 .. 2 ", (2, 2))]
)
def test_batch_or_range_is_parsed(text, batches):
    assert parse_batches(text) == batches


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "x", "8..1", "0..8", "1..", "..8", "1..2..3", "1.5"]
)
def test_invalid_batch_is_refused(text):
    with pytest.raises(UsageError, match="--batch"):
        parse_batches(text)
