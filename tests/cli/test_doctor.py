"""``doctor`` on this machine, with an engine that crashes."""

import json

import pytest

from detector.core import __version__, engines
from tests.cli.command import detect_video
from tests.nvtx_log import build_probe, probe_env, read_log
from tests.outside_engines import with_engines


@pytest.mark.slow
def test_every_engine_is_tried_and_a_crash_is_reported(tmp_path):
    process = detect_video("doctor", "--json", cwd=tmp_path, env=with_engines(tmp_path, "crashing"))
    findings = json.loads(process.stdout)
    assert process.returncode == findings["exit"]["code"] == 0, process.stderr
    engines_found = {engine["name"]: engine for engine in findings["engines"]}
    assert set(engines_found) == {*engines.names(), "crashing"}
    assert engines_found["ort"]["usable"]
    assert engines_found["ort"]["tried"]
    assert engines_found["ort"]["precisions"]["fp32"] is None
    assert not engines_found["crashing"]["usable"]
    assert "SIGSEGV" in engines_found["crashing"]["reason"]
    for engine in engines_found.values():
        assert engine["usable"] or engine["reason"]
    assert [path.name for path in tmp_path.iterdir()] == ["outside"], "doctor left a file"


@pytest.mark.slow
def test_unwritable_engines_folder_exits_6_with_a_table_within_100_columns(tmp_path):
    process = detect_video("doctor", "--quick", "--engines-dir", "/proc/nowhere", cwd=tmp_path)
    assert process.returncode == 6
    assert max(map(len, process.stdout.splitlines())) <= 100
    for word in ("usable", "--precision int8", "NVTX", "RAPL", "/proc/nowhere", __version__):
        assert word in process.stdout
    assert "cannot run (exit 6)" in process.stdout


@pytest.mark.slow
def test_doctor_reports_attached_nvtx_tool_and_warns_of_a_missing_one(tmp_path):
    def examine(env):
        process = detect_video("doctor", "--quick", "--json", cwd=tmp_path, env=env)
        return json.loads(process.stdout)

    log = tmp_path / "log"
    assert examine(probe_env(build_probe(tmp_path), log))["nvtx"]["attached"] is True
    assert "doctor" in {one.name for one in read_log(log)}
    findings = examine({"NVTX_INJECTION64_PATH": "/none.so"})
    assert findings["nvtx"]["attached"] is False
    assert any("/none.so" in warning for warning in findings["warnings"])
