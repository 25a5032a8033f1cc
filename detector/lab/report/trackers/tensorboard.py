"""Log to a TensorBoard event file in the session: ``tensorboard --logdir runs`` shows all runs.

tensorboard's own writer needs neither torch nor tensorflow. Figures are scalars of step 0.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from detector.core.errors.text import from_cell
from detector.core.session.store import add_to_session, list_in_session, remove_from_session
from detector.lab.session.read import SavedSession

if TYPE_CHECKING:
    from detector.lab.report.trackers import Entries

PACKAGE = "tensorboard"
FOLDER = "tensorboard"  # in the session


def log(session: SavedSession, entries: Entries) -> str:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = session.folder / FOLDER
    # TensorBoard would mix the event files of a session that is logged again.
    remove_from_session(session.folder, FOLDER)
    values = [
        Summary.Value(tag=name, simple_value=value) for name, value in entries.figures.items()
    ]
    values += [_text(name, text) for name, text in list_texts(entries)]
    when = session.document.clocks.unix_ns / 1e9
    before = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    writer = EventFileWriter(str(folder))
    try:
        writer.add_event(Event(wall_time=when, step=0, summary=Summary(value=values)))
    finally:
        writer.close()
    new_files = [f"{FOLDER}/{path.name}" for path in folder.iterdir() if path.name not in before]
    list_in_session(session.folder, new_files)
    add_to_session(session.folder, f"{FOLDER}/report.html", entries.report)
    return f"tensorboard: {folder} (tensorboard --logdir {session.folder.parent})"


def list_texts(entries: Entries) -> Iterable[tuple[str, str]]:
    yield ("verdict", f"{entries.verdict}\n\nFull report: report.html, next to this event file.")
    yield "settings", _markdown([("setting", "value"), *entries.settings.items()])
    for name, text in entries.tables.items():
        rows = [[from_cell(one) for one in row] for row in csv.reader(io.StringIO(text))]
        yield name.removesuffix(".csv"), _markdown(rows)


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
