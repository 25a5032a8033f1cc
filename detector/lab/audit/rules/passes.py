"""Passes of ``profile`` that measured something other than the session's own run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from detector.lab.audit.rule import Hit, rule
from detector.lab.session.passes import PINNED, Execution
from detector.lab.session.read import SavedSession


@rule(
    "error",
    "a pass's figures come from another run",
    "profile again, and do not move files between sessions",
    over="session",
)
def pass_of_another_run(session: SavedSession) -> Iterator[Hit]:
    run = Execution.of(session.document)
    for name, record in session.passes.items():
        if record.ran is not None and (
            differences := _describe_differences(run, record.ran.execution)
        ):
            yield Hit(f"passes/{name}.json comes from a run with {differences}")


@rule(
    "error",
    "a pass measured another engine, precision, thread count, batch or size than the run",
    "ignore that pass's figures and report a bug: a pass must use the run's settings",
    over="session",
)
def pass_ran_another_thing(session: SavedSession) -> Iterator[Hit]:
    run = Execution.of(session.document)
    for name, record in session.passes.items():
        if record.ran is None:
            continue
        for execution in record.ran.measured:
            if differences := _describe_differences(run, execution, but=record.ran.on_purpose):
                yield Hit(f"the pass {name} ran with {differences}")


def _describe_differences(run: Execution, other: Execution, but: Iterable[str] = ()) -> str:
    """Return text such as "precision fp32 (the run: int8)"."""
    return ", ".join(
        f"{name} {getattr(other, name)} (the run: {getattr(run, name)})"
        for name in run.differs_in(other)
        if name in PINNED and name not in but
    )
