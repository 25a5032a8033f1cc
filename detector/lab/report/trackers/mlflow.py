"""MLflow: a run on the server that its environment variables name (MLFLOW_TRACKING_URI, ...)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from detector.lab.session.read import SavedSession

if TYPE_CHECKING:
    from detector.lab.report.trackers import Entries

PACKAGE = "mlflow"
REFUSED = re.compile(r"[^\w\-./ ]")  # characters that names of metrics may not have


def log(session: SavedSession, entries: Entries) -> str:
    # Else MLflow sends events to a server of its own. It reads this when it is imported.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    with mlflow.start_run(run_name=session.folder.resolve().name) as run:
        mlflow.log_params(entries.settings)
        mlflow.set_tag("verdict", entries.verdict)
        mlflow.log_metrics(
            {REFUSED.sub("_", name): value for name, value in entries.figures.items()}
        )
        for name, text in entries.tables.items():
            mlflow.log_text(text, name)
        mlflow.log_text(entries.report.decode(), "report.html")
    return f"mlflow: run {run.info.run_id} at {mlflow.get_tracking_uri()}"
