"""One document of a profiled session: what ``profile --json`` prints, put together from the passes."""

from __future__ import annotations

from typing import Any

from detector.session.codec import to_builtins
from detector.session.read import SavedSession


def profile_document(session: SavedSession) -> dict[str, Any]:
    """``overhead``: pass -> its time a frame over the plain run's, for those that ran the pipeline."""
    passes, document = session.passes, session.document
    what_if = passes.get("what_if", {})
    found: dict[str, Any] = {
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
            name: facts["slowdown"] for name, facts in passes.items() if "slowdown" in facts
        },
        "undisturbed": {
            name: facts["undisturbed"] for name, facts in passes.items() if "undisturbed" in facts
        },
        "not_available": {
            name: facts["reason"]
            for name, facts in passes.items()
            if not facts.get("available", True)
        },
    }
    other_names = {"frames": "slowest_frames"}  # frames are the counts of the run
    found |= {
        other_names.get(name, name): facts for name, facts in passes.items() if name != "what_if"
    }
    if roofline := found.get("roofline", {}).get("peaks"):  # by precision, as the rows name it
        found["roofline"] = found["roofline"] | {"peaks": roofline | roofline["gflops_s"]}
    return found
