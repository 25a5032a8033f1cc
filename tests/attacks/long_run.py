"""All kinds for some minutes, on several servers; a table, and the folders of what failed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.attacks.case import HANDLED, Case, Kind, on_engine, read_case
from tests.attacks.inputs import content
from tests.attacks.kinds import find_all
from tests.attacks.running import FAILURES, Outcome, Server

MOST_KEPT = 20  # folders of one kind and failure: the next ones are counted only
GOOD = "handled"
APART = "apart"  # ended in a library's way where the case gives too little to start; also handled


@dataclass
class Tally:
    """The results of the cases of one kind. A case that failed twice counts in both columns."""

    cases: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    cpu_s: float = 0.0
    asked: int = 0  # requests to the other one of two servers
    visits: int = 0  # of pages

    def add(self, outcome: Outcome, apart: bool = False) -> None:
        self.cases += 1
        self.counts[APART] += apart
        self.cpu_s += outcome.cpu_s
        self.asked += outcome.asked
        self.visits += outcome.visits
        self.codes.update(outcome.codes)
        self.counts.update({what for what, _ in outcome.failures} or {GOOD})


class LongRun:
    """``keep``: where failures are kept. ``say`` is called with a line for each. ``engine``: run
    what has to do with engines on this one, and nothing else."""

    def __init__(
        self, seed: int, keep: Path, say: Callable[[str], None], engine: str | None = None
    ) -> None:
        self.seed, self.keep, self.say, self.engine = seed, keep, say, engine
        self.tallies: dict[str, Tally] = {}
        self._lock = threading.Lock()
        self._kept: Counter[tuple[str, str]] = Counter()

    @property
    def failed(self) -> int:
        return sum(tally.cases - tally.counts[GOOD] for tally in self.tallies.values())

    def run(
        self, kinds: Collection[Kind], until: float, workers: int, most: int | None = None
    ) -> None:
        """Run cases in the order of ``schedule`` until ``until`` (monotonic) or ``most`` cases."""
        self.tallies = {kind.name: Tally() for kind in kinds}
        cases = schedule(kinds)
        taken = 0
        errors: list[BaseException] = []

        def work(root: Path) -> None:
            nonlocal taken
            try:
                with Server(root) as server:
                    while time.monotonic() < until and not errors:
                        with self._lock:
                            if most is not None and taken >= most:
                                return
                            kind, number = next(cases)
                            before = self.tallies[kind.name].cases
                            case = self._make(kind, number)
                            # One that cannot be made was counted there.
                            taken += case is not None or self.tallies[kind.name].cases > before
                        if case is not None:
                            self._note(kind, number, case, server.run(case))
            except BaseException as error:
                errors.append(error)

        with tempfile.TemporaryDirectory(prefix="attack-") as place:
            threads = [
                threading.Thread(target=work, args=(Path(place) / str(at),))
                for at in range(workers)
            ]
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    thread.join()
            except KeyboardInterrupt as error:
                errors.append(error)
                for thread in threads:
                    thread.join()
        if errors:
            raise errors[0]

    def _make(self, kind: Kind, number: int) -> Case | None:
        """Return None if the case has no engine, or if the kind cannot make it: this is a bug of
        ours, which counts as a failure but does not stop the long run."""
        try:
            case = kind.case(self.seed, number)
            return case if self.engine is None else on_engine(case, self.engine, content("in.mp4"))
        except Exception as error:
            why = f"the case could not be made: {type(error).__name__}: {error}"
            self.tallies[kind.name].add(Outcome(failures=[("other", why)]))
            self.say(f"{kind.name} {self.seed} {number}: {why}")
            return None

    def _note(self, kind: Kind, number: int, case: Case, outcome: Outcome) -> None:
        with self._lock:
            ends = [code for code in outcome.codes if code not in HANDLED and code in case.codes]
            self.tallies[kind.name].add(outcome, bool(ends) and not (case.signals or case.visits))
            if not outcome.failures:
                return
            key = kind.name, outcome.failures[0][0]
            self._kept[key] += 1
            if self._kept[key] > MOST_KEPT:
                return
            folder = self.keep / f"{kind.name.replace(' ', '-')}-{self.seed}-{number}"
            keep(folder, case, outcome, {"kind": kind.name, "seed": self.seed, "number": number})
            what, text = outcome.failures[0]
            self.say(f"{folder}: {what}: {text}")

    def table(self) -> str:
        columns = ("cases", GOOD, APART, *FAILURES)
        rows = [["kind", *columns, "CPU s/case"]]
        for name, tally in sorted(self.tallies.items()):
            counts = [tally.cases, *(tally.counts[what] for what in columns[1:])]
            rows.append([name, *map(str, counts), f"{tally.cpu_s / max(1, tally.cases):.2f}"])
        every = list(self.tallies.values())
        sums = [
            sum(t.cases for t in every),
            *(sum(t.counts[what] for t in every) for what in columns[1:]),
        ]
        rows.append(
            ["all", *map(str, sums), f"{sum(t.cpu_s for t in every) / max(1, sums[0]):.2f}"]
        )
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        table = "\n".join(
            "  ".join(
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )
        asked = sum(tally.asked for tally in every)
        ends = sum((tally.codes for tally in every), Counter())
        table += "\nended with: " + ", ".join(f"{code}: {ends[code]}" for code in sorted(ends))
        table += f"\nrequests that reached another host: {asked}" if asked else ""
        visits = sum(tally.visits for tally in every)
        return table + (f"\nconnections to pages: {visits}" if visits else "")


def schedule(kinds: Collection[Kind]) -> Iterator[tuple[Kind, int]]:
    """Endless (kind, number): first every kind's ``first`` among the others, then by shares."""
    numbers = {kind.name: 0 for kind in kinds}
    weights = {kind.name: max(kind.share, kind.first / FIRST_CASES * 100) for kind in kinds}
    while True:
        # Early on a kind with a quota counts as if its share were larger, so that it gets there.
        kind = min(
            kinds,
            key=lambda one: (
                (numbers[one.name] + 1)
                / (weights[one.name] if numbers[one.name] < one.first else one.share)
            ),
        )
        yield kind, numbers[kind.name]
        numbers[kind.name] += 1


FIRST_CASES = 4000  # by so many cases every kind has had its ``first``


def keep(folder: Path, case: Case, outcome: Outcome, told: dict[str, object]) -> None:
    """Write a case and what it did, so that ``scripts/attack --case FOLDER`` runs it again."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case.save(folder)
    found = {
        **told,
        "codes": outcome.codes,
        "failures": outcome.failures,
        "wall_s": round(outcome.wall_s, 3),
        "cpu_s": round(outcome.cpu_s, 3),
        "memory_mb": round(outcome.memory_mb),
    }
    (folder / "found.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, texts in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        for number, text in enumerate(texts):
            (folder / f"{name}-{number}.txt").write_bytes(text)


def repeat(folder: Path) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="attack-") as place, Server(Path(place)) as server:
        return server.run(read_case(folder))


def choose(names: Collection[str]) -> list[Kind]:
    kinds = find_all()
    return [kinds[name] for name in names] if names else list(kinds.values())


def cores() -> int:
    return len(os.sched_getaffinity(0))
