"""Run attacks of all kinds for minutes on several servers; print a table, and keep failed cases."""

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

MOST_KEPT = 20  # failed cases kept per kind and failure; further ones are only counted
GOOD = "handled"
# The column of cases that ended with an exit code of Python or of a library. Such a case allows
# that code, so the case also counts as handled.
LIBRARY_END = "library"


@dataclass
class Tally:
    """The results of the cases of one kind. A case with two failures counts in both columns."""

    cases: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    cpu_s: float = 0.0
    other_requests: int = 0  # requests that reached another host than the camera
    visits: int = 0  # connections to pages

    def add(self, outcome: Outcome, by_library: bool = False) -> None:
        self.cases += 1
        self.counts[LIBRARY_END] += by_library
        self.cpu_s += outcome.cpu_s
        self.other_requests += outcome.other_requests
        self.visits += outcome.visits
        self.codes.update(outcome.codes)
        self.counts.update({failure for failure, _ in outcome.failures} or {GOOD})


class LongRun:
    """A long run. ``keep``: folder for failed cases; ``say`` prints a line for each.
    ``engine``: run only cases that involve an engine, and run them on this engine."""

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
        """Run cases in the order of ``schedule``. Stop after ``most`` cases, or when the monotonic
        clock shows ``until``."""
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
                            # _make counts a case that cannot be made.
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
        """Make a case. Return None if making it fails, or if ``engine`` is set and the case
        involves no engine. A failure is a bug in the kind; it is counted, and the run goes on."""
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
            allowed = case.codes - HANDLED if not (case.signals or case.visits) else frozenset()
            self.tallies[kind.name].add(outcome, not allowed.isdisjoint(outcome.codes))
            if not outcome.failures:
                return
            key = kind.name, outcome.failures[0][0]
            self._kept[key] += 1
            if self._kept[key] > MOST_KEPT:
                return
            folder = self.keep / f"{kind.name.replace(' ', '-')}-{self.seed}-{number}"
            keep(folder, case, outcome, {"kind": kind.name, "seed": self.seed, "number": number})
            failure, text = outcome.failures[0]
            self.say(f"{folder}: {failure}: {text}")

    def table(self) -> str:
        columns = ("cases", GOOD, LIBRARY_END, *FAILURES)
        rows = [["kind", *columns, "CPU s/case"]]
        for name, tally in sorted(self.tallies.items()):
            counts = [tally.cases, *(tally.counts[failure] for failure in columns[1:])]
            rows.append([name, *map(str, counts), f"{tally.cpu_s / max(1, tally.cases):.2f}"])
        every = list(self.tallies.values())
        cases, cpu_s = sum(tally.cases for tally in every), sum(tally.cpu_s for tally in every)
        sums = [cases, *(sum(tally.counts[name] for tally in every) for name in columns[1:])]
        rows.append(["all", *map(str, sums), f"{cpu_s / max(1, cases):.2f}"])
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        table = "\n".join(
            "  ".join(
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )
        other_requests = sum(tally.other_requests for tally in every)
        ends = sum((tally.codes for tally in every), Counter())
        table += "\nended with: " + ", ".join(f"{code}: {ends[code]}" for code in sorted(ends))
        table += f"\nrequests that reached another host: {other_requests}" if other_requests else ""
        visits = sum(tally.visits for tally in every)
        return table + (f"\nconnections to pages: {visits}" if visits else "")


def schedule(kinds: Collection[Kind]) -> Iterator[tuple[Kind, int]]:
    """Yield (kind, number of its case) without end. Kinds get cases in proportion to their
    ``share``, but a kind gets more until it has had its ``first`` cases."""
    numbers = {kind.name: 0 for kind in kinds}
    weights = {kind.name: max(kind.share, kind.first / FIRST_CASES * 100) for kind in kinds}
    while True:
        kind = min(
            kinds,
            key=lambda one: (
                (numbers[one.name] + 1)
                / (weights[one.name] if numbers[one.name] < one.first else one.share)
            ),
        )
        yield kind, numbers[kind.name]
        numbers[kind.name] += 1


FIRST_CASES = 4000  # after this many cases in total, each kind has had its ``first`` cases


def keep(folder: Path, case: Case, outcome: Outcome, about: dict[str, object]) -> None:
    """Write a case and its outcome. ``scripts/attack --case FOLDER`` can then run it again."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case.save(folder)
    document = {
        **about,
        "codes": outcome.codes,
        "failures": outcome.failures,
        "wall_s": round(outcome.wall_s, 3),
        "cpu_s": round(outcome.cpu_s, 3),
        "memory_mb": round(outcome.memory_mb),
    }
    (folder / "document.json").write_text(json.dumps(document, indent=1) + "\n")
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
