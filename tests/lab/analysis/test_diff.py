"""A run is slower than another if the difference exceeds the noise. The run is a regression if the
difference also exceeds the limit."""

import numpy as np
import pytest

from detector.lab.analysis.diff import END_TO_END, INCOMPARABLE, change, diff, list_differences
from detector.lab.session.read import SavedSession, read_session
from detector.lab.terminal.diff import CHANGES
from tests.lab.report.sessions import ran
from tests.session.documents import document


def samples(mean: float, noise: float, seed: int) -> np.ndarray:
    return mean + noise * np.random.default_rng(seed).standard_normal(400)


@pytest.mark.parametrize(
    ("after", "noise", "verdict", "fails"),
    [
        (10.0, 0.5, "no difference beyond the noise", False),
        (11.0, 9.0, "no difference beyond the noise", False),  # within the noise
        (11.0, 0.5, "slower", True),
        (10.4, 0.5, "slower", False),  # significant, but within the limit of 5%
        (9.0, 0.5, "faster", False),
    ],
)
def test_verdict_of_two_runs(after, noise, verdict, fails):
    result = change("x", samples(10.0, noise, 1), samples(after, noise, 2))
    assert result.verdict == verdict
    assert result.regresses(0.05) is fails
    assert result.low <= result.ratio <= result.high
    assert result.largest == max(1 - result.low, result.high - 1)


def test_runs_whose_times_vary_much_cannot_be_compared():
    times = np.repeat([1.0, 40.0], 200)
    wide = change("x", times, times)
    assert (wide.verdict, CHANGES[-3].of(wide)) == (INCOMPARABLE, INCOMPARABLE)


def test_changed_settings_libraries_and_models_are_listed(tmp_path):
    about = {
        "model": "street",
        "model_sha256": "a",
        "config": {"selection": {"conf": 0.25}, "output": {"crf": 23}},
        "environment": {"cpu": {"model": "x", "cores": 2}, "libraries": {"onnxruntime": "1.31.1"}},
    }
    other = about | {
        "model_sha256": "b",
        "config": {"selection": {"conf": 1.0}, "output": {"crf": 23, "output": "elsewhere/"}},
        "environment": {
            "cpu": {"model": "x", "cores": 4},
            "libraries": {"onnxruntime": "1.32.0", "torch": "2.13.0"},
        },
    }
    one, two = (SavedSession(tmp_path, document(**each), {}) for each in (about, other))
    assert list_differences(one, one) == []
    *named, models = list_differences(one, two)
    options = ["conf: 0.25 -> 1.0", "cores: 2 -> 4"]
    assert named == [*options, "onnxruntime: 1.31.1 -> 1.32.0", "torch: - -> 2.13.0"]
    assert "model files" in models


@pytest.mark.slow
def test_few_frames_give_no_differences(tmp_path):
    assert diff(*[read_session(ran(tmp_path / "three", frames=3))] * 2) == []
    assert diff(*[read_session(ran(tmp_path / "six", frames=6))] * 2)[0].what == END_TO_END
