"""``audit``: exit codes, JSON keys and malformed input."""

import json
from pathlib import Path

import pytest

from tests.cli.command import detect_video, run_ok
from tests.lab.report.sessions import CLIP, ran

pytestmark = pytest.mark.slow
ERROR = "model,latency (ms),fps\na,14.1,7.99\nb,15.0,9.39\n"
WARNING = "engine,precision,FPS,rounds\nort,fp32,40,5\nort,int8,90,5\n"
CLEAN = "model,FPS,rounds\na,40,5\nb,44,5\n"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    for name, text in (("bad", ERROR), ("warned", WARNING), ("clean", CLEAN)):
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "hostile.csv").write_text("model,FPS\na,\x1b[2J\n")
    (tmp_path / "unread.md").write_text("| engine | Latency |\n|---|---|\n| ort | 40.0 |\n")
    (tmp_path / "empty.md").write_text("# Nothing\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["clean.csv"], 0),
        (["warned.csv"], 0),
        (["bad.csv"], 8),
        (["bad.csv", "--fail-on", "never"], 0),
        (["warned.csv", "--fail-on", "warning"], 8),
        (["clean.csv", "--fail-on", "note"], 0),
        ([], 2),
        (["x.exe"], 2),
        (["bad.csv", "--machine", "colour=red"], 2),
        (["bad.csv", "--columns", "absent.yaml"], 2),
        (["--explain", "fps-against-latency"], 0),
        (["--explain", "all"], 0),
        (["--explain", "no-such"], 2),
        (["hostile.csv"], 3),
        (["empty.md"], 3),
        (["unread.md"], 3),
        (["absent.csv"], 3),
        (["absent.json"], 2),
    ],
)
def test_audit_exits_with_the_documented_code(words: list[str], code: int, tables: Path) -> None:
    process = detect_video("audit", *words, cwd=tables)
    assert process.returncode == code, process.stderr
    assert len(process.stderr.splitlines()) == (code != 0)
    assert (" and 0 runs, " in process.stdout) == (code in (0, 8) and words[0][0] != "-")
    assert "\x1b" not in process.stdout + process.stderr
    assert max(map(len, process.stdout.splitlines()), default=0) <= 80


def test_json_contains_findings_of_a_run_and_a_table(tables: Path) -> None:
    run = ran(tables / "run")
    process = detect_video("audit", run, "bad.csv", "--json", "--machine", "cores=2", cwd=tables)
    assert process.returncode == 8
    document = json.loads(process.stdout)
    assert (document["schema"], document["runs"]) == (1, 1)
    assert document["machine"] == {"cores": 2.0}
    assert document["counts"]["error"] == 1
    (error,) = [finding for finding in document["findings"] if finding["severity"] == "error"]
    assert (error["rule"], error["where"]) == ("fps-against-latency", ["bad.csv"])
    assert error["rows"] == ["a", "b"]
    names = [finding["name"] for finding in document["audited"]]
    assert {str(run), "bad.csv"} < {*names}


def test_run_prints_warnings_of_the_audit_only_if_verbose(tmp_path: Path) -> None:
    given = [CLIP, "--engine", "ort", "--frames", 3, "--threads", 64, "--concurrency", 2]
    for words, lines_expected in ((["-v"], True), ([], False)):
        process = run_ok(*given, *words, cwd=tmp_path)
        lines = [line for line in process.stdout.splitlines() if line.startswith("audit: ")]
        assert len(lines) == lines_expected
        assert all("more-threads-than-cores" in line for line in lines)
