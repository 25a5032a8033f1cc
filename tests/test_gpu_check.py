"""scripts/gpu_check as far as it goes without a GPU: what it says there, and its checks on the
fakes.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from types import ModuleType

import pytest

from detector.engines.trt import driver, memory
from tests.conftest import CHECKOUT
from tests.fakes.install import install
from tests.fakes.packages import PACKAGES

SCRIPT = CHECKOUT / "scripts/gpu_check"


@pytest.fixture
def script(monkeypatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(SCRIPT))
    spec = importlib.util.spec_from_loader("gpu_check", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_does_not_end_with_0():
    if driver.absent() is None:
        pytest.skip("machine: there is a GPU: run scripts/gpu_check itself")
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 77, done.stdout
    assert done.stderr.startswith("gpu_check: nothing was tried on a GPU: ")
    assert "no driver: detect-video --engine trt: exit 5" in done.stdout
    assert "FAILED" not in done.stdout
    for check in ("memory", "trace", "tensorrt", "lean"):
        assert f"{check}: needs a GPU" in done.stdout


@pytest.mark.slow
def test_what_needs_no_gpu_is_rehearsed_from_end_to_end(tmp_path):
    """And no figure of it is called a GPU's."""
    if driver.absent() is None:
        pytest.skip("machine: there is a GPU: run scripts/gpu_check itself")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("machine: torch is not installed")
    found = tmp_path / "found.md"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--only", "settings", "--markdown", str(found)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 77, done.stdout + done.stderr
    on, refused, off, compared = (line for line in done.stdout.splitlines() if line[7:15].strip())
    assert on.startswith("ok ")
    assert "channels_last=1, benchmark=0, rehearsed on the CPU, round 1: " in on
    assert "raw outputs differ by" in on
    assert off.startswith("ok ")
    assert "channels_last=0, benchmark=0, rehearsed on the CPU" in off
    assert refused.startswith("- ")
    assert "cuDNN needs a GPU" in refused
    assert "beyond the noise" not in compared
    table = found.read_text()
    assert ", no GPU\n" in table
    assert table.count("| settings |") == 4
    assert all("rehearsed on the CPU" in line for line in table.splitlines() if "FPS" in line)


def test_every_setting_of_torch_is_measured_in_turns(monkeypatch, script, tmp_path):
    """12 of them, three rounds; one that is refused is not asked again."""
    pytest.importorskip("torch", reason="machine: torch is not installed")
    monkeypatch.setattr(script, "has_gpu", lambda: True)
    monkeypatch.setattr(script, "torch_lacks", lambda: None)
    monkeypatch.setattr(script, "save_reference", lambda folder: None)
    asked = []

    def measured(setting, folder):
        asked.append(setting)
        if setting.precision == "tf32":
            return {"fps": None, "value": "no", "ok": False}
        fps = 100.0 + len(asked) / 100 + 50 * setting.benchmark
        return {"fps": fps, "value": f"{fps} FPS", "ok": True}

    monkeypatch.setattr(script, "measure_apart", measured)
    rows = list(script.settings())
    kinds = {(one.precision, one.channels_last, one.benchmark) for one in asked}
    assert len(kinds) == 12
    assert [asked.count(one) for one in script.SETTINGS] == [3, 3, 3, 3, 1, 1, 1, 1, 3, 3, 3, 3]
    assert asked[:12] == list(script.SETTINGS)
    fp32, fp16 = (one["value"] for one in rows[-2:])
    assert rows[-2]["what"] == "torch fp32: settings beside the default"
    for text in (fp32, fp16):
        usual, *others = text.split("; ")
        assert "1.00 times" in usual
        assert "beyond the noise" not in usual
        beyond = ["benchmark=1" in one for one in others]
        assert ["beyond the noise" in one for one in others] == beyond


def test_a_setting_that_crashes_is_a_row(monkeypatch, script, tmp_path):
    dying = tmp_path / "gpu_check"
    dying.write_text("import sys\nsys.exit('CUDA error: an illegal memory access')\n")
    monkeypatch.setattr(script, "__file__", str(dying))
    found = script.measure_apart(script.SETTINGS[0], str(tmp_path))
    assert (found["fps"], found["ok"]) == (None, False)
    assert "illegal memory access" in found["value"]


