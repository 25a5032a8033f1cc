"""The real Nsight Systems (Debian's packages) records the real command. This needs no GPU."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
CANNOT = 3  # exit code of scripts/nsys_check if it cannot download Debian's packages


@pytest.fixture(scope="module")
def recorded(shared: Path) -> list[dict[str, Any]]:
    command = [sys.executable, str(ROOT / "scripts/nsys_check"), "--json", "--nsys", "2022"]
    command += ["--nvtx", importlib.metadata.version("nvtx"), "--frames", "30"]
    for mode in ("loop", "two sources", "Python API", "Ctrl-C", "engine's error"):
        command += ["--mode", mode]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    if run.returncode == CANNOT:
        pytest.skip(f"machine: {run.stderr.strip().splitlines()[-1]}")
    rows: list[dict[str, Any]] = json.loads(run.stdout)
    return rows


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nsys_records_every_call_of_every_run(recorded: list[dict[str, Any]]) -> None:
    assert [row["mode"] for row in recorded] == [
        "loop",
        "two sources",
        "two sources",
        "Python API",
        "Python API",  # a call of a Detector with a single picture, outside of the run
        "Ctrl-C",
        "engine's error",
    ]
    for row in recorded:
        # Ignore durations, which only scripts/nsys_check judges.
        wrong = [one for one in row["wrong"] if " off" not in one]
        assert wrong == [], row
        assert row["open"] == 0
        assert row["calls"]["infer"] > 0
        if row["mode"] != "Python API":  # the API writes no session to compare with
            assert row["calls"] == row["expected"]
