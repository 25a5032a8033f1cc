"""Numbers in messages."""

from __future__ import annotations

import pytest

from detector.errors.text import counted


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (1, ("frame",), "1 frame"),
        (0, ("frame",), "0 frames"),
        (2, ("class",), "2 classes"),
        (2, ("box",), "2 boxes"),
        (2, ("batch",), "2 batches"),
        (2, ("try",), "2 tries"),
        (2, ("day",), "2 days"),
        (1, ("bad packet", "was"), "1 bad packet was"),
        (3, ("bad packet", "was"), "3 bad packets were"),
        (3, ("label file", "has"), "3 label files have"),
    ],
)
def test_counted(count, words, said):
    assert counted(count, *words) == said
