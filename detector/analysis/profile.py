"""The document that ``profile --json`` prints, put together from the records of the passes."""

from __future__ import annotations

from typing import Any

from detector.session.codec import to_builtins
from detector.session.passes import WhatIfFacts
from detector.session.read import SavedSession

OTHER_NAMES = {"frames": "slowest_frames"}  # "frames" are the counts of the run


def profile_document(session: SavedSession) -> dict[str, Any]:
    """Facts of the run, then those of each pass by its name. ``overhead``: pass -> its time a frame
    over the plain run's, for passes that ran the pipeline."""
    passes, document = session.passes, session.document
    what_if = to_builtins(session.facts(WhatIfFacts)) or {}
    whole: dict[str, Any] = {
        "schema": document.schema,
        "session": str(session.folder),
        "model": document.model,
        "engine": document.engine,
        "precision": document.precision,
        "frames": to_builtins(document.frames),
        "fps": to_builtins(document.fps),
        "verdict": to_builtins(document.verdict),
        "what_if": what_if.get("predictions", []),
        "what_if_replay_error": what_if.get("replay_error"),
        "what_if_proofs": what_if.get("proofs", []),
        "what_if_doubts": what_if.get("doubts", []),
        "overhead": {
            name: record.slowdown for name, record in passes.items() if record.slowdown is not None
        },
        "undisturbed": {
            name: record.undisturbed
            for name, record in passes.items()
            if record.undisturbed is not None
        },
        "not_available": {
            name: record.reason for name, record in passes.items() if not record.available
        },
    }
    for name, record in passes.items():
        if name != "what_if":
            whole[OTHER_NAMES.get(name, name)] = record.as_builtins()
    roofline = whole.get("roofline", {})
    if "peaks" in roofline:  # by precision too, as the rows name it
        roofline["peaks"] |= roofline["peaks"]["gflops_s"]
    return whole
