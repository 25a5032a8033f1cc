"""Readers of JSON and YAML, and the form of error messages."""

import re

import pytest

from detector.core.errors import LONGEST, ModelError, SourceError, UsageError, machine, parsing
from detector.core.errors.machine import machine_bytes, too_much
from detector.core.errors.parsing import LARGEST, MAX_DEPTH, parse_json, quote
from detector.core.errors.yaml_parsing import parse_yaml


def test_yaml_is_read_with_merge_keys_aliases_and_typed_values():
    text = "a: &x {b: 1, c: [1.5, true, null, 'x']}\nd: {<<: *x, b: 2}\ne: 2026-11-22\nf: 0x10"
    assert parse_yaml("\ufeff" + text, "f") == {
        "a": {"b": 1, "c": [1.5, True, None, "x"]},
        "d": {"b": 2, "c": [1.5, True, None, "x"]},
        "e": "2026-11-22",
        "f": 16,
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\na: 2", 2),
        ("a: 1\nb:\n  c: !!binary aGk=", 3),
        ("\n\na: " + "9" * 6000, 3),
        ("a: b\n\0", 2),
        ("a: &a\n  - *a", 2),
        ("a:\n\tb", 2),
    ],
)
def test_yaml_errors_name_the_line(text, line):
    with pytest.raises(SourceError, match=rf"^f\.yaml:{line}: "):
        parse_yaml(text, "f.yaml", SourceError)


def test_depth_of_yaml_includes_the_depth_of_aliased_values():
    deep = "a: &a " + "[" * 40 + "]" * 40 + "\n"
    assert parse_yaml(deep, "f")["a"]
    with pytest.raises(UsageError):
        parse_yaml(deep + "b: " + "[" * 40 + "*a" + "]" * 40, "f")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{\n"a": ' + "9" * 6000 + "}", 2),
        ("[\n\nNaN]", 3),
        ("[1,\n", 2),
        ("[" * 70 + "]" * 70, 1),
        ('["\\ud800"]', 1),
    ],
)
def test_json_errors_name_the_line(text, line):
    with pytest.raises(ModelError, match=rf"^f\.json:{line + 6}: "):
        parse_json(text, "f.json", ModelError, first_line=7)


def test_json_values_are_read_from_text_and_bytes():
    text = '\ufeff{"a": [1, -9223372036854775807, 1.5, null, true, "\\ud83d\\ude00"], "b": {}}'
    expected = {"a": [1, -LARGEST, 1.5, None, True, "\U0001f600"], "b": {}}
    assert parse_json(text, "f") == expected
    assert parse_json(text.encode(), "f") == expected


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_depths_and_numbers_are_accepted_up_to_their_limits_only(parse):
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert len(str(parse(deepest, "f"))) == 2 * MAX_DEPTH
    assert parse(f"[{LARGEST}, {-LARGEST}]", "f") == [LARGEST, -LARGEST]
    for text in (f"[{deepest}]", f"[{LARGEST + 1}]", f"[{-LARGEST - 1}]"):
        with pytest.raises(UsageError):
            parse(text, "f")


def test_json_too_large_for_memory_is_refused_before_parsing(monkeypatch):
    monkeypatch.setattr(parsing, "too_much", lambda needed: "8 GB" if needed > 1e6 else None)
    assert parse_json("[[]]", "f") == [[]]
    with pytest.raises(UsageError, match="8 GB"):
        parse_json("[" + "[]," * 20_000 + "1]", "f")


@pytest.mark.parametrize(
    "value", ["x" * 10**6, [["x" * 1000] * 100] * 100, {"a": 10**300}], ids=["text", "lists", "map"]
)
def test_quote_shortens_long_values(value):
    assert len(quote(value)) < 1000


def test_messages_are_one_short_printable_line():
    message = str(ModelError("a\n  b \x1b[2J \0 \udcff é " + "x" * 10**6))
    assert message.startswith("a b \\x1b[2J \\x00 \\udcff é x")
    assert message.isprintable()
    assert len(message) < 2 * LONGEST
    assert str(UsageError("two  spaces stay")) == "two  spaces stay"


def test_machine_memory_is_limited_by_the_container(tmp_path):
    machine_bytes.cache_clear()
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("4:memory:/a/b\n0::/\n")
    (root / "memory/a").mkdir(parents=True)
    assert machine_bytes(proc, root) > 1 << 28
    (root / "memory.max").write_text("max\n")
    (root / "memory/a/memory.limit_in_bytes").write_text("1073741824\n")  # limit of a parent group
    machine_bytes.cache_clear()
    assert machine_bytes(proc, root) == 1 << 30


def test_error_message_has_needed_and_available_memory(monkeypatch):
    monkeypatch.setattr(machine, "machine_bytes", lambda: 2 << 30)
    assert too_much(2 << 30) is None
    assert re.findall(r"\d\S+ GB", too_much(3 << 30)) == ["3.0 GB", "2.0 GB"]


def test_parsed_yaml_is_not_shared_between_callers():
    parse_yaml("a: [1]", "f")["a"].append(2)
    assert parse_yaml("a: [1]", "f") == {"a": [1]}
