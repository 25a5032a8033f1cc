"""Counted nouns, and lists of items and paths, in text."""

import pytest

from detector.core.errors.text import counted, join_list, split_list, split_paths


@pytest.mark.parametrize(
    ("count", "words", "expected"),
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
def test_counted_noun_is_singular_or_plural(count, words, expected):
    assert counted(count, *words) == expected


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        (" , ,", []),
        ("person", ["person"]),
        ("person, 2,traffic light ", ["person", "2", "traffic light"]),
        ('person,"couch, sofa",bus', ["person", "couch, sofa", "bus"]),
        ('"couch, sofa"', ["couch, sofa"]),
        (' "couch, sofa" , bus', ["couch, sofa", "bus"]),
        (r"couch\, sofa,bus", ["couch, sofa", "bus"]),
        (r"C:\models\x,b", [r"C:\models\x", "b"]),
        ('6" pipe,"4"" b', ['6" pipe', '"4"" b']),
        (r'"2\" pipe, red"', ['2" pipe, red']),
        ('"not closed, b', ['"not closed', "b"]),
    ],
)
def test_quoted_or_escaped_commas_do_not_split_an_item(text, items):
    assert split_list(text) == items


@pytest.mark.parametrize(
    "items", [["a", "b"], ["couch, sofa", "bus"], ['"quoted"', "x"], ['a, "b"'], ["traffic light"]]
)
def test_split_list_reverses_join_list(items):
    assert split_list(join_list(items)) == items


@pytest.mark.parametrize(
    ("texts", "paths"),
    [
        ((), ()),
        (("a.csv,b.md", "c.tex"), ("a.csv", "b.md", "c.tex")),
        (("in,out",), ("in,out",)),  # a file with this name exists
    ],
)
def test_text_is_split_at_commas_unless_a_path_contains_them(tmp_path, monkeypatch, texts, paths):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in,out").touch()
    assert split_paths(texts) == paths
