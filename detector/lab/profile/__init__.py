"""The passes of ``detect-video profile``. Each is a module of this folder; they run in turn.

A module ``NAME.py`` defines ``PASS``, a ``base.Pass``. This adds ``--only NAME``, a line of help
and passes/NAME.json. ``critical_path.py`` is the shortest example. A pass imports its profiler
inside its function. The types of facts are in detector/lab/session/passes.py.

A pass runs with the engine, precision, threads, ... of the plain run, as in ``Occasion.config``.
A pass declares intended differences in ``varies``. If it has any other difference, we reject its
facts. Facts have a ``slowdown``, or ``undisturbed`` says why the pass slows nothing down.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from detector.core import sources, wings
from detector.core.config.schema import Config
from detector.core.errors import DetectVideoError, UsageError
from detector.core.errors.machine import NotHereError
from detector.core.run.detect import Hooks, detect
from detector.core.run.loading import LoadedModel
from detector.core.run.signals import raise_if_stopped
from detector.core.session.codec import parse_json, to_json
from detector.core.session.store import Session
from detector.lab.profile.base import WHAT_IF_S, Occasion, Pass, pin_choices
from detector.lab.session.passes import PassRecord, parse_pass
from detector.lab.session.read import SavedSession, read_session

Say = Callable[[str, bool], None]
"""A function that prints progress: a text, and whether a line break follows."""

__all__ = ["choose_passes", "list_passes", "open_pass", "profile", "run_passes"]

NOT_PASSES = ("batches", "memory_parts", "recorder", "stand_ins")  # modules of this folder


def list_passes() -> list[str]:
    return _in_order(_list_files())


def choose_passes(only: Sequence[str] | None, more: Sequence[str] = ()) -> list[str]:
    """Return the passes to run: ``only`` (None: all that are on by default) and ``more``."""
    files = _list_files()
    for name in only or ():
        if name not in files:
            raise UsageError(f"--only {name}: no such pass; passes are {', '.join(list_passes())}")
    names = only or [name for name in files if open_pass(name).on_request is None]
    return _in_order({*names, *more})


def open_pass(name: str) -> Pass[Any]:
    loaded: Pass[Any] = wings.load(f"{__name__}.{name}:PASS")
    return loaded


def _list_files() -> set[str]:
    return {name for name in wings.list_files(*__path__) if name not in NOT_PASSES}


def _in_order(names: set[str]) -> list[str]:
    return sorted(names, key=lambda name: (open_pass(name).order, name))


def profile(
    source: str,
    config: Config,
    *,
    only: Sequence[str] | None = None,
    more: Sequence[str] = (),
    seconds: float = WHAT_IF_S,
    sheet: tuple[float, float] | None = None,
    command: Sequence[str] = (),
    say: Say = lambda text, ends_line: None,
) -> SavedSession:
    """Run ``source`` without a profiler (the plain run), then each pass. One session stores all
    these runs and the plain run's outputs. ``seconds``: time budget of the what-if pass.
    ``sheet``: GFLOP/s and GB/s of a data sheet. Raises UsageError for an unknown pass."""
    names = choose_passes(only, more)
    if config.output.only_detections:
        raise UsageError("--only-detections: profile needs every frame of the video; omit it")
    sources.refuse_pipe(source, "each pass reads the source again")
    opened: list[LoadedModel] = []
    recorder = None
    if "moments" in names:
        from detector.lab.profile.recorder import Recorder

        recorder = Recorder()

    def note(machine: LoadedModel) -> None:
        opened.append(machine)
        if recorder is not None:
            recorder.begin()
        say("the plain run ... ", False)  # after loading: a loading error needs its own line

    hooks = Hooks(timed=True, loaded=note, detected=recorder)
    output = config.output
    if output.output is None and output.run_dir is not None:
        output = replace(output, output=f"{output.run_dir}/")  # the report links to the video
    with recorder or nullcontext():
        result = detect([source], replace(config, output=output), command=command, hooks=hooks)
    for error in result.errors:
        say("failed", True)
        raise error
    raise_if_stopped(result.exit_code)  # passes are compared only with a complete run
    assert result.session is not None
    plain = read_session(result.session)
    say(f"{plain.document.seconds['run']:.1f} s", True)
    decided = replace(opened[0].config or config, output=config.output)
    pinned = pin_choices(decided, plain.document, opened[0].engine.device)
    with Session.reopened(result.session) as session:
        occasion = Occasion(source, pinned, session, plain, seconds, sheet=sheet, recorder=recorder)
        run_passes(occasion, names, say)
    return read_session(result.session)


def run_passes(occasion: Occasion, names: Sequence[str], say: Say) -> None:
    for number, name in enumerate(names, 1):
        one = open_pass(name)
        say(f"pass {number} of {len(names)}, {name}: {one.what} ... ", False)
        start = time.perf_counter()
        record = _replace_unreadable(name, _run_pass(name, one, occasion))
        record = _add_executions(record, one, occasion)
        record = replace(record, seconds=round(time.perf_counter() - start, 3))
        occasion.records[name] = record
        occasion.session.write_pass(name, record.as_builtins())
        say(
            f"{record.seconds:.1f} s" if record.available else f"not available: {record.reason}",
            True,
        )


def _add_executions(record: PassRecord, one: Pass[Any], occasion: Occasion) -> PassRecord:
    """Add the executions to the record; if one differs by more than ``varies``, drop the facts."""
    if not record.available:
        return record
    try:
        return replace(record, ran=occasion.describe_ran(one.varies))
    except NotHereError as error:
        return PassRecord(available=False, reason=str(error))


def _replace_unreadable(name: str, record: PassRecord) -> PassRecord:
    """Replace a record that cannot be read back, so that a bad figure affects only its pass."""
    try:
        parse_pass(parse_json(to_json(record.as_builtins()), name), Path(f"{name}.json"))
    except UsageError as error:
        return PassRecord(available=False, reason=f"internal error: {error}")
    return record


def _run_pass(name: str, one: Pass[Any], occasion: Occasion) -> PassRecord:
    occasion.executions.clear()
    try:
        return PassRecord(available=True, facts=one.run(occasion), undisturbed=one.undisturbed)
    except NotHereError as error:
        reason = str(error)
    except DetectVideoError as error:
        reason = f"failed: {' '.join(str(error).split())}"
    except Exception as error:
        # A bug must not prevent the other passes. The session keeps its traceback.
        occasion.session.log_error(f"pass {name}\n{traceback.format_exc()}\n")
        reason = f"internal error, see error.log: {type(error).__name__}: {error}"
    return PassRecord(available=False, reason=reason)
