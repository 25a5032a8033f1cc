"""One item, from its source to its marker. Whoever has a model open can do it: a process of the
local pool, or an actor of a cluster.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector import __version__
from detector.errors import SourceError, UsageError
from detector.jobs.batch.layout import ROWS
from detector.jobs.batch.listing import look_at
from detector.jobs.batch.places import Outputs
from detector.jobs.batch.settings import LoadedFacts, as_plain, config_of, digest_of, key_of
from detector.session.batch import ItemRecord, Ledger, StageSeconds
from detector.sources._addresses import StoredVideo, is_address
from detector.sources._storage import About

if TYPE_CHECKING:
    from detector.config.schema import Config
    from detector.run.wire import LoadedModel
    from detector.session.outcome import SourceRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """``version``: of the source when it was listed. ``tries``: this one included."""

    name: str
    path: str
    version: str
    tries: int = 1


@dataclass(slots=True)
class OpenModel:
    """A model on its engine, warm. ``digest``: of all settings that decide the results."""

    config: Config
    loaded: LoadedModel
    digest: str

    def close(self) -> None:
        self.loaded.engine.close()


def open_model(
    plain: dict[str, dict[str, Any]], pictures: Sequence[str], *, resolves: bool
) -> tuple[OpenModel, LoadedFacts]:
    """Loads the model, once for many items.

    ``plain``: the configuration. ``resolves``: it may say ``auto``; the facts tell what that means
    here. ``pictures``: sources, the first of which that opens decides the canvas where the size
    asked for is only its longest side. Raises DetectVideoError.
    """
    from detector.run.wire import PhaseTimer, first_picture_size, load_model

    start = time.perf_counter()
    config, chosen = config_of(plain), []
    loaded = load_model(
        config,
        PhaseTimer(),
        picture=first_picture_size([spec_of(path) for path in pictures], config),
        measured=resolves,
        timed=resolves,
        chosen=lambda network, settled: chosen.append(settled),
    )
    if resolves:
        config = _without_auto(chosen[0], loaded)
    network = loaded.network
    facts = LoadedFacts(
        config=as_plain(config),
        model=network.name,
        model_sha256=network.sha256,
        model_input=(network.input.height, network.input.width),
        class_names=list(network.names),
        engine_reason=loaded.engine_reason,
        notes=list(loaded.notes),
        load_s=time.perf_counter() - start,
    )
    return OpenModel(config, loaded, digest_of(facts)), facts


def _without_auto(config: Config, loaded: LoadedModel) -> Config:
    """The configuration with names and numbers for what the engine chose."""
    engine, network, runtime = loaded.engine, loaded.network, config.runtime
    size = runtime.size
    if size is not None:
        size = f"{network.input.width}x{network.input.height}"
    device = "cpu" if runtime.device == "auto" and engine.device == "cpu" else runtime.device
    return replace(
        config,
        runtime=replace(
            runtime,
            threads=engine.threads,
            concurrency=engine.concurrency,
            size=size,
            device=device,
            self_timing=False,
        ),
    )


def process_item(
    task: Task,
    model: OpenModel,
    outputs: Outputs,
    *,
    gather: Callable[[str, Path], None] | None = None,
    watch: Callable[[int], None] = lambda frames: None,
) -> ItemRecord:
    """Detects, writes, and places the results with their marker. Nothing stays of what fails.

    ``gather`` is given the name and the rows before the marker stands. ``watch`` is told how many
    frames are done. Raises DetectVideoError.
    """
    _refuse_sinks_of_files(task, model.config)
    before = look_at(task.path)
    scratch = outputs.begin(task.name)
    try:
        run = _run(task, model, scratch, watch)
        if run.error is not None:
            raise run.error
        if look_at(task.path).version != before.version:
            raise SourceError(f"{task.path}: changed while it was read; run the job again")
        record = _record(task, model, run, scratch, before)
        if gather is not None:
            gather(task.name, scratch / ROWS)
        outputs.commit(task.name, scratch, record)
    except BaseException:
        outputs.discard(task.name)
        raise
    return record


def spec_of(path: str) -> str:
    """What opens the source: an address alone would be taken for a camera's."""
    return StoredVideo(path) if is_address(path) else path


def _refuse_sinks_of_files(task: Task, config: Config) -> None:
    """Raises UsageError for outputs that hold, or point to, the source's own file."""
    from detector import sinks

    unfit = [name for name in config.output.save or () if sinks.find(name).untouched]
    if unfit and is_address(task.path):
        raise UsageError(
            f"{task.path}: --save {unfit[0]} needs a file of this machine; use --save video"
        )


def _run(task: Task, model: OpenModel, scratch: Path, watch: Callable[[int], None]) -> SourceRun:
    from detector.run.detect import run_opened

    done = 0

    def count(frame: object, detections: object) -> None:
        nonlocal done
        done += 1
        watch(done)

    run = run_opened(
        spec_of(task.path), model.config, model.loaded, scratch, plain=True, detected=count
    )
    shutil.rmtree(scratch / "session", ignore_errors=True)
    return run


def _record(
    task: Task, model: OpenModel, run: SourceRun, scratch: Path, about: About
) -> ItemRecord:
    from detector.session.outcome import exit_of

    return ItemRecord(
        name=task.name,
        path=task.path,
        size=about.size,
        version=about.version,
        settings=model.digest,
        key=key_of(task.path, about.version, model.digest),
        frames=run.written,
        detections=sum(run.by_class.values()),
        seconds=run.run_s,
        exit=exit_of([run]),
        outputs={kind: os.path.relpath(path, scratch) for kind, path in run.outputs.items()},
        notes=list(run.notes),
        ledger=_ledger(run),
        detect_video=__version__,
        finished=time.time(),
    )


def _ledger(run: SourceRun) -> Ledger:
    from detector.session.recording import record

    recording = record(run.timeline)
    waits: dict[str, float] = {}
    for thread in recording.threads.values():
        for what, nanoseconds in thread.waits.items():
            waits[what] = waits.get(what, 0.0) + nanoseconds / 1e9
    return Ledger(
        infer_s=recording.infer_ns / 1e9,
        cpu_s=run.process_cpu_s,
        stages={
            name: StageSeconds(
                calls=stage.calls, busy_s=stage.busy_ns / 1e9, cpu_s=stage.cpu_ns / 1e9
            )
            for name, stage in recording.stages.items()
        },
        waits=waits,
    )
