"""The list of front ends, and their options. Only the front end in use is imported."""

import importlib
import subprocess
import sys

import pytest

from detector.core import engines, models
from detector.core.errors import ModelError, UsageError
from detector.core.models import formats
from detector.core.models.base import FrontEnd
from tests.models.test_open_network import write_cfg
from tests.networks import open_network

NEW_FAMILY = '''
from dataclasses import replace

from detector.core.models.base import FrontEnd
from detector.core.models.formats.darknet import read as read_cfg

SUFFIXES = (".layers", ".lyr")


def read(request):
    """A darknet cfg by another name."""
    return replace(read_cfg(request), family=f"layers {request.family}")


FRONT_END = FrontEnd(read, families=("a", "b"), takes_random_weights=True)
'''


@pytest.fixture
def dropped_in(tmp_path, monkeypatch):
    folder = tmp_path / "formats"
    folder.mkdir()
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(folder)])
    models.front_ends.cache_clear()
    yield folder
    models.front_ends.cache_clear()
    sys.modules.pop("detector.core.models.formats.new", None)


def test_new_file_adds_a_family(dropped_in, tmp_path):
    (dropped_in / "new.py").write_text(NEW_FAMILY)
    path = tmp_path / "t.lyr"
    path.write_bytes((tmp_path / write_cfg(tmp_path)).read_bytes())
    assert open_network(str(path), random_seed=1, family="b").family == "layers b"
    with pytest.raises(UsageError, match=r"--family c.* a, b"):
        open_network(str(path), random_seed=1, family="c")
    with pytest.raises(UsageError, match=r"--weights .*t\.lyr"):
        open_network(str(path), weights="x")
    with pytest.raises(ModelError, match=r"\.layers, \.lyr"):  # the message lists all suffixes
        open_network(str(tmp_path))


@pytest.mark.parametrize(
    ("suffix", "module"), sorted({**models.front_ends(), **engines.front_ends()}.items())
)
def test_every_listed_module_has_a_front_end_for_its_suffix(suffix, module):
    imported = importlib.import_module(module)
    if suffix in models.front_ends():  # an engine lists its suffixes in its class
        assert suffix in imported.SUFFIXES
    assert isinstance(imported.FRONT_END, FrontEnd)


def test_front_ends_read_exactly_these_suffixes():
    assert set(models.front_ends()) == {*".cfg .onnx .pt .pth .safetensors .yaml .yml".split()}
    assert set(engines.front_ends()) == {".trt", ".rtx", ".engine", ".plan", ".xml"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("x.cfg", ["darknet"]),
        ("x.onnx", ["onnx"]),
        ("x.safetensors", ["checkpoint", "safetensors", "yolo"]),  # safetensors imports the others
    ],
)
def test_run_imports_only_the_front_end_of_its_file(tmp_path, model, expected):
    (tmp_path / model).write_bytes(b"")
    code = (
        "import sys; from detector.core import engines; from detector.core.models import *\n"
        "from detector.core.errors import ModelError\n"
        f"try: open_network(ModelRequest({str(tmp_path / model)!r}), engines.front_ends())\n"
        "except ModelError: pass\n"
        "start = 'detector.core.models.formats.'\n"
        "names = [name.removeprefix(start) for name in sys.modules if name.startswith(start)]\n"
        "print(*sorted({name.split('.')[0] for name in names}))\n"
        "assert 'detector.core.engines.trt.model' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


@pytest.mark.parametrize(
    ("model", "options", "option"),
    [
        ("t.cfg", {"family": "yolov8"}, "--family yolov8"),
        ("t.cfg", {"cfg": "u.cfg"}, "--cfg u.cfg"),
        ("t.onnx", {"class_names": ("a",)}, "class names"),
        ("t.onnx", {"weights": "w"}, "--weights w"),
        ("t.onnx", {"random_seed": 1}, "--random-weights 1"),
        ("t.onnx", {"family": "yolov99"}, "--family yolov99"),
        ("t.pt", {"weights": "w"}, "--weights w"),
        ("t.safetensors", {"weights": "w"}, "--weights w"),
        ("t.plan", {"weights": "w"}, "--weights w"),
        ("t.plan", {"random_seed": 3}, "--random-weights 3"),
        ("t.cfg", {"weights": "w", "random_seed": 3}, "--random-weights 3"),
        ("t.yaml", {"weights": "w", "random_seed": 3}, "--random-weights 3"),
    ],
)
def test_option_that_does_not_fit_the_file_is_refused(tmp_path, model, options, option):
    (tmp_path / model).write_bytes(b"")
    with pytest.raises(UsageError) as caught:
        open_network(str(tmp_path / model), **options)
    assert option in str(caught.value)
