"""Check that the real libraries have every name that the engine ``trt`` uses from them.

TensorRT's real bindings are imported with stubs in place of the libraries that they load
(tests/fakes/bindings.py). cuda-python's wheel is used unchanged.
"""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import zipfile

import pytest

from tests.conftest import CHECKOUT
from tests.fakes.bindings import find_wheel, unpack_bindings
from tests.fakes.device import Device
from tests.fakes.install import MAJORS
from tests.fakes.packages import fake_cuda_python

PACKAGE = CHECKOUT / "detector"
SOURCES = list((PACKAGE / "core/engines/trt").rglob("*.py"))
OBJECTS = {  # our variables -> TensorRT's classes
    "builder": "Builder",
    "definition": "INetworkDefinition",
    "parser": "OnnxParser",
    "error": "ParserError",
    "config": "IBuilderConfig",
    "profile": "IOptimizationProfile",
    "timings": "ITimingCache",
    "runtime": "Runtime",
    "engine": "ICudaEngine",
    "_engine": "ICudaEngine",
    "context": "IExecutionContext",
    "_context": "IExecutionContext",
    "verbosity": "ProfilingVerbosity",
    "inspector": "EngineInspector",
}
FILES_THAT_USE_OBJECTS = {"engine.py", "build.py", "layers.py", "running.py", "plan_file.py"}


def names_used(module: str = "trt") -> dict[str, set[str]]:
    """Map each class ("" for the module) to the names of its attributes that the sources use, such
    as trt.X.Y, config.z or self._context.w. ``module``: the variable that holds the module. It
    is "trt", or "rtx" in code that is only for TensorRT for RTX."""
    found: dict[str, set[str]] = {}
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            chain = dotted(node)
            if chain[:1] == [module] and len(chain) > 1:
                found.setdefault(".".join(chain[1:-1]), set()).add(chain[-1])
            elif (
                file.name in FILES_THAT_USE_OBJECTS
                and chain[:-2] in ([], ["self"])
                and chain[-2:-1][0] in OBJECTS
            ):
                found.setdefault(OBJECTS[chain[-2]], set()).add(chain[-1])
    return found


