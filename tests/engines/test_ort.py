"""What only ONNX Runtime's engine promises."""

from __future__ import annotations

import pytest

from detector import engines
from detector.artefacts import export
from detector.engines.base import EngineOptions
from detector.errors import EngineError
from tests.known_answers import plus_one


def test_it_loads_the_exported_file_and_says_when_that_is_damaged(tmp_path):
    network = plus_one()
    artefact = export(network, tmp_path)
    engines.open("ort", network).close()
    with open(artefact.path, "r+b") as file:
        file.truncate(100)
    with pytest.raises(EngineError, match="engine ort: failed to load the graph: "):
        engines.open("ort", network)


def test_it_writes_nothing_on_stdout_or_stderr(capfd):
    network = plus_one()
    with engines.open("ort", network) as engine:
        engine.requests[0].infer(1)
    network.graph.graph.node[2].op_type = "NoSuchOperator"
    with pytest.raises(EngineError):
        engines.open("ort", network)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_threads_are_what_was_asked_for():
    with engines.open("ort", plus_one(), EngineOptions(threads=1)) as engine:
        assert engine.threads == 1
