"""Every part of the report, drawn from an empty session, from one frame and from a full session."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from detector.core.session.document import FrameCounts, Rates
from detector.core.tables import Table
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.tables import print_pieces
from detector.lab.report.page import list_hows
from detector.lab.report.part import Part, list_parts
from detector.lab.session.passes import FACTS, LayersFacts
from detector.lab.session.read import SavedSession, read_session
from tests.lab.report.sessions import ran, with_passes

KINDS = ("empty", "one frame", "whole")
MORE = {  # passes that this machine may be unable to run
    "counters": {
        "counts": {"cycles": 1e9},
        "ipc": 1.5,
        "cache_miss_rate": None,
        "instructions_per_frame": 1.5e9,
        "includes": "start-up too",
        "slowdown": 1.0,
    },
    "frames": {
        "rows": [{"frame": 3, "ms": 9.5, "stage": "infer", "stage_ms": 7.0, "file": "gone.jpg"}]
    },
}
TRACK = {
    "track": 1, "name": "<b>", "first_s": 1.0, "last_s": 2.5, "frames": 9, "best_frame": 3,
    "best_s": 1.5, "score": 0.9, "file": "000001-_b_.jpg", "at_s": 0.5, "jpeg": "/9j/",
}  # fmt: skip
TRACKS = [TRACK, {**TRACK, "track": 2, "jpeg": "bm8="}]
VOID = {"meta", "br", "img", "input", "hr", "link"}


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedSession]:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "zones.yaml").write_text("lines: {door: [[0, 0.5], [1, 0.5]]}\n")
    whole = with_passes(ran(folder, zones=str(folder / "zones.yaml")))
    for name, facts in MORE.items():
        (whole / f"passes/{name}.json").write_text(json.dumps({"available": True, **facts}))
    (whole / "tracks").mkdir()
    (whole / "tracks/0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TRACKS))
    one = read_session(ran(tmp_path_factory.mktemp("one"), frames=1))
    return {"empty": without_frames(one), "one frame": one, "whole": read_session(whole)}


def without_frames(session: SavedSession) -> SavedSession:
    document = replace(
        session.document,
        frames=FrameCounts(read=0, written=0, bad=0, corrupt=0, skipped=0, dropped=0),
        fps=Rates(end_to_end=None, inference=None),
        stages={},
        threads={},
        loop=[{}],
        command=[],
    )
    names = ("thread_names", "stage_names", "kind_names")
    spans = {
        name: column if name in names else column[:0] for name, column in session.spans.items()
    }
    return replace(session, document=document, spans=spans, passes={})


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1:] == [tag]:
            self.open.pop()


def complaints(part: Part, session: SavedSession) -> Iterator[str]:
    try:
        html = part.draw(session)
        pieces = _pieces(part, session)
    except Exception as error:
        yield f"it raises {type(error).__name__}: {error}"
        return
    if html:
        if not html.startswith(f'<section id="{part.name}-part"><h2>{escape(part.title)}'):
            yield "its section lacks the anchor or the heading"
        if not part.title.strip() or not re.fullmatch(r"[a-z][a-z-]*", part.name):
            yield "its heading or its name is invalid"
        tags = _Tags()
        tags.feed(html)
        if tags.open:
            yield f"it leaves {tags.open[-1]} open"
        if re.search(r"(?i)>-?(nan|inf)<", html):
            yield "it shows nan or inf"
    for width in (80, 120):
        out = io.StringIO()
        print_pieces(SafeConsole(file=out, width=width), pieces)
        if any(len(line) > width for line in out.getvalue().splitlines()):
            yield f"a line is wider than {width} columns"


def _pieces(part: Part, session: SavedSession) -> list[Table | str]:
    records = session.passes.values()
    record = next(
        (one for one in records if part.facts and isinstance(one.facts, part.facts)), None
    )
    if record is None:
        return []
    writers = [write for write in (part.says, part.brief) if write is not None]
    return [piece for write in writers for piece in write(record.facts)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", list_parts(), ids=lambda part: part.name)
def test_part_draws_every_kind_of_session(part, kind, sessions) -> None:
    assert list(complaints(part, sessions[kind])) == []


@pytest.mark.parametrize("part", list_parts(), ids=lambda part: part.name)
def test_full_session_has_every_part(part, sessions) -> None:
    html = part.draw(sessions["whole"])
    assert html or _pieces(part, sessions["whole"])
    assert part.name != "run" or '<td class="none">' not in html
    if part.facts is LayersFacts:
        pieces = _pieces(part, sessions["whole"])
        assert any("0.7" in piece for piece in pieces if isinstance(piece, str)), (
            "the time outside the layers is missing"
        )
    if part.facts is not None:
        assert part.draw(sessions["one frame"]) == "", "must be empty: its pass did not run"


def test_report_parts_have_unique_names_and_places() -> None:
    for key in ("name", "place"):
        each = [getattr(part, key) for part in list_parts()]
        assert len(set(each)) == len(each), key
    own = {part.how.name for part in list_parts() if part.how}
    assert own <= {one.name for one in list_hows()}


def test_every_pass_has_a_part() -> None:
    assert {part.facts for part in list_parts() if part.facts} == set(FACTS.values())


def test_every_module_of_parts_declares_its_parts() -> None:
    folder = Path(__file__).parents[2] / "detector/lab/report/parts"
    for file in folder.glob("[!_]*.py"):
        assert "\nPARTS = (" in file.read_text(), file.name
