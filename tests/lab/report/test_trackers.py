"""--log-to: what is logged to an experiment tracker.

MLflow is checked with a fake that records calls and, if installed, with the real one; TensorBoard
with its own reader.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner

from detector.core.errors import OutputError, UsageError
from detector.core.session.codec import to_builtins
from detector.core.session.document import Verdict
from detector.lab.report.trackers import check_installed, collect_entries, log_session
from detector.lab.session.read import read_session
from detector.lab.trackers import TRACKERS
from tests.cli.command import detect_video
from tests.conftest import CHECKOUT
from tests.lab.report.sessions import ran, with_passes


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    return read_session(with_passes(ran(tmp_path_factory.mktemp("tracked"))))


@pytest.mark.slow
def test_odd_names_are_escaped_for_trackers(session):
    """Protobuf refuses invalid UTF-8, and trackers display names."""
    odd_name = "\udc80\x1b[31m\u202e"
    document = replace(
        session.document, model=odd_name, verdict=Verdict(bottleneck=None, sentence=odd_name)
    )
    entries = collect_entries(replace(session, document=document))
    assert entries.settings["model"] == entries.verdict == "\\udc80\\x1b[31m\\u202e"


class FakeMlflow(ModuleType):
    """Records what is logged, and refuses what MLflow refuses."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.metrics, self.params, self.tags, self.texts, self.open = {}, {}, {}, {}, None

    @contextmanager
    def start_run(self, run_name=None):
        self.open = run_name
        yield SimpleNamespace(info=SimpleNamespace(run_id="7f"))
        self.open = None

    def log_metrics(self, metrics):
        assert self.open
        for name, value in metrics.items():
            assert isinstance(value, float)
            if not re.fullmatch(r"[\w\-. /]+", name):
                raise ValueError(f"Invalid metric name: {name!r}")
        self.metrics |= metrics

    def log_params(self, params):
        assert self.open
        self.params |= params

    def set_tag(self, name, value):
        self.tags[name] = value

    def log_text(self, text, artifact_file):
        assert isinstance(text, str)
        self.texts[artifact_file] = text

    def get_tracking_uri(self):
        return "http://mlflow"


@pytest.mark.slow
def test_mlflow_receives_settings_figures_tables_and_report(session, monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert log_session("mlflow", session).endswith(" 7f at http://mlflow")
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert fake.open is None
    assert fake.metrics["fps/end_to_end"] == session.document.fps.end_to_end
    assert fake.metrics["what_if_fps/infer free"] == 61.5
    assert fake.metrics["layers/forward_ms"] == 13.2
    assert fake.metrics["memory/peak_mb"] == 261.5
    assert (fake.params["engine"], fake.params["model_input"]) == ("null", "608x352")
    assert fake.tags["verdict"] == session.document.verdict.sentence
    assert set(fake.texts) == {"steps_timer.csv", "layer_timer.csv", "energy.csv", "report.html"}
    assert fake.texts["report.html"].startswith("<!doctype html>")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what MLflow asks of SQLAlchemy
def test_real_mlflow_accepts_the_session(session, monkeypatch, tmp_path):
    """Use mlflow-skinny with its SQLite store; scripts/bounds_check uses the full package."""
    mlflow = pytest.importorskip("mlflow", reason="machine: mlflow is not installed")
    monkeypatch.chdir(tmp_path)
    # Use the default store: files in 2.17, and SQLite in 3.17, which refuses files.
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    reply = log_session("mlflow", session)
    number = re.fullmatch(r"mlflow: run (\w+) at \S+", reply)[1]
    client = mlflow.MlflowClient()
    logged, entries = client.get_run(number).data, collect_entries(session)
    assert logged.params == entries.settings
    assert logged.tags["verdict"] == entries.verdict
    assert sorted(logged.metrics.values()) == sorted(entries.figures.values())
    assert {one.path for one in client.list_artifacts(number)} == {*entries.tables, "report.html"}


def test_error_of_a_tracker_is_one_line(session, monkeypatch):
    fake = FakeMlflow()
    fake.start_run = lambda run_name: (_ for _ in ()).throw(
        ConnectionError("no server\nat http://mlflow")
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    with pytest.raises(OutputError, match=r"--log-to mlflow: .*http:"):
        log_session("mlflow", session)


@pytest.mark.parametrize("name", TRACKERS)
def test_missing_tracker_library_names_the_install_command(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        UsageError, match=rf"--log-to {name}: .*pip install 'detect-video\[{name}\]'"
    ):
        check_installed(name)


@pytest.mark.slow
def test_missing_tracker_is_refused_before_the_profile(tmp_path):
    hidden = tmp_path / "hidden/mlflow"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('no mlflow here')")
    done = detect_video(
        "profile",
        CHECKOUT / "videos/street.mp4",
        "--log-to",
        "mlflow",
        cwd=tmp_path,
        env={"PYTHONPATH": f"{hidden.parent}:{CHECKOUT}"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "no mlflow here" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hidden"]


@pytest.mark.slow
def test_tensorboard_log_is_read_back(session):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="machine: tensorboard is not installed",
    )
    for _ in range(2):  # the second log replaces the first
        reply = log_session("tensorboard", session)
    folder = session.folder / "tensorboard"
    assert str(folder) in reply
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    figures = collect_entries(session).figures
    assert set(events.Tags()["scalars"]) == set(figures)
    for name, value in figures.items():
        (scalar,) = events.Scalars(name)
        assert scalar.value == pytest.approx(value, rel=1e-6)
    tensors = "verdict settings steps_timer layer_timer energy"
    assert set(events.Tags()["tensors"]) == set(tensors.split())
    (steps,) = events.Tensors("steps_timer")
    lines = steps.tensor_proto.string_val[0].decode().splitlines()
    assert lines[0].startswith("| step | total_ms | count |")
    assert any(line.startswith("| infer |") for line in lines)
    assert (folder / "report.html").read_bytes().startswith(b"<!doctype html>")


@pytest.mark.slow
def test_report_logs_and_keeps_stdout_for_the_document(session, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="machine: tensorboard is not installed")
    done = detect_video(
        "report", session.folder, *"--format json -o - --log-to tensorboard".split(), cwd=tmp_path
    )
    assert json.loads(done.stdout)["fps"] == to_builtins(session.document.fps)
    assert done.stderr.startswith("tensorboard: ")


def test_every_tracker_has_a_module_and_an_extra():
    modules = {path.stem for path in (CHECKOUT / "detector/lab/report/trackers").glob("*.py")} - {
        "__init__"
    }
    assert set(TRACKERS) == modules
    assert all(f'"{name}": ["{name}>=' in (CHECKOUT / "setup.py").read_text() for name in TRACKERS)


def test_report_without_a_name_uses_the_last_run(tmp_path, monkeypatch):
    """Sessions of one source are in runs/in, runs/in-2 and, with --engine, runs/in-ENGINE."""
    from detector.lab.commands import report

    monkeypatch.chdir(tmp_path)
    folders = []

    def read(folder):
        folders.append(folder)
        raise UsageError("seen")

    monkeypatch.setattr("detector.lab.session.read.read_session", read)
    for at, name in enumerate(("in-null", "in-2", "in")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "session.json").write_text("{}")
        os.utime(tmp_path / "runs" / name / "session.json", (1000 + at, 1000 + at))
        assert CliRunner().invoke(report.command, []).exit_code == 2
        assert folders.pop() == str(Path("runs", name))
    assert not folders
