"""The job: it hands items to a pool until none is left, and records the result of each."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from detector.batch import dataset, pieces
from detector.batch.documents import (
    BatchProgress,
    BatchReport,
    BatchResult,
    Failure,
    Found,
    ItemCounts,
    ItemRecord,
    JobSettings,
    Ledger,
    SlowItem,
    WorkerState,
)
from detector.batch.item import NOT_SPLIT, Piece, Task
from detector.batch.layout import named
from detector.batch.listing import WHOLE, Listing, Shard
from detector.batch.long_items import AUTO, LongItems, Split, do_whole
from detector.batch.manifest import Manifest
from detector.batch.places import Outputs
from detector.batch.plan import Plan
from detector.batch.pool import Event, Failed, Finished, Gone, Pool
from detector.batch.progress import Tally
from detector.batch.settings import key_of
from detector.core.errors import (
    EXIT_DAMAGED,
    EXIT_DONE,
    EXIT_OUTPUT,
    EXIT_SOURCE,
    STOPPED_CODES,
    OutputError,
)
from detector.core.errors.secrets import redact
from detector.core.errors.text import counted
from detector.core.errors.writing import write_whole
from detector.core.run.signals import Stop
from detector.core.session.codec import to_builtins
from detector.core.session.document import Exit
from detector.core.sources._addresses import is_address

MOST_TRIES = 2
TICK_S = 0.5  # the longest wait for events
SHOWN_EVERY_S = 0.25
KEPT_EVERY_S = 2.0  # time between commits of the manifest
OUTPUT_ERRORS = 3  # the job ends if this many items in a row cannot be written
MOST_NOTES = 5  # notes about long items that were not split
FAILURES = "failures"
LOCAL = "local"

TaskId = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The sources and options of a job, as the user gave them. ``flags``: options of the
    configuration. ``on``: local, ray, or ray://HOST:PORT."""

    sources: Sequence[str]
    output: str
    flags: dict[str, Any]
    config_file: str | None = None
    on: str = LOCAL
    workers: int | None = None
    resume: bool = False
    shard: Shard = WHOLE
    most_failures: int | None = None
    item_timeout: float | None = None
    prune: bool = False
    split: Split = AUTO
    one_csv: bool = False
    sort: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Callbacks. ``progress`` is called a few times a second; ``say`` gets a sentence for the
    user."""

    progress: Callable[[BatchProgress], None] = lambda progress: None
    say: Callable[[str], None] = lambda text: None


@dataclass(slots=True)
class Job:
    request: Request
    settings: JobSettings
    listing: Listing  # the items of this shard
    plan: Plan
    manifest: Manifest
    outputs: Outputs
    pool: Pool
    watch: Watch
    clock: Callable[[], float] = time.monotonic
    tally: Tally = field(default_factory=Tally)
    notes: list[str] = field(default_factory=list)
    _todo: deque[Task] = field(default_factory=deque)
    _running: dict[TaskId, Task] = field(default_factory=dict)
    _long: LongItems = field(init=False)
    _not_split: int = 0
    _output_errors: list[Failed] = field(default_factory=list)
    _ends: Exit | None = None  # why the job ends before its last item
    _kept: float = 0.0
    _shown: float = float("-inf")
    _total_s: float = 0.0

    def begin(self, stop: Stop) -> None:
        plan, manifest = self.plan, self.manifest
        manifest.write(self.settings)
        manifest.forget(plan.stale)
        adopted = [(item, record.key) for item, record in plan.adopted]
        manifest.plan([*plan.todo, *adopted])
        for _, record in plan.adopted:
            manifest.finish(record, 1)
        manifest.refuse(self.listing.refused)
        manifest.commit()
        self._write_failures(self.listing.refused)
        self._gather_missing(stop)
        # The largest items come first, so that the job ends with short ones.
        ordered = sorted(plan.todo, key=lambda one: (-one[0].size, one[0].name))
        self._long = LongItems.begin(
            self.outputs.place,
            ordered,
            self.request.split,
            len(self.pool.states()),
            {item.name for item in self.listing.items} if self.request.shard != WHOLE else None,
        )
        tasks = (Task(name=i.name, path=i.path, version=i.version) for i, _ in ordered)
        self._todo.extend(map(self._long.first, tasks))
        self.tally.skipped = plan.skipped
        self.tally.left = len(ordered)
        self.tally.bytes_left = sum(item.size for item, _ in ordered)
        self.tally.failed = len(self.listing.refused)
        self.tally.cores = self.pool.cores()
        self.tally.clock = self.clock
        self._describe()

    def _describe(self) -> None:
        counts = self.plan.counts()
        if self.request.resume:
            self.watch.say(
                f"continuing: {counts.skipped} done before (skipped), {counts.changed} changed "
                f"since (redone), {counts.again} failed before (tried again), {counts.new} new"
            )
        if kept := len(self._long.kept):
            self.watch.say(
                f"{counted(kept, 'long file')} will continue in parts; parts already done are kept"
            )
        if counts.vanished:
            self.notes.append(
                f"{counted(counts.vanished, 'result')} of sources that no longer exist; --prune "
                "removes them"
            )
        self.notes += self.listing.notes()
        for spec in self.listing.silent:
            self.notes.append(
                f"{spec}: nothing to process: no video or picture in it, or only those that "
                "another SOURCE lists"
            )
        if not dataset.is_installed():
            self.notes.append(
                "skipped the dataset of all detections: pyarrow is not installed (pip install "
                "'detect-video[batch]'); add the dataset later with --resume, or use --one-csv"
            )

    def _gather_missing(self, stop: Stop) -> None:
        """Write the partitions of items that were done while pyarrow was not installed."""
        if not dataset.is_installed() or not self.plan.skipped:
            return
        planned = {item.name for item, _ in self.plan.todo}
        done = [item.name for item in self.listing.items if item.name not in planned]
        self.outputs.gather_missing(done, stop.is_set)

    def run(self, stop: Stop) -> BatchResult:
        self.tally.start()
        self._kept = self.clock()
        try:
            while self._todo or self._running:
                if stop.is_set():
                    assert stop.exit_code is not None
                    reason = "stopped by a signal; unfinished items were dropped; continue with "
                    self._ends = Exit(code=stop.exit_code, reason=f"{reason}--resume")
                if self._ends is not None and (stop.is_set() or not self._running):
                    break
                while self._todo and self._ends is None and self.pool.has_room():
                    task = self._todo.popleft()
                    self._running[task.id] = task
                    self.pool.submit(task)
                for event in self.pool.wait(TICK_S):
                    self._take(event)
                self._look_on()
        finally:
            self._total_s = self.tally.seconds()
            states = self.pool.states()
            reports = self.pool.reports()
            self.pool.close()
            for task in self._running.values():  # unfinished tasks
                self.outputs.discard(task.name)
                if self._long.is_given_up(task):
                    pieces.drop(self.outputs.place, task.name)
            progress = self._progress(states)
            self.watch.progress(progress)
            self.manifest.write(progress)
        report = self.tally.report(reports, self.pool.cores() * self._total_s)
        if self.tally.done:
            self.manifest.write(report)
        return self._result(report)

    def _look_on(self) -> None:
        if self.clock() - self._shown < SHOWN_EVERY_S:
            return
        self._shown = self.clock()
        self.tally.cores = self.pool.cores()  # workers may come and go
        progress = self._progress(self.pool.states())
        self.watch.progress(progress)
        now = self.clock()
        if now - self._kept >= KEPT_EVERY_S:
            self._kept = now
            self.manifest.write(progress)
            self.manifest.commit()
            self.outputs.keep_home(self.request.shard)

    def _progress(self, workers: Sequence[WorkerState]) -> BatchProgress:
        self.tally.parts, self.tally.parts_done = self._long.counts()
        return self.tally.progress(workers)

    def _take(self, event: Event) -> None:
        if isinstance(event, Gone):
            self.notes.append(f"gave up on worker {event.worker}: {event.error}")
            if not self.pool.is_alive():
                self._ends = Exit(code=event.exit_code, reason=event.error)
            return
        task = event.task
        del self._running[task.id]
        if self._long.is_given_up(task):  # a part that is no longer needed
            if not any(one.name == task.name for one in self._running.values()):
                pieces.drop(self.outputs.place, task.name)
            return
        if isinstance(event, Finished):
            self._finish(task, event.record, event.wall_s)
            return
        # A worker may be lost after it placed the results. Then the item is done.
        if event.lost and (record := self._placed(task)) is not None:
            if record.parts:  # the costs of the parts are counted already
                record = replace(record, frames=0, seconds=0.0, ledger=Ledger())
            self._finish(task, record, event.wall_s)
        elif task.is_part and not event.lost and event.exit_code != EXIT_OUTPUT:
            # The file is damaged or changed. A run of the whole file may still succeed.
            self._take_back_parts(task)
            self._todo.appendleft(do_whole(task, _reason(event)))
        elif self._may_pass(event) and task.tries < MOST_TRIES:
            self._try_again(event)
        else:
            self._set_aside(event)

    @staticmethod
    def _may_pass(event: Failed) -> bool:
        """Return whether another try may succeed: a store may be unreachable for a while."""
        is_unreachable = event.exit_code == EXIT_SOURCE and is_address(event.task.path)
        return event.lost or is_unreachable or event.exit_code == EXIT_OUTPUT

    def _placed(self, task: Task) -> ItemRecord | None:
        """Return the marker of the task's item if its results are complete."""
        if task.is_part:
            return None
        record = self.outputs.read_marker(task.name)
        key = key_of(task.path, task.version, self.settings.digest)
        if record is None or record.key != key or not self.outputs.is_whole(record):
            return None
        return record

    def _finish(self, task: Task, record: ItemRecord, wall_s: float) -> None:
        self._output_errors.clear()
        self.tally.wall_s += wall_s
        if record.parts and task.piece is not None:
            self._finish_step(task, task.piece, record)
            return
        self._take_back_parts(task)  # if it was split before
        self._note_not_split(record)
        self.tally.finish(_slow(record), record.ledger, record.exit.code != EXIT_DONE)
        self.manifest.finish(record, task.tries)

    def _finish_step(self, task: Task, piece: Piece, record: ItemRecord) -> None:
        share, following = 0, []
        if piece.do == "plan":
            following = self._long.divide(task, record)
        elif piece.do == "part":
            share, following = self._long.finish_part(task, record)
        self.tally.finish_step(record, share)
        if piece.do == "join":
            self._finish_joined(task)
        # Queue a long item's tasks before shorter items. Joining its parts also frees disk space.
        self._todo.extendleft(reversed(following))

    def _finish_joined(self, task: Task) -> None:
        record = self._placed(task)
        if record is None:  # another program removed the joined results
            self._take_back_parts(task)
            self._todo.appendleft(
                do_whole(task, "its results were missing when the parts were joined")
            )
            return
        rest = self._long.finish_joined(task)
        self.tally.finish_joined(_slow(record), record.exit.code != EXIT_DONE, rest)
        self.manifest.finish(record, task.tries)

    def _take_back_parts(self, task: Task) -> None:
        known = self._long.give_up(task.name)
        if known is None:
            return
        self.tally.take_back(known.frames, known.booked)
        if task.is_part:
            self._todo = deque(one for one in self._todo if one.name != task.name)
        pieces.drop(self.outputs.place, task.name)

    def _note_not_split(self, record: ItemRecord) -> None:
        for note in record.notes:
            if note.startswith(NOT_SPLIT):
                self._not_split += 1
                if self._not_split <= MOST_NOTES:
                    self.notes.append(f"{record.name}: {note}")

    def _try_again(self, event: Failed) -> None:
        """Put the task at the queue's end: an item that crashes workers must not delay others."""
        self.outputs.discard(event.task.name)
        if event.exit_code == EXIT_OUTPUT and self._is_place_broken(event):
            return
        task = event.task
        self.tally.retried += 1
        self._todo.append(replace(task, tries=task.tries + 1))

    def _set_aside(self, event: Failed) -> None:
        if event.exit_code == EXIT_OUTPUT and self._is_place_broken(event):
            return
        task = event.task
        self._take_back_parts(task)
        # Remove earlier results: they are from another version of the source, or other settings.
        with suppress(OutputError):
            self.outputs.remove(task.name)
        with suppress(OutputError):
            self.outputs.ungather(task.name)
        item, _ = self.manifest.item(task.name)
        error = _reason(event)
        self.manifest.set_aside(task.name, error, event.exit_code, task.tries)
        self.tally.set_aside(item.size)
        failure = Failure(
            source=task.path,
            name=task.name,
            error=error,
            exit_code=event.exit_code,
            tries=task.tries,
        )
        self._append_failure(failure)
        self.watch.say(f"{task.name}: gave up after {counted(task.tries, 'try')}: {error}")
        most = self.request.most_failures
        if most is not None and self.tally.failed > most and self._ends is None:
            self._ends = Exit(
                code=EXIT_DAMAGED if self.tally.done or self.tally.skipped else event.exit_code,
                reason=f"{counted(self.tally.failed, 'item')} failed, more than "
                f"--max-failures {most}",
            )

    def _is_place_broken(self, event: Failed) -> bool:
        """Return whether several items in a row could not be written. --resume tries them again."""
        self._output_errors.append(event)
        if len({one.task.name for one in self._output_errors}) < OUTPUT_ERRORS:
            return False
        self._ends = Exit(code=EXIT_OUTPUT, reason=f"{event.error}; continue with --resume")
        return True

    def _failures_path(self) -> Path:
        return Path(self.outputs.home, named(FAILURES, ".jsonl", self.request.shard))

    def _write_failures(self, failures: Sequence[Failure]) -> None:
        write_whole(self._failures_path(), b"".join(map(_line, failures)), ours=True)

    def _append_failure(self, failure: Failure) -> None:
        try:
            with self._failures_path().open("ab", buffering=0) as file:
                file.write(_line(failure))
        except OSError as error:
            raise OutputError(
                f"{self._failures_path()}: cannot be written: {error.strerror}"
            ) from error

    def _result(self, report: BatchReport) -> BatchResult:
        failures = self.manifest.failures()
        if self._ends is None or self._ends.code not in STOPPED_CODES:
            self._write_failures(failures)
        tally, found = self.tally, Found.of(self.manifest.found())
        seconds = self._total_s
        if (more := self._not_split - MOST_NOTES) > 0:
            self.notes.append(
                f"{counted(more, 'more long file', 'was')} not split; each done.json has the reason"
            )
        return BatchResult(
            output=self.request.output,
            items=ItemCounts(
                done=tally.done,
                skipped=tally.skipped,
                failed=tally.failed,
                retried=tally.retried,
                damaged=tally.damaged,
                left=tally.left,
            ),
            failures=failures,
            seconds=seconds,
            frames=tally.frames,
            fps=tally.frames / seconds if tally.frames and seconds > 0 else None,
            workers=len(report.workers),
            exit=self._ends or exit_of(tally.done + tally.skipped, failures, len(found.damaged)),
            settings=self.settings,
            report=report,
            found=found,
            notes=[*self.settings.notes, *self.notes],
        )


def exit_of(done: int, failures: Sequence[Failure], damaged: int) -> Exit:
    if failures and not done:
        first = failures[0]
        return Exit(code=first.exit_code, reason=f"no item was done: {first.error}")
    if failures:
        return Exit(
            code=EXIT_DAMAGED, reason=f"finished, but {counted(len(failures), 'item')} failed"
        )
    if damaged:
        return Exit(
            code=EXIT_DAMAGED,
            reason=f"finished, but {counted(damaged, 'source', 'was')} read only in part",
        )
    return Exit(code=EXIT_DONE, reason="done")


def _reason(event: Failed) -> str:
    piece = event.task.piece
    if piece is None or piece.do != "part":
        return event.error
    return f"part {piece.number + 1} of {piece.of}: {event.error}"


def _slow(record: ItemRecord) -> SlowItem:
    return SlowItem(
        name=record.name,
        seconds=record.seconds,
        frames=record.frames,
        fps=record.frames / record.seconds if record.frames and record.seconds > 0 else None,
        size=record.size,
    )


def _line(failure: Failure) -> bytes:
    row = {**to_builtins(failure), "error": redact(failure.error)}
    return (json.dumps(row) + "\n").encode()
