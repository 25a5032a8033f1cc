"""The list of engines, and the choice of ``--engine auto``."""

from types import SimpleNamespace

import pytest

from detector.core import engines
from detector.core.engines import _ranking
from detector.core.engines.base import EngineOptions, cpu_threads, translated
from detector.core.errors import EngineError, ModelError, UsageError


def installed(monkeypatch, *libraries: str) -> None:
    monkeypatch.setattr(
        engines, "find_spec", lambda library: object() if library in libraries else None
    )


def test_engine_names_do_not_include_helper_modules():
    assert {"null", "openvino", "ort", "torch", "trt"} <= set(engines.names())
    assert not {"base", "ort_graph", "tensorrt_parts", "torch_graph"} & set(engines.names())


ORT = "onnxruntime is installed; it is the default on a CPU"


@pytest.mark.parametrize(
    ("libraries", "precision", "name", "reason"),
    [
        (("onnxruntime", "openvino", "torch"), "fp32", "ort", ORT),
        (("onnxruntime",), "fp32", "ort", ORT),
        (("onnxruntime",), "int8", "ort", f"{ORT} (openvino not installed)"),
        (("onnxruntime", "openvino"), "int8", "openvino", "the fastest in int8 on a CPU"),
        (("onnxruntime", "openvino"), "bf16", "openvino", "the fastest in bf16 on a CPU"),
        (("openvino",), "fp32", "openvino", "openvino is installed (onnxruntime not installed)"),
        (("torch",), "fp32", "torch", "torch is installed (onnxruntime, openvino not installed)"),
    ],
)
def test_auto_chooses_an_installed_engine_and_says_why(
    monkeypatch, libraries, precision, name, reason
):
    """Request the device ``cpu``, so that no GPU engine is chosen."""
    if name == "torch":
        pytest.importorskip("torch", reason="machine: torch is not installed")
    installed(monkeypatch, *libraries)
    assert _ranking.choose_by_rank(precision, "cpu") == (name, f"engine {name}: {reason}")


@pytest.mark.parametrize(
    ("able", "precision", "device", "name"),
    [
        ({"torch"}, "fp32", "auto", "torch"),
        ({"torch"}, "fp32", "cpu", "ort"),
        ({"ort", "torch"}, "fp32", "auto", "ort"),
        ({"torch"}, "int8", "auto", "openvino"),  # torch has no int8
        (set(), "fp32", "auto", "ort"),
    ],
)
def test_auto_prefers_an_engine_that_can_use_the_gpu(
    monkeypatch, tmp_path, able, precision, device, name
):
    for library in ("openvino", "torch"):
        pytest.importorskip(library, reason=f"machine: {library} is not installed")
    installed(monkeypatch, "onnxruntime", "openvino", "torch")
    monkeypatch.setattr(_ranking, "NVIDIA_DRIVER", tmp_path)
    for one in ("ort", "torch"):
        runs_on_gpu = classmethod(lambda cls, precision: cls.name in able)
        monkeypatch.setattr(engines.find(one), "runs_on_gpu", runs_on_gpu)
    chosen, why = _ranking.choose_by_rank(precision, device)
    assert chosen == name
    assert ("can use the GPU" in why) is (name in able)
    monkeypatch.setattr(_ranking, "NVIDIA_DRIVER", tmp_path / "none")
    assert _ranking.choose_by_rank(precision, device)[0] != "torch"


@pytest.mark.parametrize(
    ("versions", "built"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", True),
        ("cuda = None\n", False),
        ("another = 'way to write it'\n", True),
        (None, True),
    ],
)
def test_version_file_tells_whether_torch_is_built_for_cuda(monkeypatch, tmp_path, versions, built):
    from detector.core.engines.torch import abilities

    if versions is not None:
        (tmp_path / "version.py").write_text(versions)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(abilities, "find_spec", lambda name: spec)
    assert abilities.is_built_for_cuda() is built


def test_version_file_agrees_with_torch():
    torch = pytest.importorskip("torch", reason="machine: torch is not installed")
    from detector.core.engines.torch import abilities

    assert abilities.is_built_for_cuda() is (torch.version.cuda is not None)


def test_auto_without_a_capable_engine_raises(monkeypatch):
    installed(monkeypatch, "onnxruntime")
    with pytest.raises(EngineError, match="ort cannot run"):
        _ranking.choose_by_rank("bf16", "cpu")
    with pytest.raises(UsageError, match="unknown precision 'int4'"):
        _ranking.choose_by_rank("int4")


def test_auto_without_libraries_raises_an_error_with_the_install_command(monkeypatch):
    installed(monkeypatch)
    with pytest.raises(EngineError, match=r"'detect-video\[torch\]'"):
        _ranking.choose_by_rank()
    assert engines.why_unusable()["null"] is None


@pytest.mark.parametrize(
    ("libraries", "device", "gpu", "processor", "suggested"),
    [
        (("onnxruntime",), "auto", False, "x86_64", True),
        (("onnxruntime", "torch"), "cpu", True, "x86_64", True),
        (("onnxruntime",), "auto", True, "x86_64", False),  # the GPU is faster
        (("onnxruntime",), "cuda", False, "x86_64", False),
        (("onnxruntime",), "auto", False, "aarch64", False),  # not measured on this processor
        (("onnxruntime", "openvino"), "auto", False, "x86_64", False),
    ],
)
def test_missing_library_is_suggested_only_if_measured_to_be_faster(
    monkeypatch, tmp_path, libraries, device, gpu, processor, suggested
):
    installed(monkeypatch, *libraries)
    monkeypatch.setattr(_ranking, "NVIDIA_DRIVER", tmp_path if gpu else tmp_path / "none")
    monkeypatch.setattr(_ranking.platform, "machine", lambda: processor)
    line = _ranking.suggest_library(device)
    assert (line is not None) == suggested
    assert not line or engines.find("openvino").install in line


def test_cores_are_divided_among_concurrent_requests(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert cpu_threads(EngineOptions()) == 8
    assert cpu_threads(EngineOptions(concurrency=2)) == 4
    assert cpu_threads(EngineOptions(concurrency=20)) == 1
    assert cpu_threads(EngineOptions(concurrency=2, threads=3)) == 3


def test_library_exceptions_become_one_line_and_ours_pass_unchanged():
    with (
        pytest.raises(EngineError, match=r"^engine x: failed to run: a b$") as caught,
        translated("x", "run"),
    ):
        raise RuntimeError("a\n  b\n")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(ModelError, match=r"^ours$"), translated("x", "run"):
        raise ModelError("ours")
