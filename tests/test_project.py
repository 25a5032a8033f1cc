"""Files for GitHub, PyPI and other tools agree with setup.py, scripts/ and each other."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import yaml

import detector.core
from tests.conftest import CHECKOUT


def text_of(path: str) -> str:
    return (CHECKOUT / path).read_text(encoding="utf-8")


def jobs(workflow: str) -> dict[str, Any]:
    return dict(yaml.safe_load(text_of(f".github/workflows/{workflow}.yml"))["jobs"])


def test_setup_and_workflow_have_the_same_pythons():
    named = re.findall(r"Python :: (3\.\d+)", text_of("setup.py"))
    assert f'python_requires=">={named[0]}"' in text_of("setup.py")
    assert jobs("test")["tests"]["strategy"]["matrix"]["python"] == named


def test_workflows_run_the_programs_of_the_checkout():
    all_jobs = [*jobs("test").values(), *jobs("release").values()]
    steps = [step for job in all_jobs for step in job["steps"]]
    programs = re.findall(r"scripts/\w+", " ".join(step.get("run", "") for step in steps))
    assert set(programs) == {f"scripts/{name}" for name in ("test", "demo", "docs", "release")}
    assert all(os.access(CHECKOUT / program, os.X_OK) for program in programs)


def test_commit_hooks_run_the_checks_of_scripts_test():
    [repo] = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]
    checks = re.findall(r'^step "[^"]+" "\$python" (-m .+)$', text_of("scripts/test"), re.M)
    assert [f".venv/bin/python {one}" for one in checks] == [one["entry"] for one in repo["hooks"]]


def test_options_of_scripts_test_may_follow_a_path(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(CHECKOUT / "scripts/test", tmp_path / "scripts")
    stubs = 'apt-get() { :; }; make_venv() { echo "$part ${rest[*]} ${fast[*]}"; exit; }'
    (tmp_path / "scripts/set_up.sh").write_text(stubs)
    command = ["bash", tmp_path / "scripts/test", "tests/x.py", "-k", "a b", "--fast", "-n0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split() == "fast tests/x.py -k a b -n0 -m not slow".split(), done.stderr


def test_version_and_address_are_the_same_everywhere():
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["version"] == detector.core.__version__
    assert f"## {citation['version']} ({citation['date-released']})" in text_of("CHANGELOG.md")
    files = [file for one in ("*.md", "*.cff", ".github/**/*.yml") for file in CHECKOUT.glob(one)]
    texts = " ".join(file.read_text(encoding="utf-8") for file in files)
    named = re.findall(r"https://github\.com/[\w-]+/detect-video", texts)
    assert len(named) >= 4
    assert set(named) == {detector.core.__address__}


@pytest.mark.slow
def test_site_has_no_warning_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, CHECKOUT / "scripts/docs", "--to", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # 1 if there was a warning
    pages = {page.name: page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    assert re.findall(r'(?:src=|<link[^>]+href=)"https?:[^"]+', " ".join(pages.values())) == []
    assert 'id="detector.core.api.Detector.stream"' in pages["api.html"]
    assert "street.mp4" in pages["report.html"]
    documents = json.loads((tmp_path / "search/search_index.json").read_text(encoding="utf-8"))[
        "docs"
    ]
    assert any("skip-still" in one["text"] for one in documents)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # allow Jupyter's warnings
def test_notebook_runs(tmp_path, monkeypatch):
    pytest.importorskip("ipykernel")
    client, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setattr(sys, "path", [*sys.path, f"{sys.prefix}/supervision"])  # has pandas
    if find_spec("pandas") is None:
        pytest.skip("machine: pandas is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(CHECKOUT), *sys.path]))
    (tmp_path / "videos").symlink_to(CHECKOUT / "videos")
    (tmp_path / "notebooks").mkdir()
    book = nbformat.reads(text_of("notebooks/street.ipynb"), as_version=4)
    client.execute(book, cwd=str(tmp_path / "notebooks"))
    picture, table, counts, passes = [one.outputs[-1] for one in book.cells if one.get("outputs")]
    assert "image/png" in picture.data
    assert "vehicle" in table.data["text/plain"]
    assert "('middle', 'crosses', 'vehicle')" in counts.data["text/plain"]
    assert "infer" in passes.text