def dotted(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Attribute):
        return [*dotted(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else ["?"]


def test_search_for_used_names_finds_names_of_every_kind():
    used = names_used()
    assert {"Builder", "OnnxParser", "Runtime", "ILogger", "IProgressMonitor", "Dims"} <= used[""]
    assert used["NetworkDefinitionCreationFlag"] == {"STRONGLY_TYPED"}
    assert "execute_async_v3" in used["IExecutionContext"]
    assert "set_timing_cache" in used["IBuilderConfig"]
    assert "device_memory_size_v2" in used["ICudaEngine"]
    assert "node_operator" in used["ParserError"]
    assert {"profiler", "enqueue_emits_profile", "report_to_profiler"} <= used["IExecutionContext"]
    assert {"DETAILED", "NONE"} <= used["ProfilingVerbosity"]
    assert "IProfiler" in used[""]


def rtx():
    return pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed")


def resolve(place, owner: str):
    for part in filter(None, owner.split(".")):
        place = getattr(place, part)
    return place


def overloads(doc: str | None) -> set[tuple[str, ...]]:
    """Return the parameters of each signature that pybind11 writes into a method's docstring."""
    signatures = re.findall(r"^(?:\d+\. )?\w+\((self.*)\) -> ", doc or "", re.M)
    return {tuple(re.findall(r"(?:^|, )(\w+): ", text)) for text in signatures}


def test_tensorrt_for_rtx_has_every_name_that_the_engine_uses() -> None:
    own = names_used("rtx")
    assert "INVALID" in own["EngineValidity"]
    for used in (names_used(), own):
        for owner, names in used.items():
            place = resolve(rtx(), owner)
            assert [name for name in names if not hasattr(place, name)] == [], owner


def test_fake_runtime_has_the_real_signatures() -> None:
    rtx()
    from tests.fakes.tensorrt_module import REPLACED

    for title, kind in REPLACED.items():
        real = getattr(rtx(), title)
        if issubclass(kind, real):
            continue
        names = {*vars(kind), *vars(kind).get("__slots__", ())}
        for name in (name for name in names if not name.startswith("_")):
            attribute = vars(real).get(name)
            if inspect.isfunction(vars(kind)[name]):
                parameters = tuple(inspect.signature(vars(kind)[name]).parameters)
                assert parameters in overloads(attribute.__doc__), f"{title}.{name}"
            else:
                assert isinstance(attribute, property), f"{title}.{name}"


CHECK = """
import json, sys
import tensorrt_bindings as trt
used, missing, docs = json.load(sys.stdin), [], {}
for owner, names in used.items():
    place = trt
    for part in filter(None, owner.split(".")):
        place = getattr(place, part, None)
    missing += [f"{owner}.{name}" for name in names if place is None or not hasattr(place, name)]
    docs[owner] = {name: getattr(place, name, None).__doc__ for name in names}



sys.path.insert(0, sys.argv[1])
from detector.core.engines.trt.build import progress_monitor
from detector.core.engines.trt.plan_file import make_log

log = make_log(trt)
log.log(trt.ILogger.Severity.ERROR, "it  broke")
log.log(trt.ILogger.Severity.WARNING, "careful")
steps = []
monitor = progress_monitor(trt, lambda *step: steps.append(step) or len(steps) < 3)
monitor.phase_start("Building", None, 2)
answers = [monitor.step_complete("Building", 0), monitor.step_complete("Building", 1)]
try:
    trt.Builder(log)
    builder = "made"
except TypeError as exc:
    builder = str(exc)
dims = list(trt.Dims([8, 2, 3, 3]))
from detector.core.engines.trt.layers import make_profiler
profiler = make_profiler(trt)
profiler.report_layer_time("0.conv", 0.5)
print(json.dumps({"version": trt.__version__, "missing": missing, "docs": docs,
                  "reason": log.reason(), "answers": answers,
                  "steps": steps, "layer_times": [profiler.taken(), profiler.taken()],
                  "builder": builder, "dims": dims,
                  "flag": 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("major", MAJORS)
def test_real_bindings_have_every_name_that_the_engine_uses(tmp_path, major):
    environment = unpack_bindings(major, tmp_path)
    used = {owner: sorted(names) for owner, names in names_used().items()}
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(CHECKOUT)],
        env=environment,
        input=json.dumps(used),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["version"].startswith(f"{major}.")
    assert result["missing"] == []
    for owner, docs in result["docs"].items():  # one fake is for all versions, so these must agree
        for name, doc in docs.items():
            real = overloads(resolve(rtx(), f"{owner}.{name}").__doc__)
            assert real & overloads(doc) or not real, f"{owner}.{name}"
    # Our subclasses of the real classes work: the ILogger keeps only errors, the IProgressMonitor
    # cancels, and the IProfiler keeps what it receives.
    assert result["reason"] == "it broke"
    assert result["answers"] == [True, False]
    assert result["steps"] == [["Building", 0, 2], ["Building", 1, 2], ["Building", 2, 2]]
    assert result["layer_times"] == [[["0.conv", 0.5]], []]
    # Without a driver, Builder raises TypeError, which ``translated()`` in the engine catches.
    assert "nullptr" in result["builder"]
    assert result["dims"] == [8, 2, 3, 3]
    assert result["flag"] == {10: 2, 11: 1}[major]


SIGNATURES = """
import inspect, json, sys
from cuda.bindings import runtime
from cuda.bindings.utils import get_cuda_native_handle
print(json.dumps({name: list(inspect.signature(getattr(runtime, name)).parameters)
                  for name in json.load(sys.stdin)}
      | {"kinds": sorted(runtime.cudaMemcpyKind.__members__),
         "nonblocking": runtime.cudaStreamNonBlocking,
         "blocking_sync": runtime.cudaEventBlockingSync, "default": runtime.cudaHostAllocDefault,
         "handle": get_cuda_native_handle(runtime.cudaStream_t(1234)),
         "without_driver": [int(result) for result in runtime.cudaGetDevice()[:1]]}))
"""


@pytest.mark.slow
def test_fake_functions_have_the_arguments_of_cuda_python(tmp_path):
    for package in ("cuda_bindings", "cuda_pathfinder"):
        with zipfile.ZipFile(find_wheel(package)) as archive:
            archive.extractall(tmp_path)
    runtime = fake_cuda_python(Device())["cuda.bindings.runtime"]
    ours = {
        name: list(inspect.signature(call).parameters)
        for name, call in vars(runtime).items()
        if callable(call)
    }
    ours = {name: arguments for name, arguments in ours.items() if name.startswith("cuda")}
    ours["cudaMalloc"] = ["size"]  # the decorator of the fake hides its parameters
    done = subprocess.run(
        [sys.executable, "-c", SIGNATURES],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        input=json.dumps(sorted(ours)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    real = json.loads(done.stdout)
    assert {name: real[name] for name in ours} == ours
    assert {"cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost"} <= set(real["kinds"])
    assert (real["nonblocking"], real["blocking_sync"], real["default"]) == (1, 1, 0)
    assert real["handle"] == 1234


def test_torch_has_the_names_that_we_use_for_device_memory():
    """The CPU build of torch also has these names, although they work only on a GPU."""
    torch = pytest.importorskip("torch", reason="machine: torch is not installed")
    assert "blocking" in inspect.signature(torch.cuda.Event.__new__).parameters
    assert "enable_timing" in inspect.signature(torch.cuda.Event.__new__).parameters
    assert "device" in inspect.signature(torch.cuda.Stream.__new__).parameters
    assert all(
        hasattr(torch.cuda.Event, name) for name in ("record", "synchronize", "elapsed_time")
    )
    assert callable(torch.cuda.stream)
    assert callable(torch.cuda.device)
    assert str(torch.device("cuda", 0)) == "cuda:0"
    pinnable = torch.zeros(8, dtype=torch.uint8)
    assert pinnable.numpy().view("float32").reshape(2).shape == (2,)
    assert pinnable.copy_(torch.ones(8, dtype=torch.uint8), non_blocking=True).sum() == 8
