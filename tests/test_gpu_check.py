"""scripts/gpu_check without a GPU: its plan with a fake clock, its files, and its steps with
stand-ins."""

import importlib
import json
import os
import signal
import subprocess
import sys

import pytest
from gpu import children, findings, memory_steps, plan
from gpu import machine as here
from gpu.plan import STEPS, Step

from detector.core.engines.trt import driver
from tests.conftest import CHECKOUT, night
from tests.fakes.install import install_fake_tensorrt
from tests.processes import is_alive
from tests.waiting import PATIENCE_S, wait_for

SCRIPT = CHECKOUT / "scripts/gpu_check"
NO_PACKAGES = 3  # exit code of scripts/get_nsys if it cannot download Debian's packages
A_GPU = "machine: there is a GPU: run scripts/gpu_check itself"


def run_script(*words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, **environment},
    )


# ---- the plan, with a fake clock


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def steps(*rows: tuple[str, int, int]) -> list[Step]:
    return [Step(name, "group", f"what {name} does", budget, least) for name, budget, least in rows]


def go_through_steps(rows, seconds, takes, folder=None):
    """Go through the plan, and return the started steps with their time limits, and the findings.
    ``takes``: name of a step -> seconds that it would take."""
    clock, started = Clock(), []
    found = findings.Findings(plan.sections(steps(*rows)), folder, False, seconds)

    def start(step, limit, tell):
        started.append((step.name, limit))
        tell(findings.row(step.name, "begun"))
        clock.now += min(takes[step.name], limit)
        return takes[step.name] <= limit

    plan.go_through(steps(*rows), seconds, start, found, lambda *_: None, clock)
    return started, found


def test_step_beyond_its_budget_is_ended_and_the_next_one_starts():
    rows = [("a", 30, 5), ("b", 60, 5)]
    started, found = go_through_steps(rows, 100, {"a": 500, "b": 3})
    assert started == [("a", 30), ("b", 60)]
    a = found.sections["a"]
    assert a.state == "ended"
    assert [one["state"] for one in a.rows] == ["pass", "fail"]
    assert a.rows[1]["value"] == "ended after 30 s, the step's budget"
    assert found.failed() == ["what a does"]


def test_steps_that_need_more_than_the_remaining_time_are_skipped():
    rows = [("a", 80, 5), ("b", 60, 40), ("c", 30, 5)]
    started, found = go_through_steps(rows, 100, {"a": 75, "b": 50, "c": 30})
    assert started == [("a", 80), ("c", 25)]
    b, c = found.sections["b"], found.sections["c"]
    assert (b.state, b.rows[0]["state"]) == ("skipped", "not run")
    assert b.rows[0]["value"] == "25 s left, 40 s needed"
    assert c.rows[-1]["value"] == "ended after 25 s, all the time that was left"


def test_steps_exist_and_correctness_comes_before_speed():
    for step in STEPS:
        assert callable(getattr(importlib.import_module(f"gpu.{step.group}"), step.name))
        assert 0 < step.least_s <= step.budget_s
    names = [step.name for step in STEPS]
    assert names[:2] == ["environment", "torch"]
    assert names.index("asserted") < names.index("settings")
    certain = [step for step, line in zip(STEPS, list(plan.table(STEPS, 570))[2:], strict=False)
               if line.split()[3] != "-"]  # fmt: skip
    assert len(certain) >= 10


# ---- files of a killed check


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_check_leaves_valid_files_and_sigterm_leaves_no_process(tmp_path, number):
    """Run a step that waits for its child process, a tool that does not end."""
    tool = tmp_path / "nsys"
    tool.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    tool.chmod(0o755)
    line = [sys.executable, str(SCRIPT), "--rehearse", "--only", "nsys", "--only", "ncu"]
    out = tmp_path / "found"
    with subprocess.Popen(
        [*line, "--nsys", str(tmp_path), "--out", str(out)], stdout=subprocess.DEVNULL
    ) as running:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        running.send_signal(number)
        assert running.wait(PATIENCE_S) == (143 if number == signal.SIGTERM else -9)
    document = json.loads((out / "findings.json").read_text())
    assert [one["state"] for one in document["steps"]] == ["running", "waiting"]
    page = (out / "findings.md").read_text()
    assert "was running" in page
    assert "not reached yet" in page
    pid = int((tmp_path / "pid").read_text())
    if number == signal.SIGTERM:
        wait_for(lambda: not is_alive(pid))
    elif is_alive(pid):
        os.kill(pid, signal.SIGKILL)


