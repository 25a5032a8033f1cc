"""Log to MLflow, on the server that MLFLOW_TRACKING_URI and related variables set."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from detector.lab.session.read import SavedSession

if TYPE_CHECKING:
    from detector.lab.report.trackers import Entries

PACKAGE = "mlflow"
REFUSED = re.compile(r"[^\w\-./ ]")  # characters that metric names must not contain


def log(session: SavedSession, entries: Entries) -> str:
    # MLflow would send usage data to its makers. It reads this variable when it is imported.
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
