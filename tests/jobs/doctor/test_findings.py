"""The doctor's findings on simulated machines."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper
from rich.console import Console

from detector.core.config.levels import resolve_config
from detector.core.config.schema import Config
from detector.core.errors import EngineError
from detector.core.jobs import doctor
from detector.core.jobs.doctor import attempt, hardware
from detector.core.terminal.doctor import print_findings

NONE = dict.fromkeys(hardware.FEATURES, False)
FINE = {"error": None, "precisions": {"fp32": None}, "seconds": 0.1}


@pytest.mark.parametrize(
    ("features", "precision", "words"),
    [
        ([], "int8", "no VNNI"),
        ([], "bf16", "no effect"),
        ([], "fp16", "no fp16"),
        (["VNNI"], "int8", "fast: VNNI"),
        (["VNNI", "AMX-INT8"], "int8", "fast: AMX"),
        (["BF16"], "bf16", "fast: bf16"),
        (["AMX-BF16", "BF16"], "bf16", "fast: AMX"),
        (["FP16"], "fp16", "has fp16"),
    ],
)
def test_precision_advice_depends_on_cpu_features(features, precision, words):
    assert words in hardware.precision_advice({**NONE, **dict.fromkeys(features, True)})[precision]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),  # cgroup v1
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_cgroup_quota_is_converted_to_cores(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert hardware.cgroup_quota(tmp_path) == cores


def test_wasteful_thread_settings_are_warned_about(monkeypatch):
    for name in hardware.THREAD_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    assert hardware.threads() == {"settings": {}, "warnings": []}
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setenv("OMP_NUM_THREADS", "999")
    warnings = hardware.threads()["warnings"]
    assert ["OMP_WAIT_POLICY" in warnings[0], "OMP_NUM_THREADS=999" in warnings[1]] == [True, True]


def test_two_installed_packages_of_cv2_are_warned_about(monkeypatch):
    versions = {"opencv-python": "5.0", "opencv-python-headless": "5.0"}
    monkeypatch.setattr(doctor, "version_of", versions.get)
    [warning] = doctor.codecs()["warnings"]
    assert "overwrite each other" in warning
    assert "pip uninstall -y opencv-python " in warning


def test_cv2_import_error_warns_with_the_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    [warning] = doctor.codecs()["warnings"]
    assert warning.startswith("cv2 ")
    assert warning.endswith(" opencv-python-headless")


def test_doctor_says_which_rapl_zones_are_readable(tmp_path):
    for zone in ("intel-rapl:0", "intel-rapl:0:0"):
        (tmp_path / zone).mkdir()
    (tmp_path / "intel-rapl:0/energy_uj").write_text("1")
    assert hardware.readable_counters(tmp_path)["rapl"] == {
        "intel-rapl:0": True,
        "intel-rapl:0:0": False,
    }
    assert hardware.readable_counters(tmp_path / "absent")["rapl"] == {}


def test_gpus_are_read_from_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, NVIDIA X, 580.1, 9.0, 80000 MiB, 79000 MiB'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = hardware.nvidia()
    assert found["reason"] is None
    assert (found["gpus"][0]["name"], found["gpus"][0]["compute_cap"]) == ("NVIDIA X", "9.0")
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    assert hardware.nvidia()["reason"].endswith(" 9: NVIDIA-SMI has failed")


def engine(name="ort", usable=True, reason=None):
    return {
        "name": name,
        "usable": usable,
        "reason": reason,
        "tried": True,
        "install": "",
        "precisions": {},
        "builds": None,
        "offers": [{"option": "--device gpu", "name": "Arc", "precisions": ["fp16"]}],
    }


def test_engine_with_a_wrong_result_is_refused(monkeypatch):
    assert attempt._run_plus_one("ort")["fp32"] is None
    assert attempt._run_plus_one("null")["fp32"] is None  # null declares that it computes nothing
    plus_one = attempt._plus_one()
    (bias,) = [one for one in plus_one.graph.graph.initializer if one.name == "bias"]
    bias.CopyFrom(numpy_helper.from_array(np.full(3, 2, np.float32), "bias"))
    monkeypatch.setattr(attempt, "_plus_one", lambda: plus_one)
    with pytest.raises(EngineError, match="9"):
        attempt._run_plus_one("ort")


def replace_children(monkeypatch, engine, job=None, encoders=None):
    """Let ``try_in_child`` return these results without running anything."""
    results = {
        attempt.DEFAULT_JOB: job or {"error": None, "exit_code": 0},
        attempt.TIME_ENCODERS: encoders or {"error": "none", "exit_code": 5},
    }
    monkeypatch.setattr(doctor, "try_in_child", lambda word: results.get(word, engine))


@pytest.mark.slow
def test_default_job_succeeds():
    assert attempt._run_default_job() == {"error": None, "exit_code": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "code"),
    [({"error": None, "exit_code": 0}, 0), ({"error": "the disk is full", "exit_code": 6}, 6)],
)
def test_exit_code_equals_that_of_the_default_job(monkeypatch, job, code):
    crash = "encoders: its process ended by signal 11 (SIGSEGV)"
    replace_children(monkeypatch, FINE, job, encoders={"error": crash, "exit_code": 5})
    findings = doctor.examine(Config())
    assert findings["exit"]["code"] == code
    # A driver that crashes does not stop the doctor.
    assert findings["encoders"]["nvenc"] == {"usable": False, "reason": crash, "fps": None}
    out = io.StringIO()
    print_findings(Console(file=out, width=100), findings)
    assert ("job can run" if code == 0 else "cannot run (exit 6)") in out.getvalue().split("\n")[0]
    assert max(map(len, out.getvalue().splitlines())) <= 100


@pytest.mark.slow
def test_printed_findings_show_counters_gpus_and_forced_settings(monkeypatch):
    able = {"fp32": None, "bf16": None, "int8": "no int8 here"}
    replace_children(monkeypatch, {"error": None, "precisions": able, "seconds": 0.1})
    findings = doctor.examine(Config())
    card = {"index": "0", "name": "NVIDIA H100", "compute_cap": "9.0", "driver_version": "570.1"}
    card |= {"memory.free": "80000 MiB", "memory.total": "81559 MiB"}
    findings["gpu"] |= {"gpus": [card, card | {"index": "1"}], "energy_readable": True}
    findings["counters"]["rapl"] = {"intel-rapl:0": True, "intel-rapl:1": False}
    forced = {"model": "street", "model_input": [352, 608], "reason": "fastest", "undo": "--no-x"}
    findings["in_force"] = [forced]
    out = io.StringIO()
    print_findings(Console(file=out, width=200), findings)
    printed = out.getvalue()
    (row,) = [line.split() for line in printed.splitlines() if line.split()[:1] == ["ort"]]
    assert (row, "\n  no int8 here " in printed) == (["ort", "yes", "fp32", "bf16"], True)
    assert "0: NVIDIA H100, compute capability 9.0, driver 570.1, 80000 MiB of 81559 MiB" in printed
    assert "1: NVIDIA H100" in printed
    assert "RAPL: intel-rapl:0; NVML energy readable" in printed
    assert "street 608x352: fastest; --no-x" in printed
    findings["counters"]["rapl"] = {"intel-rapl:0": False}
    print_findings(Console(file=out, width=200), findings)
    assert "RAPL: present, but not readable" in out.getvalue()


@pytest.mark.slow
def test_findings_wrap_between_words_on_a_narrow_terminal(monkeypatch):
    replace_children(monkeypatch, FINE)
    findings = doctor.examine(Config())
    findings["engines"] = [engine(), engine("trt", False, "tensorrt is not installed at all")]
    shown = {}
    for width in (40, 100):
        out = io.StringIO()
        print_findings(Console(file=out, width=width), findings)
        shown[width] = out.getvalue().splitlines()
        assert max(map(len, shown[width])) <= width
    lines = [line.strip() for line in shown[40]]
    assert ["trt", "no"] in [line.split() for line in lines]
    assert any(line.startswith("tensorrt is not") for line in lines)
    assert lines[lines.index("--precision int8") + 1].split()[0] in str(findings["cpu"])
    assert "thread settings" in lines
    assert any(line.startswith("thread settings  ") for line in shown[100])


def test_no_usable_engine_exits_5(monkeypatch):
    monkeypatch.setattr(doctor.engines, "find_spec", lambda library: None)
    findings = doctor.examine(Config(), quick=True)
    assert findings["exit"]["code"] == 5
    assert "pip install onnxruntime" in findings["exit"]["reason"]
    reasons = {one["name"]: one["reason"] for one in findings["engines"]}
    assert reasons["torch"].endswith(" 'detect-video[torch]'")


@pytest.mark.parametrize(("given", "code"), [(None, 0), ("engines-of-mine", 6)])
def test_unwritable_engines_folder_exits_6_only_if_given(tmp_path, monkeypatch, given, code):
    """If the default folder is not writable, a run uses a temporary folder and the doctor warns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor.store, "is_writable", lambda place: place == tmp_path)
    monkeypatch.setattr(doctor.store, "default_folder", lambda: Path("/dev/null/engines"))
    if given is not None:
        (tmp_path / given).mkdir()
    findings = doctor.examine(resolve_config(None, {"engines_dir": given}), quick=True)
    assert findings["exit"]["code"] == code
    assert any("--engines-dir DIR" in warning for warning in findings["warnings"])


def test_read_only_current_folder_exits_6(monkeypatch):
    monkeypatch.setattr(doctor.store, "is_writable", lambda place: False)
    assert doctor.examine(Config(), quick=True)["exit"]["code"] == 6


def test_crashing_library_is_reported_as_exit_5(monkeypatch):
    # The child is now sh -P -c ..., which ends with an error and prints no JSON.
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    result = attempt.try_in_child("ort")
    assert result["exit_code"] == 5
    assert result["error"].startswith("ort: its process ended")
