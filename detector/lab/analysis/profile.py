"""Make the document of ``profile --json`` from the records of the passes."""

from __future__ import annotations

from detector.core.session.measured import Interval
from detector.lab.analysis.loop.activities import frame_times_ms, percentiles
from detector.lab.session.profile import ProfileDocument
from detector.lab.session.read import SavedSession


def describe_cost(cost: Interval) -> str:
    between = f"between {cost.low:+.1%} and {cost.high:+.1%} of a frame's time"
    if cost.high < 0:
        reason = "the machine was so busy that the computed cost is below zero"
        return f"not measured: {reason} ({between})"
    if cost.low <= 0:
        return f"below the noise of the rounds ({between})"
    return f"{cost.median:.1%} of a frame's time ({between})"


def profile_document(session: SavedSession) -> ProfileDocument:
    passes, document = session.passes, session.document
    return ProfileDocument(
        session=str(session.folder),
        model=document.model,
        engine=document.engine,
        precision=document.precision,
        frames=document.frames,
        fps=document.fps,
        verdict=document.verdict,
        stages=document.stages,
        threads=document.threads,
        latency_ms=percentiles(frame_times_ms(session.spans)),
        overhead={
            name: record.slowdown for name, record in passes.items() if record.slowdown is not None
        },
        undisturbed={
            name: record.undisturbed
            for name, record in passes.items()
            if record.undisturbed is not None
        },
        not_available={
            name: record.reason for name, record in passes.items() if not record.available
        },
        ran={name: record.ran.text for name, record in passes.items() if record.ran is not None},
        passes=passes,
    )
