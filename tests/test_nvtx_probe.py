"""The probe is an instrument of the tests: ranges that do not match must not pass it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nvtx_log import build_probe, probe_env, read_log


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_probe(tmp_path_factory.mktemp("probe"))


def run(program: str, probe: Path, log: Path) -> None:
    env = {**os.environ, **probe_env(probe, log)}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=240)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "complaint"),
    [
        ("d.push_range(d.get_event_attributes(message='left'))", "left open"),
        ("d.pop_range()", "had not opened"),
    ],
)
def test_unbalanced_ranges_are_found(
    probe: Path, tmp_path: Path, calls: str, complaint: str
) -> None:
    run(f"import nvtx; d = nvtx.get_domain('detect-video'); {calls}", probe, tmp_path / "log.tsv")
    with pytest.raises(AssertionError, match=complaint):
        read_log(tmp_path / "log.tsv")
