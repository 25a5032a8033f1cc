"""An engine is one file with a class. Other modules use only this class."""

import json
import subprocess
import sys

import pytest

from detector.core import engines
from detector.core.engines._built.building import export
from detector.core.engines.base import PRECISIONS, Engine
from detector.core.errors import EngineError
from tests.cli.command import detect_video_anew
from tests.conftest import CHECKOUT
from tests.known_answers import plus_one
from tests.networks import need_engine
from tests.outside_engines import with_engines
from tests.sources.clips import write_video


@pytest.mark.parametrize("name", engines.names())
def test_engine_class_can_be_read_without_its_library(name):
    engine = engines.find(name)
    assert issubclass(engine, Engine)
    assert engine.name == name
    assert (engine.library is None) == (engine.install == "")
    assert list(engine.precisions) == [name for name in PRECISIONS if name in engine.precisions]
    assert set(engine.auto_in) <= set(engine.precisions) - {"fp32"}
    assert set(engine.precisions.values()) <= {"fp32", "fp16", "bf16", "int8-u8", "int8-s8"}
    assert set(engine.devices) <= {"cpu", "cuda", "gpu", "npu"}
    assert all(suffix.startswith(".") for suffix in engine.model_suffixes)
    assert bool(engine.model_suffixes) == bool(engine.model_front_end)
    # A run with another engine reads these attributes from the source text, without an import.
    for attribute in ("library", "auto", "gain", "model_suffixes", "model_front_end"):
        literal = engines.read_attribute(name, attribute)
        assert (literal or getattr(Engine, attribute)) == getattr(engine, attribute)


@pytest.mark.parametrize("name", ["openvino", "ort"])
def test_unloadable_graph_raises_an_error_of_one_line(tmp_path, capfd, name):
    need_engine(name)
    network, damaged = plus_one(), plus_one()
    with engines.open(name, network) as engine:
        engine.requests[0].infer(1)
        assert engine.execution()
    network.graph.graph.node[2].op_type = "NoSuchOperator"
    with pytest.raises(EngineError):
        engines.open(name, network)
    assert capfd.readouterr() == ("", "")
    with open(export(damaged, tmp_path).path, "r+b") as file:
        file.truncate(100)
    with pytest.raises(EngineError, match=f"{name}: failed to load") as caught:
        engines.open(name, damaged)
    assert "\n" not in str(caught.value)


def test_file_without_its_own_engine_class_raises(tmp_path, monkeypatch):
    """Engines are listed by file name, without reading the files."""
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    (tmp_path / "_shared.py").write_text("")
    text = "from detector.core.engines.null import NullEngine\n"
    (tmp_path / "borrowing.py").write_text(text)
    (tmp_path / "lending.py").write_text(f"{text}class Mine(NullEngine):\n    name = 'lending'\n")
    assert "_shared" not in engines.names()
    assert "borrowing" in engines.names()
    with pytest.raises(EngineError, match=r"borrowing\.py: .*'bor"):
        engines.find("borrowing")
    assert engines.find("lending").__name__ == "Mine"


ASKING = """
import sys
from detector.core import engines, models
from detector.core.engines import _ranking
engines.names(), engines.libraries(), engines.front_ends(), engines.only_engine("in.onnx")
print(*[name for name in sys.modules if "detector.core.engines." in name])
_ranking.choose_by_rank("fp32", "cpu")
print(*[name for name in sys.modules if "detector.core.engines." in name])
engines.why_unusable(), models.front_ends()
print(*{"torch", "onnx", "onnxruntime", "cv2", "yaml"} & {*sys.modules})
"""


@pytest.mark.slow
def test_choosing_an_engine_imports_little_of_other_engines():
    """``auto`` loads its choice, the declarations of engines that it ranks higher, and the check
    for an NVIDIA driver. Listing engines imports no engine."""
    done = subprocess.run(
        [sys.executable, "-c", ASKING], check=True, capture_output=True, text=True, cwd=CHECKOUT
    )
    listed, asked, heavy = (line.split() for line in done.stdout.splitlines())
    place = "detector.core.engines."
    assert not {place + name for name in engines.names()} & set(listed)
    loaded = {name.removeprefix(place) for name in asked}
    of_trt = {"trt", "trt.driver", "trt.abilities"}  # abilities only if there is a driver
    assert ("trt" in loaded, heavy) == (True, [])
    assert loaded - {"_ranking", "base", "ort", "ort.abilities"} <= of_trt


@pytest.mark.slow
def test_new_file_becomes_an_engine(tmp_path):
    """The help, ``doctor``, errors and conformance tests know the engine without any other edit."""
    env = with_engines(tmp_path, "newcomer")
    help_text = " ".join(
        detect_video_anew("detect", "--help", cwd=tmp_path, env=env).stdout.split()
    )
    assert "auto, newcomer, null" in help_text
    doctor = detect_video_anew("doctor", "--quick", "--json", cwd=tmp_path, env=env)
    listed = {engine["name"]: engine for engine in json.loads(doctor.stdout)["engines"]}
    assert set(listed) == {*engines.names(), "newcomer"}
    assert listed["newcomer"]["install"] == "pip install an-absent-library"
    assert "an_absent_library" in listed["newcomer"]["reason"]
    write_video(tmp_path / "in.mp4", 3)
    process = detect_video_anew("in.mp4", "--engine", "newcomer", cwd=tmp_path, env=env)
    assert process.returncode == 5
    assert "pip install an-absent-library" in process.stderr
    collected = subprocess.run(
        [sys.executable, *"-m pytest --collect-only -q tests/conformance/test_engines.py".split()],
        cwd=CHECKOUT,
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
    ).stdout
    assert "test_full_and_partial_batches_give_the_known_answers[newcomer-fp32-1]" in collected
    assert "test_close_may_repeat_and_infer_after_close_raises[newcomer]" in collected
