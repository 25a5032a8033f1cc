"""If an engine fails and cannot be closed, the run reports the first error and keeps its rows."""

import pytest

from detector.core.config.levels import resolve_config
from detector.core.engines import null
from detector.core.errors import EXIT_ENGINE, EngineError
from detector.core.run.detect import detect
from detector.lab.session.read import read_session
from tests.conftest import CHECKOUT

STREET = CHECKOUT / "videos/street.mp4"


def run(place, frames=5):
    flags = {"engine": "null", "frames": frames, "no_video": True, "sync": True}
    where = {"output": f"{place}/out/", "run_dir": f"{place}/run"}
    return detect([str(STREET)], resolve_config(None, {**flags, **where}))


@pytest.fixture
def failing_close(monkeypatch):
    def close(self):
        if not hasattr(self, "closed"):
            self.closed = True
            raise EngineError("engine null: failed to free the GPU's memory: cudaFree")

    monkeypatch.setattr(null.NullEngine, "close", close)


@pytest.mark.usefixtures("failing_close")
def test_error_of_the_run_wins_over_the_error_on_close(tmp_path, monkeypatch):
    infer, done = null.NullRequest.infer, []

    def failing(self, n):
        done.append(n)
        if len(done) == 4:
            raise EngineError("illegal address")
        return infer(self, n)

    monkeypatch.setattr(null.NullRequest, "infer", failing)
    result = run(tmp_path)
    assert [str(error) for error in result.errors] == ["illegal address"]
    assert result.exit_code == EXIT_ENGINE
    session = read_session(tmp_path / "run")
    assert session.document.exit.reason == str(result.errors[0])
    assert session.document.frames.written == 2  # of five frames, after one warm-up call
    assert any("cudaFree" in note for note in session.document.notes)


@pytest.mark.slow
@pytest.mark.usefixtures("failing_close")
def test_error_on_close_is_reported_and_the_session_kept(tmp_path):
    result = run(tmp_path)
    assert ["cudaFree" in str(error) for error in result.errors] == [True]
    assert result.exit_code == EXIT_ENGINE
    assert read_session(tmp_path / "run").document.frames.written == 5
