"""Every statistic of a summary appears in the schema and the report. Numbers that are not
statistics are listed here, so that no new number is forgotten."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from html import escape
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

from detector.core.analysis.statistics import Statistic, list_statistics
from detector.core.session.codec import json_schema
from detector.core.session.document import Summary
from detector.lab.report.page import page
from detector.lab.session.read import SavedSession, read_session
from tests.lab.report.sessions import ran

NOT_MEASURED = {
    # These are not measured: they are the same in every run of the same command line.
    "schema",
    "batch",
    "engine_threads",
    "concurrency",
    "random_weights",
    "exit/code",
    "input_shapes/square_pixels",
    # These describe the source.
    "video/width",
    "video/height",
    "video/fps",
    "video/frames_declared",
    "video/duration_s",
    "video/rotation",
    # These are measured, but the report shows only results that combine them.
    "cpu/libraries/wall_s",
    "cpu/libraries/process_s",
    "cpu/libraries/unknown_s",
    "cpu/libraries/others_s",
}


def numbers(kind: type[Any], above: str = "") -> Iterator[str]:
    """Yield the names of all numeric fields of a dataclass and of the dataclasses in its fields."""
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        for part in parts(hints[one.name]):
            if part in (int, float):
                yield f"{above}{one.name}"
            elif is_dataclass(part):
                yield from numbers(part, f"{above}{one.name}/")


def parts(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Annotated:
        yield from parts(get_args(hint)[0])
    elif get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from parts(one)
    else:
        yield hint


def complaints(one: Statistic, schema: dict[str, Any], html: str) -> list[str]:
    faults = []
    place, names = schema, one.name.split("/")
    for name in names:
        for choice in (place, *place.get("anyOf", ())):
            if "$ref" in choice:
                place = schema["$defs"][choice["$ref"].rpartition("/")[2]]
        place = place.get("properties", {}).get(name, {})
    if (place.get("title"), place.get("unit")) != (one.title, one.unit) or not one.title:
        faults.append("the schema lacks its title or its unit")
    if not one.unit:
        faults.append("it has no unit")
    row = rf">{re.escape(escape(one.title))}</td><td data-value=\"[^\"]+\">"
    if not (one.title and re.search(row, html)):
        faults.append("the report lacks it")
    return faults


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> SavedSession:
    return read_session(ran(tmp_path_factory.mktemp("statistics")))


@pytest.fixture(scope="module")
def outputs(session: SavedSession) -> tuple[dict[str, Any], str]:
    return json_schema(Summary), page(session).decode()


@pytest.mark.parametrize("one", list_statistics(), ids=lambda one: one.name)
def test_every_statistic_is_in_schema_and_report(one, session, outputs) -> None:
    expected = [] if one.of(session.document) is not None else ["the report lacks it"]
    assert [each for each in complaints(one, *outputs) if each not in expected] == []


def test_plain_run_measures_most_statistics(session) -> None:
    absent = {one.name for one in list_statistics() if one.of(session.document) is None}
    rare = {"fps", "memory", "decoding", "capacity", "disturbed", "input_shapes"}
    assert {name.split("/")[0] for name in absent - {"detections/empty"}} <= rare
    assert "fps/end_to_end" not in absent


def test_every_number_of_a_summary_is_a_statistic_or_is_listed_here() -> None:
    declared = {one.name for one in list_statistics()}
    assert declared & NOT_MEASURED == set()
    assert set(numbers(Summary)) == declared | NOT_MEASURED


def test_statistics_have_unique_names_and_titles() -> None:
    statistics = list_statistics()
    assert (
        len({one.name for one in statistics})
        == len({one.title for one in statistics})
        == len(statistics)
    )
