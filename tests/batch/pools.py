"""For tests of the job: a pool without processes. For tests of the local pool: a worker process
without a model."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detector.batch import pieces
from detector.batch.cluster.messages import Load
from detector.batch.documents import BatchResult, ItemRecord, Ledger, WorkerReport, WorkerState
from detector.batch.item import Task
from detector.batch.job import Request, Watch
from detector.batch.places import Outputs, open_outputs
from detector.batch.pool import Event, Failed, Finished
from detector.batch.settings import LoadedFacts, as_plain, key_of
from detector.batch.start import run_batch
from detector.core.config.schema import Config
from detector.core.run.signals import Stop
from detector.core.session.document import Exit

FACTS = LoadedFacts(
    config=as_plain(Config()),
    model="fake",
    model_sha256="a" * 64,
    model_input=(32, 32),
    class_names=["person"],
    engine_reason=None,
    notes=[],
    load_s=0.5,
)


def load_of(place: Path, **more: Any) -> Load:
    defaults: dict[str, Any] = dict(pictures=[], resolves=True, gathers=False, item_timeout=None)
    return Load(config=FACTS.config, place=str(place), **defaults, **more)


ROW = (
    '{{"source":"{path}","frame":0,"pts":0,"time_base":"1/25","time_s":0.0,"detections":'
    '[{{"class":"person","class_id":0,"score":0.5,"box":[1.0,2.0,3.0,4.0]}}]}}\n'
)


def record_of(task: Task, digest: str, frames: int = 1, code: int = 0) -> ItemRecord:
    return ItemRecord(
        name=task.name,
        path=task.path,
        size=int(task.version.split("-")[0]),
        version=task.version,
        settings=digest,
        key=key_of(task.path, task.version, digest),
        frames=frames,
        detections=1,
        seconds=0.5,
        exit=Exit(code=code, reason=""),
        outputs={"jsonl": "detections.jsonl"},
        classes={"person": 1},
        ledger=Ledger(infer_s=0.25, cpu_s=0.5),
        finished=1.0,
    )


def place_results(task: Task, outputs: Outputs, digest: str, code: int = 0) -> ItemRecord:
    scratch = outputs.begin(task.name)
    (scratch / "detections.jsonl").write_text(ROW.format(path=task.path))
    record = record_of(task, digest, code=code)
    outputs.commit(task.name, scratch, record)
    return record


PART_FRAMES = 10


def do_step(task: Task, outputs: Outputs, digest: str, parts: int) -> ItemRecord:
    """Do a worker's step of a long item, without detecting anything. ``parts``: number of parts in
    the plan, or 0 if the item is processed whole."""
    assert task.piece is not None
    record = replace(record_of(task, digest, frames=0), parts=parts)
    folder = pieces.folder_of(outputs.place, task.name, record.key)
    assert folder is not None
    if task.piece.do == "whole" or not parts:
        return place_results(task, outputs, digest)
    if task.piece.do == "plan":
        folder.mkdir(exist_ok=True)
        return record
    if task.piece.do == "part":
        done = folder / f"part-{task.piece.number}"
        if done.exists():
            return replace(record, seconds=0.0, ledger=Ledger())
        done.mkdir()
        return replace(record, frames=PART_FRAMES)
    assert sorted(path.name for path in folder.iterdir()) == [f"part-{n}" for n in range(parts)]
    scratch = outputs.begin(task.name)
    (scratch / "detections.jsonl").write_text(ROW.format(path=task.path))
    outputs.commit(task.name, scratch, replace(record, frames=parts * PART_FRAMES))
    pieces.drop(outputs.place, task.name)
    return record


class FakePool:
    """Processes an item when the job waits for events. ``answers``: called with each task; returns
    the task's final event, or None to have it processed. ``parts``: parts of a planned item."""

    def __init__(
        self,
        place: Path | str,
        answers: Callable[[Task, FakePool], Event | None] = lambda task, pool: None,
        facts: LoadedFacts = FACTS,
        workers: int = 2,
        parts: int = 3,
    ) -> None:
        self.outputs, self.parts = open_outputs(str(place)), parts
        self.answers, self.facts, self.workers = answers, facts, workers
        self.tried: list[str] = []
        self.closed = 0
        self.resolved: list[bool] = []
        self._queue: list[Task] = []
        self.digest, self.most = "", 0
        self.alive = True
        self.before: Callable[[], None] = lambda: None

    def load_first(
        self, config: dict[str, dict[str, Any]], pictures: Sequence[str], *, resolves: bool
    ) -> LoadedFacts:
        self.resolved.append(resolves)
        return LoadedFacts(**{**_fields(self.facts), "config": config})

    def start(self, config: dict[str, dict[str, Any]], digest: str, most: int) -> None:
        self.digest, self.most = digest, most

    def has_room(self) -> bool:
        return len(self._queue) < self.workers and self.alive

    def submit(self, task: Task) -> None:
        self._queue.append(task)

    def wait(self, seconds: float) -> list[Event]:
        self.before()
        if not self._queue:
            return []
        task = self._queue.pop(0)
        self.tried.append(task.label.removesuffix(", joining"))
        event = self.answers(task, self)
        if event is not None:
            return [event]
        try:
            return [Finished(task, 0, self.do(task), 0.6)]
        except FileNotFoundError:  # meanwhile the item was processed whole, which drops its parts
            return [refused(task, error="the plan of its parts is missing")]

    def do(self, task: Task) -> ItemRecord:
        if task.piece is not None:
            return do_step(task, self.outputs, self.digest, self.parts)
        return place_results(task, self.outputs, self.digest)

    def states(self) -> list[WorkerState]:
        return [WorkerState(worker=number, state="idle") for number in range(self.workers)]

    def reports(self) -> list[WorkerReport]:
        return [report_of(number) for number in range(self.workers)]

    def is_alive(self) -> bool:
        return self.alive

    def cores(self) -> float:
        return 2.0

    def close(self) -> None:
        self.closed += 1


