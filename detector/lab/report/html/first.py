"""The first screen of the report: speed, the limit, detections, and commands to type next."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from html import escape
from pathlib import PurePath
from urllib.parse import quote

from detector.core.analysis.verdict import UNMEASURED
from detector.core.errors.text import counted
from detector.core.session.document import SessionDocument
from detector.core.tables import Column, Table
from detector.lab.analysis.detection_counts import count_classes, count_over_time
from detector.lab.analysis.next_steps import THIS, NextStep, base_command, next_steps
from detector.lab.analysis.noise import decimals, decimals_of, decimals_of_rate, spread_of_run
from detector.lab.report.html import drawings
from detector.lab.report.html.drawings import LONG, figure, legend, section, table
from detector.lab.session.passes import WhatIfFacts
from detector.lab.session.read import SavedSession
from detector.lab.session.rows import read_rows

LINKS = 3
LONG_COMMAND = 60  # characters; a longer command is printed only once, above the options to add
ELLIPSIS = "…"
MAX_CLASSES = 6  # rows of the table; 80 classes would push everything else off the screen


def first_screen(session: SavedSession) -> str:
    return (
        f'<div id="first">{_rates(session)}{_verdict(session)}{_detections(session)}</div>'
        + _next(session)
    )


def _rates(session: SavedSession) -> str:
    document, fps = session.document, session.document.fps
    cards = [
        _card("end-to-end FPS", fps.end_to_end, session),
        _card("inference FPS", fps.inference, session),
    ]
    if fps.device is not None:
        cards.append(_card("device FPS", fps.device, session))
    total = document.detections.total
    unit = f"detections in {counted(document.frames.written, 'frame')}"
    cards.append(f'<div class="card"><b data-value="{total}">{total:,}</b>{unit}</div>')
    cards.append(f'<div class="card files">{_links(document)}</div>')
    spread = spread_of_run(session)
    note = (
        f'<p class="note">In repeated runs, the time per frame varied by {spread:.0%}.</p>'
        if spread >= 0.01
        else ""
    )
    return f'<div class="cards">{"".join(cards)}</div>{note}'


def _card(name: str, rate: float | None, session: SavedSession) -> str:
    if rate is None:
        return f'<div class="card"><b>-</b>{name}</div>'
    shown = f"{rate:.{decimals_of_rate(session, rate)}f}"
    return f'<div class="card"><b data-value="{rate!r}">{shown}</b>{name}</div>'


def _links(document: SessionDocument) -> str:
    shown = []
    for one in document.each[:LINKS]:
        for kind, path in sorted(one.outputs.items(), key=lambda item: item[0] != "video"):
            place = _path_from_session(document, path)
            name = escape(PurePath(path).name or path)
            what = "annotated video" if kind == "video" else escape(kind)
            shown.append(
                f'{what}: <a href="{escape(quote(_encode(place)))}">{name}</a>'
                if place
                else f"{what}: {escape(path)}"
            )
    streams = document.streams if isinstance(document.streams, list) else []
    shown += [
        f"{escape(stream.name)}: {escape(', '.join(stream.outputs.values()))}"
        for stream in streams[:LINKS]
        if stream.outputs
    ]
    return "<br>".join(shown) or "no file was written"


def _path_from_session(document: SessionDocument, path: str) -> str | None:
    """Return ``path`` relative to the session's folder, or None if only one of the two is absolute.
    The file system is not used, since the report may be rendered on another machine."""
    session = document.session
    if not isinstance(session, str) or os.path.isabs(session) != os.path.isabs(path):
        return None
    root = "/-" * 64  # deep enough that ".." in a path does not reach "/"
    return os.path.relpath(os.path.join(root, path), os.path.join(root, session))


def _encode(path: str) -> bytes:
    """Encode a file name, even if it is not UTF-8. If that fails, replace surrogates by "?"."""
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        return path.encode("utf-8", "replace")


def _verdict(session: SavedSession) -> str:
    verdict = session.document.verdict.sentence
    if session.facts(WhatIfFacts) is not None:
        verdict = verdict.replace(f" {UNMEASURED}", "")
    marked_up = re.sub("`([^`]+)`", r"<code>\1</code>", escape(verdict))
    return f'<p class="verdict">{marked_up}</p>'


FOUND = (
    Column("name", "class"),
    Column("count", "detections", ","),
    Column("share", form=".1%"),
    Column("a_frame", "per frame", ".1f"),
)


def _detections(session: SavedSession) -> str:
    classes = count_classes(session.document)
    if not classes:
        return '<section id="found-part"><h2>Detections</h2><p>Nothing was found.</p></section>'
    counts = table(Table("found", FOUND, classes, most=MAX_CLASSES, rest="classes"))
    return section(
        "found",
        "Detections",
        f'<div class="found"><div>{counts}</div><div>{_over_time(session)}</div></div>',
    )


def _over_time(session: SavedSession) -> str:
    counts = count_over_time(read_rows(session.folder))
    note = f"Covers only part of the run: {counts.note}." if counts.note else ""
    if not counts.curves:
        return f"<p>{escape(note)}</p>"
    drawn = drawings.lines(
        counts.curves,
        counts.unit,
        "detections per frame",
        height=150,
        width=drawings.HALF,
        dense=True,
    )
    return legend(list(counts.curves)) + figure(drawn, note)


def _next(session: SavedSession) -> str:
    steps = next_steps(session)
    if not steps:
        return ""
    facts, note = session.facts(WhatIfFacts), ""
    if facts is not None:
        now, is_whole = facts.fps.median, facts.frames >= session.document.frames.written
        shown = "the whole run" if is_whole else f"the first {counted(facts.frames, 'frame')}"
        note = (
            f"FPS are end to end on {shown}, where the unchanged run "
            f'reaches <b data-value="{now!r}">{now:.{decimals_of(facts.fps)}f}</b>.'
        )
    base = base_command(session.document)
    is_long = len(shlex.join(base)) > LONG_COMMAND
    if is_long:
        note += f" Add each option to this command (written … below): <code>{_words(base)}</code>"
    rows = "".join(_step_row(step, is_long) for step in steps)
    heads = '<th scope="col" class="text">'.join(("", "command</th>", "FPS</th>", "effect</th>"))
    listed = (
        f'<div class="scroll"><table id="next"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    return section(
        "next",
        "Next steps",
        f"<p>{note}</p>" if note else "",
        _warn_of_doubts(facts),
        listed,
        how="whatif",
    )


def _step_row(step: NextStep, short: bool) -> str:
    old = step.command[: len(step.command) - len(step.option)]
    if short:
        old = [*old[:1], *([] if step.command[1] == "tune" else [ELLIPSIS])]
    new = f" <b>{_words(step.option)}</b>" if step.option else ""
    command = f"<code>{_words(old)}{new}</code>"
    return (
        f'<tr><td class="text command">{command}</td>{_rate_cell(step)}'
        f'<td class="text does">{escape(step.does)}</td></tr>'
    )


def _words(words: Sequence[str]) -> str:
    """Join words so that lines break only between words, not after the hyphens of an option."""
    quoted = [word if word == ELLIPSIS else escape(shlex.quote(word)) for word in words]
    return " ".join(f"<span>{one}</span>" if len(one) < LONG else one for one in quoted)


def _rate_cell(step: NextStep) -> str:
    rate = step.figure
    if rate is None:
        how = "run it to find out" if step.measure == THIS else f"measure it with {step.measure}"
        return f'<td class="text said">{escape(how)}</td>'
    shown = decimals(rate.apart)
    repeated = rate.basis.split()[0] in shlex.join(step.option)  # --batch 4 already says "batch 4"
    basis = "" if repeated else f" (<i>{escape(rate.basis)}</i>)"
    return (
        f'<td class="text said"><b data-value="{rate.fps!r}">{rate.fps:.{shown}f}</b> '
        f"{rate.kind}{basis}</td>"
    )


def _warn_of_doubts(facts: WhatIfFacts | None) -> str:
    reasons = [] if facts is None else facts.doubts
    if not reasons:
        return ""
    more = f' (and {len(reasons) - 1} more, under "What if")' if len(reasons) > 1 else ""
    return f'<p class="warning">These figures are unreliable: {escape(reasons[0])}{more}.</p>'
