"""doctor on this machine, with an engine that dies."""

from __future__ import annotations

import json

import pytest

from detector.core import engines
from tests.cli.command import detect_video
from tests.nvtx_log import build_probe, probe_env, read_log
from tests.outside_engines import with_engines


@pytest.mark.slow
def test_every_engine_is_judged_and_one_that_dies_is_named(tmp_path):
    process = detect_video("doctor", "--json", cwd=tmp_path, env=with_engines(tmp_path, "crashing"))
    findings = json.loads(process.stdout)
    assert process.returncode == findings["exit"]["code"] == 0, process.stderr
    judged = {engine["name"]: engine for engine in findings["engines"]}
    assert set(judged) == {*engines.names(), "crashing"}
    assert judged["ort"]["usable"]
    assert judged["ort"]["tried"]
    assert judged["ort"]["precisions"]["fp32"] is None
    assert not judged["crashing"]["usable"]
    assert "SIGSEGV" in judged["crashing"]["reason"]
    for engine in judged.values():
        assert engine["usable"] or engine["reason"]
    assert [path.name for path in tmp_path.iterdir()] == ["outside"], "it leaves nothing"


@pytest.mark.slow
def test_the_table_and_a_folder_that_cannot_be_written(tmp_path):
    process = detect_video("doctor", "--quick", "--engines-dir", "/proc/nowhere", cwd=tmp_path)
    assert process.returncode == 6
    assert max(map(len, process.stdout.splitlines())) <= 100
    for word in (
        "engine",
        "usable",
        "--precision int8",
        "NVTX",
        "RAPL",
        "/proc/nowhere",
        "cannot run (exit 6)",
    ):
        assert word in process.stdout


@pytest.mark.slow
def test_doctor_reports_attached_nvtx_tool_and_warns_of_a_missing_one(tmp_path):
    log = tmp_path / "log"
    process = detect_video(
        "doctor", "--quick", "--json", cwd=tmp_path, env=probe_env(build_probe(tmp_path), log)
    )
    assert json.loads(process.stdout)["nvtx"]["attached"] is True
    assert "doctor" in {one.name for one in read_log(log)}
    process = detect_video(
        "doctor", "--quick", "--json", cwd=tmp_path, env={"NVTX_INJECTION64_PATH": "/none.so"}
    )
    findings = json.loads(process.stdout)
    assert findings["nvtx"]["attached"] is False
    assert any("/none.so" in warning for warning in findings["warnings"])
