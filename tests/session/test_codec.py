"""Any text round-trips. Unsafe files, deep nesting and numbers out of range are refused."""

import json
import math
import os

import pytest

from detector.core.errors import UsageError
from detector.core.session.codec import MAX_DEPTH, parse_json, read_file, to_json
from detector.core.session.store import Session
from detector.lab.session.passes import PassRecord, read_pass
from tests.session.documents import document

ODD = "bad\udcff \x1b[31m \x7f \u202e ü 视 \U0001f600"


def test_any_text_round_trips_through_ascii():
    text = to_json({"a": ODD, ODD: [ODD]})
    assert text.isascii()
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert parse_json(text, "here") == {"a": ODD, ODD: [ODD]}


def test_session_with_odd_names_round_trips(tmp_path):
    session = document(
        model=ODD,
        notes=[ODD],
        outputs={ODD: ODD},
        detections={"total": 3, "by_class": {ODD: 3}, "cut_by_max_det": 0},
        clip_sha256={ODD: None},
        command=[ODD],
        config={ODD: {ODD: ODD}},
    )
    path = Session(tmp_path).write_json("session.json", session)
    assert json.loads(path.read_bytes())["clip_sha256"] == {ODD: None}
    assert document(**json.loads(path.read_bytes())) == session


def test_non_finite_number_becomes_null():
    text = to_json({"a": math.inf, "b": [math.nan, 1.5, (-math.inf,)]})
    assert parse_json(text, "here") == {"a": None, "b": [None, 1.5, [None]]}


def test_json_deeper_than_the_limit_is_refused():
    parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH, "here")
    for depth in (MAX_DEPTH + 1, 900, 10**6):
        with pytest.raises(UsageError, match="here"):
            parse_json("[" * depth + "]" * depth, "here")


@pytest.mark.parametrize("number", ["1e999", "-1e300", "9" * 400, "9" * 5000, str(2**63)])
def test_number_out_of_range_is_refused(number):
    with pytest.raises(UsageError, match="here"):
        parse_json(f'{{"a": [{number}]}}', "here")
    assert parse_json(f'"{number}"', "here") == number


def test_only_regular_files_up_to_a_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(b"12345")
    for name in ("pipe", "zeros", "large", ".", "absent"):
        with pytest.raises(UsageError, match=str(tmp_path)):
            read_file(tmp_path / name, most_bytes=4)
    assert read_file(tmp_path / "large", most_bytes=5) == b"12345"


def test_slowdown_in_a_users_pass_file_must_be_a_number(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"available": true, "slowdown": 1.5, "answer": 42}')
    assert read_pass(path) == PassRecord(available=True, facts={"slowdown": 1.5, "answer": 42})
    path.write_text('{"available": true, "slowdown": "much"}')
    with pytest.raises(UsageError, match="slowdown"):
        read_pass(path)
