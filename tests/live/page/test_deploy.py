"""docs/deploy.md: its files parse, and their options and metrics are ours."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest
import yaml

from detector.core.commands.detect import command
from tests.conftest import CHECKOUT
from tests.live.page.conftest import skip_without_libraries
from tests.live.page.rehearsal import Rehearsal

TEXT = (CHECKOUT / "docs/deploy.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)
    assert found
    return found


def test_every_option_is_one():
    [unit], composed = blocks("ini"), yaml.safe_load(blocks("yaml")[0])
    start = re.search(r"ExecStart=\S+ (.*?[^\\])\n", unit, re.S)[1].replace("\\\n", " ")
    lines = [start, composed["services"]["detect-video"]["command"]]
    lines += re.findall(r"^detect-video (.*)$", TEXT, re.M)
    assert len(lines) == 3
    for line in lines:
        context = click.Context(command)
        command.parse_args(context, line.split())
        assert context.params["serve"]


def test_the_unit(tmp_path):
    [unit] = blocks("ini")
    assert "SuccessExitStatus=143\n" in unit
    assert "ExecReload=/bin/kill -USR1 $MAINPID\n" in unit
    if shutil.which("systemd-analyze") is None:
        pytest.skip("machine: no systemd-analyze")
    file = tmp_path / "detect-video.service"
    file.write_text(re.sub(r"/opt/\S+/detect-video\b", "/bin/true", unit))
    words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", file]
    done = subprocess.run(words, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "detect-video.service" in line]
    assert said == []


def test_the_files_of_a_container():
    composed, scraping, alarms = map(yaml.safe_load, blocks("yaml"))
    service = composed["services"]["detect-video"]
    assert service["read_only"] is True
    assert service["healthcheck"]["test"][0] == "CMD"
    compile(service["healthcheck"]["test"][-1], "healthcheck", "exec")
    assert scraping["scrape_configs"][0]["job_name"] == "detect-video"
    assert [rule["alert"] for rule in alarms["groups"][0]["rules"]]


def test_an_image_gets_what_pip_needs_and_nothing_that_lies_beside_it():
    """What docs/deploy.md has users put into the checkout (a token!) would stay in a layer."""
    lines = (CHECKOUT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    taken = {rule[1:] for rule in rules if rule.startswith("!")}
    assert all((CHECKOUT / name).exists() for name in taken)
    assert {"detector", "cfg", "setup.py", "pyproject.toml", "constraints.txt"} < taken
    assert {"README.md", "LICENSE", "NOTICE"} < taken, "setup.py reads them"
    composed = yaml.safe_load(blocks("yaml")[0])
    beside = {"compose.yaml", "cameras.yaml", composed["services"]["detect-video"]["env_file"]}
    beside |= {secret["file"] for secret in composed["secrets"].values()}
    assert not {name.removeprefix("./") for name in beside} & taken


def test_alarms_look_at_metrics_that_are_there():
    skip_without_libraries()
    from detector.live.page.metrics import PageFigures, exposition, registry_of

    figures = Rehearsal("door").figures
    page = PageFigures(0, 0, 0, 0, 0, 0, 0, {})
    metrics = exposition(registry_of(figures, lambda: page)).decode()
    for name in set(re.findall(r"detect_video_\w+", TEXT)):
        assert f"\n{name}" in metrics, name
    assert '{camera="door",quantile="0.99"}' in metrics
