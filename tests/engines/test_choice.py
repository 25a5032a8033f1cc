"""Which engines there are, and what ``--engine auto`` takes."""

from __future__ import annotations

import pytest

from detector import engines
from detector.engines.base import EngineOptions, cpu_threads, translated
from detector.errors import EngineError, ModelError


def installed(monkeypatch, *libraries: str) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda library: object() if library in libraries else None)


def test_the_folder_lists_the_engines_and_not_their_parts():
    assert engines.names() == ["null", "ort", "torch", "trt"]


@pytest.mark.parametrize(
    ("libraries", "name", "sentence"),
    [
        (("onnxruntime", "torch"), "ort", "engine ort: onnxruntime is installed, the first choice on a CPU"),
        (("onnxruntime",), "ort", "engine ort: onnxruntime is installed, the first choice on a CPU"),
        (("torch",), "torch", "engine torch: torch is installed (onnxruntime not installed)"),
    ],
)
def test_auto_takes_what_is_installed_and_says_why(monkeypatch, libraries, name, sentence):
    installed(monkeypatch, *libraries)
    assert engines.choose() == (name, sentence)


def test_auto_without_any_library_says_what_to_install_and_never_takes_null(monkeypatch):
    installed(monkeypatch)
    with pytest.raises(
        EngineError, match=r"install one: pip install onnxruntime or pip install 'detect-video\[torch\]'"
    ):
        engines.choose()
    assert engines.usable()["null"] is None


def test_threads_are_shared_out_among_the_requests_that_run_at_once(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert cpu_threads(EngineOptions()) == 8
    assert cpu_threads(EngineOptions(concurrency=2)) == 4
    assert cpu_threads(EngineOptions(concurrency=20)) == 1
    assert cpu_threads(EngineOptions(concurrency=2, threads=3)) == 3


def test_foreign_exceptions_become_one_line_and_ours_pass():
    with pytest.raises(EngineError, match=r"^engine x: failed to run: a b$") as caught, translated("x", "run"):
        raise RuntimeError("a\n  b\n")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(ModelError, match=r"^ours$"), translated("x", "run"):
        raise ModelError("ours")
