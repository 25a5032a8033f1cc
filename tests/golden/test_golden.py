"""Every recorded command line still behaves the same: exit code, keys, rows, file names, pictures.

We compare only the command line and files; masks.py says what we skip and why. After a deliberate
change, ``python -m tests.golden.record NAME`` rewrites the recording (record.py).
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator

import pytest

from tests.golden.commands import COMMANDS, Command
from tests.golden.differing import differences
from tests.golden.observing import observe
from tests.golden.record import RECORDED
from tests.golden.running import Runner

pytestmark = pytest.mark.slow


def lacks(command: Command) -> list[str]:
    return [name for name in command.needs if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="session")
def runner(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """Start the commands in the table's order: slow ones first, two at a time.

    Where several processes of pytest share the tests (xdist), each runs what it is asked for.
    """
    callspecs = [
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.fspath.purebasename == "test_golden"
    ]
    asked = [spec.params["command"] for spec in callspecs if spec is not None]
    with Runner(tmp_path_factory.mktemp("golden") / "runs") as running:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            running.start(command for command in asked if not lacks(command))
        yield running


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_does_what_it_did(command: Command, runner: Runner) -> None:
    if missing := lacks(command):
        pytest.skip(f"machine: {', '.join(missing)} is not installed")
    was = json.loads((RECORDED / f"{command.name}.json").read_text(encoding="utf-8"))
    ran = runner.result(command)
    found = differences(was, json.loads(json.dumps(observe(ran))), command)
    for line in found.added:
        print(f"added: {line}")
    if found.broken:
        lines = "\n  ".join(found.broken)
        pytest.fail(
            f"{' '.join(command.argv)}\n  {lines}\nstderr: {ran.stderr[-500:]}", pytrace=False
        )


def test_every_recording_has_its_command_line() -> None:
    assert sorted(path.stem for path in RECORDED.glob("*.json")) == sorted(
        command.name for command in COMMANDS
    )