# ---- a process for each step


def run_step(tmp_path, text: str, seconds: float = PATIENCE_S) -> tuple[bool, list[dict]]:
    file, rows = tmp_path / "step.py", []
    file.write_text(text)
    return children.in_child([sys.executable, str(file)], "step", seconds, rows.append), rows


ONE_ROW = 'print(\'{"what": "a", "value": "b", "state": "pass"}\', flush=True)\n'


def test_crash_adds_a_row_and_keeps_the_earlier_ones(tmp_path):
    in_time, rows = run_step(tmp_path, ONE_ROW + "import os\nos.kill(os.getpid(), 11)\n")
    assert in_time
    assert [one["value"] for one in rows] == ["b", "crashed: SIGSEGV"]
    _, rows = run_step(tmp_path, ONE_ROW + "import sys\nsys.exit('no memory')\n")
    assert [one["value"] for one in rows] == ["b", "failed: ['no memory']"]


def test_hanging_step_is_ended_with_its_children(tmp_path):
    text = (
        ONE_ROW + "import os, subprocess, sys, time\n"
        "one = subprocess.Popen(['sleep', '1000'], process_group=0)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(one.pid))\n"
        'print(\'{"what": "c", "value": "d", "state": "pass"}\', flush=True)\n'
        "time.sleep(1000)\n"
    )
    for seconds in (2, 20, 90):  # a slow machine needs longer to print the second row
        in_time, rows = run_step(tmp_path, text, seconds)
        assert not in_time
        if len(rows) == 2:
            break
    assert [one["what"] for one in rows] == ["a", "c"]
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_alive(pid))


# ---- the command


def test_plan_lists_all_steps():
    done = run_script("--plan", "--minutes", "5")
    assert done.returncode == 0, done.stderr
    assert all(f" {step.name}: " in done.stdout for step in STEPS)


@pytest.mark.slow
def test_without_a_gpu_the_script_exits_77(tmp_path):
    if driver.absent() is None:
        pytest.skip(A_GPU)
    done = run_script("--out", str(tmp_path), "--minutes", "28")
    assert done.returncode == 77, done.stdout
    assert "nothing was tried" in done.stderr
    states = {one["name"]: one["rows"] for one in
              json.loads((tmp_path / "findings.json").read_text())["steps"]}  # fmt: skip
    for step in STEPS:
        if step.needs_gpu:
            (only,) = states[step.name]
            assert only["state"] == "not run"
            assert only["value"].startswith("needs a GPU")
    assert [one["state"] for one in states["no_driver"]] == ["pass", "pass"]
    assert "exit 5" in states["no_driver"][1]["value"]


# ---- steps with stand-ins

NO_TOOLS = ("nsys", "ncu")
REHEARSED = {  # step -> least number of rehearsed rows, and a text that the output must contain
    "environment": (0, "detect-video doctor: exit 0"),
    "torch": (5, "torch bf16: raw outputs against ort fp32"),
    "session": (6, "energy: joules of the GPU, run: "),
    "asserted": (7, "frames that have a row in rows.partial.jsonl: 38 of 38"),
    "limited": (2, "batch 2 fits: use --batch 2"),
    "gil": (3, "cuda-python: Python runs during a wait for an event"),
    "memory": (3, "torch: 2 threads copy 1 MB to the GPU and back, 20 times each: the same bytes"),
    "leaks": (7, "trt: opened and closed 50 times, GPU memory: +0.0 MB"),
    "compile": (3, "graphs compiled after loading, by 2 threads: 0"),
    "tensorrt": (15, "the cached plan is used: 3 plans before, 3 after, the same files"),
    "trace": (1, "has the loop's range"),
    "video": (4, "--encoder nvenc: refused in one line without a GPU"),
    "drawing": (4, "0 drawing threads, run 2: it ran"),
    "settings": (3, "torch fp32: settings compared with the default"),
    "rtx": (15, "rtx: files of compiled kernels: 1"),
    "no_driver": (0, "detect-video --engine trt: exit 5"),
}

