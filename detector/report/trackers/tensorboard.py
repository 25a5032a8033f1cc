"""TensorBoard: an event file in the session (RUN/tensorboard), so that ``tensorboard --logdir runs`` shows every run.

Written by tensorboard's own writer; neither torch nor tensorflow is needed. Figures are scalars of step 0, tables and
settings are texts; the report lies beside the event file, and its text says so.
"""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from detector.session.read import SavedSession

if TYPE_CHECKING:
    from detector.report.trackers import Entries

PACKAGE = "tensorboard"


def log(session: SavedSession, entries: Entries) -> str:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = session.folder / "tensorboard"
    shutil.rmtree(
        folder, ignore_errors=True
    )  # logged again: one event file, not two that are mixed
    values = [
        Summary.Value(tag=name, simple_value=value) for name, value in entries.figures.items()
    ]
    values += [_text(name, text) for name, text in texts(entries)]
    when = session.document.clocks.unix_ns / 1e9
    writer = EventFileWriter(str(folder))
    try:
        writer.add_event(Event(wall_time=when, step=0, summary=Summary(value=values)))
    finally:
        writer.close()
    (folder / "report.html").write_bytes(entries.report)
    return f"tensorboard: {folder} (tensorboard --logdir {session.folder.parent})"


def texts(entries: Entries) -> Iterable[tuple[str, str]]:
    """(tag, Markdown)."""
    yield "verdict", f"{entries.verdict}\n\nThe whole report: report.html, beside this event file."
    yield "settings", _markdown([("setting", "value"), *entries.settings.items()])
    for name, text in entries.tables.items():
        yield name.removesuffix(".csv"), _markdown(list(csv.reader(io.StringIO(text))))


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(value.replace("|", "\\|") for value in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def _text(name: str, text: str) -> Any:
    import numpy as np
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    tensor = make_tensor_proto(np.array([text], dtype=object))
    return Summary.Value(tag=name, metadata=create_summary_metadata(name, ""), tensor=tensor)
