"""The findings: a JSON document and a Markdown page, both valid after every row.

A lent machine may be taken back at any moment, and a process may be killed. So both files exist
before the first step, each is replaced atomically, and steps that were not reached are marked.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""Has the keys ``what``, ``value`` and ``state``."""

PASS, FAIL, NOT_RUN, REHEARSED = STATES = ("pass", "fail", "not run", "rehearsed")
WAITING, RUNNING, DONE, ENDED, SKIPPED = ("waiting", "running", "done", "ended", "skipped")
JSON, MARKDOWN = "findings.json", "findings.md"

_rehearsing = False


def rehearse() -> None:
    """From now on, mark passing rows as ``rehearsed``, because a stand-in replaces the GPU."""
    global _rehearsing
    _rehearsing = True


def rehearsing() -> bool:
    return _rehearsing


def row(what: str, value: Any, ok: bool | None = True, *, real: bool = False) -> Row:
    """Return a row. ``ok``: None if the check could not run; ``value`` is then the reason.
    ``real``: the check needs no GPU, so the row is never marked ``rehearsed``."""
    if ok is None:
        state = NOT_RUN
    elif not ok:
        state = FAIL
    else:
        state = REHEARSED if _rehearsing and not real else PASS
    return {"what": what, "value": str(value), "state": state}


@dataclass
class Section:
    """One step. ``state``: waiting, running, done, ended (at its time limit) or skipped."""

    name: str
    what: str
    budget_s: int
    state: str = WAITING
    took_s: float | None = None
    rows: list[Row] = field(default_factory=list)


class Findings:
    """The findings of one call of scripts/gpu_check. If ``folder`` is None, no file is written."""

    def __init__(
        self, sections: Sequence[Section], folder: Path | None, rehearsal: bool, seconds: float
    ) -> None:
        self.sections = {one.name: one for one in sections}
        self._folder, self._rehearsal, self._seconds = folder, rehearsal, seconds
        self._started = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self.write()

    def set_state(self, name: str, state: str, took_s: float | None = None) -> None:
        section = self.sections[name]
        section.state, section.took_s = state, took_s
        self.write()

    def add(self, name: str, found: Row) -> None:
        self.sections[name].rows.append(found)
        self.write()

    def counts(self) -> Counter[str]:
        """Return the number of rows by state; a step without rows counts as not run."""
        return Counter(
            entry["state"]
            for section in self.sections.values()
            for entry in section.rows or [{"state": NOT_RUN}]
        )

    def failed(self) -> list[str]:
        rows = [entry for section in self.sections.values() for entry in section.rows]
        return [entry["what"] for entry in rows if entry["state"] == FAIL]

    def write(self) -> None:
        from detector.core.errors.writing import write_whole

        if self._folder is not None:
            write_whole(self._folder / JSON, json.dumps(self.document(), indent=1).encode())
            write_whole(self._folder / MARKDOWN, self.page().encode())

    def document(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "made_by": "scripts/gpu_check",
            "started": self._started,
            "machine": platform.platform(),
            "python": platform.python_version(),
            "rehearsal": self._rehearsal,
            "seconds": self._seconds,
            "counts": dict(self.counts()),
            "steps": [asdict(one) for one in self.sections.values()],
        }

    def page(self) -> str:
        """Return the text of the Markdown page."""
        counts = self.counts()
        head = [
            f"{self._started}, {platform.platform()}, Python {platform.python_version()}"
            + (": **a rehearsal without a GPU**" if self._rehearsal else ""),
            "",
            ", ".join(f"{counts[state]} {state}" for state in STATES),
            "",
        ]
        lines = [line for one in self.sections.values() for line in _lines(one)]
        return "\n".join([*head, "| step | what | found | |", "|---|---|---|---|", *lines, ""])


def _lines(section: Section) -> list[str]:
    rows = list(section.rows)
    if section.state == WAITING:
        rows = [row(section.what, "not reached yet", None)]
    elif section.state == RUNNING:
        rows.append(row(section.what, "was running when this page was written", None))
    return [
        f"| {section.name} | {_cell(r['what'])} | {_cell(r['value'])} | {r['state']} |"
        for r in rows
    ]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