def test_what_was_found_is_written_before_what_comes_next(monkeypatch, script, tmp_path):
    """A machine that is lent for minutes may be taken back at any time."""
    child = tmp_path / "gpu_check"
    child.write_text(
        "import os, time\n"
        'print(\'{"what": "a", "value": "b", "ok": true}\', flush=True)\n'
        f"while not os.path.exists({str(tmp_path / 'told')!r}): time.sleep(0.01)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.setattr(script, "__file__", str(child))
    told = script.table
    seen = []

    def table(found):
        seen.append(sum(map(len, found.values())))
        (tmp_path / "told").touch()
        return told(found)

    monkeypatch.setattr(script, "table", table)
    found = script.run_checks(["environment"], str(tmp_path / "found.md"))
    assert seen == [1, 2]
    assert [one["ok"] for one in found["environment"]] == [True, False]
    assert "crashed: SIGKILL" in (tmp_path / "found.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_the_check_of_memory(monkeypatch, script, name):
    machine = install(monkeypatch, 11, name)
    rows = {row["what"]: row for row in script.memory() if row["what"].startswith(name)}
    assert rows[f"{name}: 2 threads x 20 x 1 MB there and back"]["value"] == "the same bytes"
    assert rows[f"{name}: 64 MB to the device, page-locked"]["ok"]
    assert machine.device.allocations == {}


def test_the_check_of_memory_notices_other_bytes(monkeypatch, script):
    from detector.engines.trt.memory.cuda_python import CudaBuffer

    install(monkeypatch, 11)
    monkeypatch.setattr(CudaBuffer, "upload", lambda self, stream: None)
    rows = [row for row in script.memory() if row["what"].startswith("cuda-python: 2 threads")]
    assert [row["ok"] for row in rows] == [False]


@pytest.mark.slow
def test_the_check_of_tensorrt(monkeypatch, script):
    """Build, run, agreement and refusals; the clip's first pictures, and few calls."""
    install(monkeypatch, 11)
    in_loop, pictures = script.in_loop, script.pictures
    monkeypatch.setattr(script, "pictures", lambda machine: pictures(machine, 2))
    monkeypatch.setattr(script, "in_loop", lambda machine, given: in_loop(machine, given, 2))
    monkeypatch.setattr(
        memory, "why_unusable", lambda name: None if name == "cuda-python" else "not here"
    )
    monkeypatch.setattr(script, "TRT", script.TRT[:2])
    monkeypatch.setattr(
        script, "command", lambda *_: script.row("the command", "is another process")
    )
    rows = {row["what"]: row for row in script.tensorrt()}
    assert [row for row in rows.values() if row["ok"] is False] == []
    assert "ms device" in rows["trt fp32: 200 calls"]["value"]
    assert rows["trt fp32: raw outputs against ort fp32"]["ok"]
    assert "'tf32'" in rows["trt tf32, 2 at once: layers"]["value"]
    assert (
        "refused: TensorRT 11.4.0.106 refuses it: it is damaged"
        in rows["tensorrt: plan, cut short"]["value"]
    )
    assert rows["trt fp16: timed layers that the inspector does not know"]["value"] == "none"
    assert rows["trt fp16: convolutions in no timed layer"]["value"] == "none"


@pytest.mark.slow
@pytest.mark.parametrize("which", [-2, -1])
def test_the_check_of_tensorrt_in_few_bits(monkeypatch, script, tmp_path, which):
    """Limits that the roundings keep, as far as the fake can tell."""
    install(monkeypatch, 11)
    in_loop, pictures = script.in_loop, script.pictures
    monkeypatch.setattr(script, "pictures", lambda machine: pictures(machine, 2))
    monkeypatch.setattr(script, "in_loop", lambda machine, given: in_loop(machine, given, 2))
    name, limit, options = script.TRT[which]
    reference = script.ort_reference(str(tmp_path))
    rows = list(script.variant("trt", name, str(tmp_path), reference, limit, **options))
    assert [row for row in rows if not row["ok"]] == []
    assert f"'{name}'" in rows[-1]["value"]


@pytest.mark.slow
def test_a_wrong_answer_fails_the_check(monkeypatch, script, tmp_path):
    machine = install(monkeypatch, 11)
    monkeypatch.setattr(
        machine.trt.IBuilderConfig, "clear_flag", lambda self, flag: None
    )  # TF32 stays on
    pictures = script.pictures
    monkeypatch.setattr(script, "pictures", lambda machine: pictures(machine, 1))
    monkeypatch.setattr(script, "in_loop", lambda machine, given: (1.0, [1.0]))
    reference = script.ort_reference(str(tmp_path))
    rows = list(script.variant("trt", "fp32", str(tmp_path), reference, 1e-5, precision="fp32"))
    assert [row["ok"] for row in rows if "against ort" in row["what"]] == [False]


def test_a_crash_of_a_check_is_a_row(monkeypatch, script, tmp_path):
    dying = tmp_path / "gpu_check"
    dying.write_text(
        'import os, signal\nprint(\'{"what": "a", "value": "b", "ok": true}\', flush=True)\n'
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    monkeypatch.setattr(script, "__file__", str(dying))
    rows = script.in_child("lean")
    assert rows[0] == {"what": "a", "value": "b", "ok": True}
    assert rows[1] == {"what": "lean", "value": "crashed: SIGSEGV", "ok": False}


def test_calls_are_counted_in_the_trace_of_the_loop_alone(script):
    class Seen:
        def export_chrome_trace(self, path: str) -> None:
            def event(name: str, ts: int, cat: str = "cuda_runtime", dur: int = 1) -> dict:
                return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur}

            events = [
                event("the loop", 10, "user_annotation", 80),
                event("cudaDeviceSynchronize", 5),  # before
                event("cudaLaunchKernel", 20),
                event("cudaEventSynchronize", 30),
                event("cudaDeviceSynchronize", 95),  # the profiler's own, at its end
                event("aten::conv", 40, "cpu_op"),
            ]
            with open(path, "w") as file:
                json.dump({"traceEvents": events}, file)

    assert script.cuda_calls(Seen(), "the loop") == {
        "cudaLaunchKernel": 1,
        "cudaEventSynchronize": 1,
    }


def test_the_table_for_the_document(script):
    rows = {
        "memory": [script.row("a", "1|2"), script.row("b", "x", None), script.row("c", "y", False)]
    }
    lines = script.table(rows).splitlines()
    assert lines[2:] == [
        "| check | what | found | |",
        "|---|---|---|---|",
        "| memory | a | 1/2 | ok |",
        "| memory | b | x | - |",
        "| memory | c | y | FAILED |",
    ]