# Steps that are rehearsed without --nightly: one that runs the program, two that need no GPU.
BY_DAY = ("video", "gil", "no_driver")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        one.name if one.name in BY_DAY else night(one.name)
        for one in STEPS
        if one.name not in NO_TOOLS
    ],
)
def test_step_is_rehearsed_with_a_stand_in(name, tmp_path):
    """Rows that need a GPU have the state ``rehearsed``; only other rows may have ``pass``."""
    least, piece = REHEARSED[name]
    done = run_script("--rehearse", "--only", name, "--out", str(tmp_path), "--minutes", "28")
    assert done.returncode == 0, done.stdout + done.stderr
    (step,) = json.loads((tmp_path / "findings.json").read_text())["steps"]
    rehearsed = [one for one in step["rows"] if one["state"] == "rehearsed"]
    passed = [one for one in step["rows"] if one["state"] == "pass"]
    assert len(rehearsed) >= least
    assert piece in done.stdout
    assert not passed or name in ("environment", "gil", "no_driver")
    assert not any("FPS" in one["value"] for one in rehearsed if name != "settings")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_recording_of_the_real_nsys_is_read():
    """Get the real nsys from Debian's packages, into the cache of scripts/nsys_check."""
    installed = subprocess.run(
        [str(CHECKOUT / "scripts/get_nsys")], capture_output=True, text=True, timeout=600
    )
    if installed.returncode == NO_PACKAGES:
        pytest.skip(f"machine: {installed.stderr.strip().splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr
    done = run_script(
        "--rehearse", "--only", "nsys", "--nsys", installed.stdout.strip(), "--minutes", "28"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recording of a run" in done.stdout
    assert "nsys: as many kernels" in done.stdout
    assert "nsys: the split" in done.stdout


# ---- the checks can fail


def test_check_finds_a_wait_that_holds_the_interpreter_lock():
    import ctypes

    released = memory_steps.runs_meanwhile(lambda: ctypes.CDLL(None).usleep(80_000))
    held = memory_steps.runs_meanwhile(lambda: ctypes.PyDLL(None).usleep(80_000))
    short = memory_steps.runs_meanwhile(lambda: None)
    assert [one[0] for one in (released, held, short)] == [True, False, None]


@pytest.mark.slow
def test_memory_check_detects_wrong_bytes(monkeypatch):
    from detector.core.engines.trt.memory.cuda_python import CudaBuffer

    install_fake_tensorrt(monkeypatch)
    monkeypatch.setattr(CudaBuffer, "upload", lambda self, stream: None)
    rows = [one for one in memory_steps.memory() if one["what"].startswith("cuda-python: 2 thread")]
    assert [one["state"] for one in rows] == ["fail"]


@pytest.mark.slow
def test_wrong_output_fails_the_check(monkeypatch, tmp_path):
    in_loop, pictures = here.in_loop, here.pictures
    monkeypatch.setattr(here, "pictures", lambda machine, _=2: pictures(machine, 2))
    monkeypatch.setattr(here, "in_loop", lambda machine, given, _=2: in_loop(machine, given, 2))
    machine = install_fake_tensorrt(monkeypatch)
    machine.trt.IBuilderConfig.clear_flag = lambda self, flag: None  # TF32 stays on
    reference = here.ort_reference(str(tmp_path))
    rows = list(here.variant("trt", "fp32", str(tmp_path), reference, 1e-5, precision="fp32"))
    assert [one["state"] for one in rows if "against ort" in one["what"]] == ["fail"]
