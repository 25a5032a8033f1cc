"""Test that deploy/ and docs/deploy.md match each other and the program's options and metrics."""

import json
import re
import subprocess
from types import SimpleNamespace

import click
import yaml

from detector.core.commands.detect import command
from detector.live.base import ZoneFigures
from tests.conftest import CHECKOUT
from tests.live.page.conftest import skip_without_libraries
from tests.live.page.fake_run import FakeRun

TEXT = (CHECKOUT / "docs/deploy.md").read_text(encoding="utf-8")
UNIT, IMAGE, COMPOSED, DASHBOARD = (
    (CHECKOUT / "deploy" / name).read_text(encoding="utf-8")
    for name in ("detect-video.service", "Dockerfile", "compose.yaml", "grafana.json")
)
SERVICE = yaml.safe_load(COMPOSED)["services"]["detect-video"]


def blocks(language: str) -> list[str]:
    matches = re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)
    assert matches
    return matches


def test_commands_in_deploy_files_have_valid_options():
    start = re.search(r"ExecStart=\S+ (.*?[^\\])\n", UNIT, re.S)[1].replace("\\\n", " ")
    lines = [start, SERVICE["command"]]
    lines += re.findall(r"^detect-video (.*)$", TEXT, re.M)
    assert len(lines) == 3
    for line in lines:
        context = click.Context(command)
        command.parse_args(context, line.split())
        assert context.params["serve"]
    checks = re.findall(r"^Exec(StartPre|Reload)=/opt\S+ (.*)$", UNIT, re.M)
    assert checks == [(when, f"{start.split()[0]} --check") for when in ("StartPre", "Reload")]


def test_systemd_accepts_the_unit(tmp_path):
    assert "SuccessExitStatus=143\n" in UNIT
    assert "ExecReload=/bin/kill -USR1 $MAINPID\n" in UNIT
    file = tmp_path / "detect-video.service"
    file.write_text(re.sub(r"/opt/\S+/detect-video\b", "/bin/true", UNIT))
    words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", file]
    done = subprocess.run(words, capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "detect-video.service" in line]
    assert complaints == []


def test_compose_service_matches_the_image():
    """compose.yaml has the Dockerfile's user, folders and program, and the same port everywhere."""
    instructions = dict(re.findall(r"^(FROM|USER|WORKDIR|ENTRYPOINT) (.*)$", IMAGE, re.M))
    [(uid, home)] = re.findall(r"useradd --uid (\d+) .*--home-dir (\S+) detect-video$", IMAGE, re.M)
    [program] = json.loads(instructions["ENTRYPOINT"])
    [venv] = re.findall(r"-m venv (\S+)", IMAGE)
    assert instructions["USER"] == "detect-video"
    assert instructions["WORKDIR"] == home
    assert program == f"{venv}/bin/detect-video"
    folder = CHECKOUT / "deploy" / SERVICE["build"]["context"]
    assert folder.resolve() == CHECKOUT
    assert (folder / SERVICE["build"]["dockerfile"]).read_text() == IMAGE
    targets = {volume.split(":")[1] for volume in SERVICE["volumes"]}
    words = SERVICE["command"].split()
    assert targets == {words[0], home}
    assert words[words.index("-o") + 1].startswith(f"{home}/")
    assert f"chown {uid} token" in TEXT
    named = {volume.split(":")[0] for volume in SERVICE["volumes"] if volume[0] not in "./"}
    assert named == set(yaml.safe_load(COMPOSED)["volumes"])
    assert set(SERVICE["secrets"]) == set(yaml.safe_load(COMPOSED)["secrets"])
    token = words[words.index("--token-file") + 1]
    assert token in {f"/run/secrets/{name}" for name in SERVICE["secrets"]}
    port = words[words.index("--serve") + 1].rpartition(":")[2]
    assert [mapped.rpartition(":")[2] for mapped in SERVICE["ports"]] == [port]
    assert SERVICE["read_only"] is True
    kind, python, flag, health = SERVICE["healthcheck"]["test"]
    assert (kind, python, flag) == ("CMD", f"{venv}/bin/python", "-c")
    compile(health, "healthcheck", "exec")
    assert f":{port}/healthz" in health


def test_prometheus_files_are_valid():
    scraping, alarms = map(yaml.safe_load, blocks("yaml"))
    assert scraping["scrape_configs"][0]["job_name"] == "detect-video"
    assert [rule["alert"] for rule in alarms["groups"][0]["rules"]]


def test_dashboard_has_the_fields_that_grafana_needs():
    """The fields come from Grafana 12's types (npm: @grafana/schema). The dashboard's queries
    were tried on Prometheus 2.42."""
    board = json.loads(DASHBOARD)
    assert board.keys() >= {"title", "uid", "schemaVersion", "panels", "templating", "time"}
    names = {variable["name"] for variable in board["templating"]["list"]} | {"__range"}
    assert {*re.findall(r"\$\{?(\w+)", DASHBOARD)} - {"__all"} == names
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel.keys() >= {"type", "title", "gridPos", "datasource", "fieldConfig", "options"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert all(target["expr"] and target["refId"] for target in panel["targets"])


def test_docker_image_contains_what_pip_needs_and_no_secrets():
    """The image must not contain files that users add to the checkout, such as a token."""
    lines = (CHECKOUT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    included = {rule[1:] for rule in rules if rule.startswith("!")}
    assert all((CHECKOUT / name).exists() for name in included)
    assert {"detector", "cfg", "setup.py", "pyproject.toml", "constraints.txt"} < included
    assert {"README.md", "LICENSE", "NOTICE"} < included, "setup.py reads them"
    composed = yaml.safe_load(COMPOSED)
    private = {"compose.yaml", "cameras.yaml", SERVICE["env_file"]}
    private |= {secret["file"] for secret in composed["secrets"].values()}
    assert not {name.removeprefix("./") for name in private} & included


def test_alarms_and_dashboard_use_existing_metrics():
    skip_without_libraries()
    from prometheus_client.exposition import generate_latest

    from detector.live.page.metrics import make_registry

    run = FakeRun("door")
    shape = SimpleNamespace(name="yard")
    run.set("door", zones=(ZoneFigures(shape, {"person": (2, 1)}, 1, ()),))
    counts = {
        name: SimpleNamespace(skipped=0, refused=0, requests={})
        for name in ("streams", "access", "gate")
    }
    page = SimpleNamespace(hub=run.hub, connections=(), **counts)
    metrics = generate_latest(make_registry(run.figures, page)).decode()
    text = re.sub(r"\w+_\(in_total\|out_total\|inside\)", "", TEXT + DASHBOARD)
    for name in set(re.findall(r"detect_video_\w+", text)):
        assert re.search(rf"^{name}\b", metrics, re.M), name
    assert '{camera="door",quantile="0.99"}' in metrics
    assert "\ndetect_video_engine_stalled_seconds" in metrics
