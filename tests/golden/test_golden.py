"""Every recorded command line still behaves the same: exit code, keys, rows, file names, pictures.

masks.py says which values we do not compare, and why. After a deliberate change,
``python -m tests.golden.record NAME`` rewrites the recording (record.py).
"""

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


def missing_libraries(command: Command) -> list[str]:
    return [name for name in command.needs if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="session")
def runner(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """Start the commands in the order of ``COMMANDS``: slow ones first, two at a time.

    With xdist, each process only runs the commands of its own tests.
    """
    callspecs = [
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.fspath.purebasename == "test_golden"
    ]
    requested = [spec.params["command"] for spec in callspecs if spec is not None]
    with Runner(tmp_path_factory.mktemp("golden") / "runs") as running:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            running.start(command for command in requested if not missing_libraries(command))
        yield running


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_behaviour_equals_the_recording(command: Command, runner: Runner) -> None:
    if missing := missing_libraries(command):
        pytest.skip(f"machine: {', '.join(missing)} is not installed")
    recorded = json.loads((RECORDED / f"{command.name}.json").read_text(encoding="utf-8"))
    ran = runner.result(command)
    result = differences(recorded, json.loads(json.dumps(observe(ran))), command)
    for line in result.added:
        print(f"added: {line}")
    if result.broken:
        lines = "\n  ".join(result.broken)
        pytest.fail(
            f"{' '.join(command.argv)}\n  {lines}\nstderr: {ran.stderr[-500:]}", pytrace=False
        )


def test_recordings_and_command_lines_match() -> None:
    assert sorted(path.stem for path in RECORDED.glob("*.json")) == sorted(
        command.name for command in COMMANDS
    )