def report_of(
    number: int = 0, load_s: float = 0.5, busy_s: float = 2.0, idle_s: float = 0.5
) -> WorkerReport:
    counts = {"starts": 1, "items": 1, "frames": 1}
    return WorkerReport(
        worker=number, **counts, load_s=load_s, busy_s=busy_s, idle_s=idle_s, cores=1.0
    )


def run_fake_job(
    request: Request,
    answers: Callable[[Task, FakePool], Event | None],
    watch: Watch | None = None,
    before: Callable[[Stop, FakePool], None] | None = None,
    **options: Any,
) -> tuple[BatchResult, FakePool]:
    """Run a job on a FakePool with ``options``. ``before``: called before each wait for events."""
    pools = []

    def make_pool(folder: str, stop: Stop) -> FakePool:
        pools.append(FakePool(request.output, answers, **options))
        if before is not None:
            pools[0].before = lambda: before(stop, pools[0])
        return pools[0]

    return run_batch(request, watch or Watch(), make_pool=make_pool), pools[0]


def _fields(facts: LoadedFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in LoadedFacts.__dataclass_fields__}


def lost(task: Task, error: str = "crashed") -> Failed:
    return Failed(task, 0, error, 5, True, 0.1)


def refused(task: Task, code: int = 3, error: str = "no frame could be read") -> Failed:
    return Failed(task, 0, error, code, False, 0.1)


def make_sources(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(name) * 10)
    return folder


def list_files(folder: str | Path) -> list[str]:
    """Return the paths of all files below the folder, relative to it and sorted."""
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    )


# Code of a worker process. A word in an item's name decides how the process treats the item.
WORKER = textwrap.dedent(
    """
    import json, os, signal, sys, time
    sys.path.insert(0, ROOT)
    from detector.core.run.child import open_pipe
    parent = open_pipe(PIPE)
    def say(**answer):
        parent.send_bytes(json.dumps(answer).encode())
    def orders():
        try:
            while True:
                yield json.loads(parent.recv_bytes())
        except EOFError:
            pass
    if os.path.exists(FLAG + ".dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    for order in orders():
        if order["do"] == "close":
            break
        if order["do"] == "open":
            facts = {**FACTS, "config": order["opening"]["config"]}
            if os.path.exists(FLAG + ".other"):
                facts["model_sha256"] = "b" * 64
            say(kind="loaded", facts=facts)
            continue
        name = order["task"]["name"]
        if "crash" in name:
            print("my last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if "quit" in name:
            sys.exit(9)
        if "hang" in name:
            say(kind="frames", frames=3)
            time.sleep(1000)
        if "engine" in name:
            say(kind="error", error="the engine failed", exit_code=5, broken=True)
            continue
        if "empty" in name:
            say(kind="error", error="no frame could be read", exit_code=3, broken=False)
            continue
        say(kind="frames", frames=1)
        from tests.batch.pools import place_results
        from detector.batch.item import Task
        from detector.batch.places import open_outputs
        from detector.batch.settings import LoadedFacts, digest_of
        from detector.core.session.codec import to_builtins
        task = Task(**order["task"])
        record = place_results(task, open_outputs(PLACE), digest_of(LoadedFacts(**facts)))
        say(kind="record", record=to_builtins(record))
    """
)


def worker_command(place: Path, flag: Path) -> Callable[[Path, Sequence[int], int], list[str]]:
    """Return a replacement for ``local._command_line`` that starts the fake worker. The worker dies
    at once if FLAG.dies exists, and reports another model if FLAG.other exists."""
    import sys

    from detector.core.run.parent import ROOT

    def command(shared: Path, cores: Sequence[int], pipe: int) -> list[str]:
        values = {
            "ROOT": ROOT,
            "FACTS": {**_fields(FACTS)},
            "PLACE": str(place),
            "FLAG": str(flag),
            "PIPE": pipe,
        }
        head = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        return [sys.executable, "-P", "-c", head + WORKER]

    return command
