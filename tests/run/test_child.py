"""A process that we start: its messages, its end, and the report of its death."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from multiprocessing import Pipe

import pytest

from detector.core.errors import UsageError, secrets
from detector.core.run.child import Child, end, listen, python_command, receive, send
from detector.core.run.signals import ROOT

HEAD = f"import os, sys, time; sys.path.insert(0, {ROOT!r})\n"


@dataclass(frozen=True)
class Word:
    text: str


@pytest.fixture
def start(tmp_path):
    made: list[Child] = []

    def make(code: str) -> Child:
        head = f"{HEAD}from detector.core.run.child import open_pipe, receive, send\n"
        made.append(
            Child(
                lambda pipe: [sys.executable, "-c", f"{head}parent = open_pipe({pipe})\n{code}"],
                tmp_path / "said.txt",
            )
        )
        return made[-1]

    yield make
    end(made)
    end(made)
    assert all(child.process.returncode is not None for child in made)


def test_messages_hide_nothing(monkeypatch):
    """What a worker opens may contain a password; printed and stored text does not."""
    monkeypatch.setattr(secrets, "_pattern", None)
    secrets.keep_secret("sesame-open-sesame")
    one, other = Pipe()
    send(one, Word("rtsp://u:sesame-open-sesame@host/\udce9"))
    assert receive(other, Word) == Word("rtsp://u:sesame-open-sesame@host/\udce9")
    one.send_bytes(b"[]")
    with pytest.raises(UsageError):
        receive(other, Word)


def test_the_last_message_ends_the_listening():
    one, other = Pipe()
    next_word = listen(other, Word, lambda word: word.text == "bye")
    for text in ("a", "bye"):
        send(one, Word(text))
        assert next_word().text == text
    one.close()  # the process would leave here, without the last word


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("print('my last words'); sys.exit(9)", "it ended with status 9 at once"),
        ("os.kill(os.getpid(), 11)", "it was ended by signal 11 (SIGSEGV) at once"),
        ("os.kill(os.getpid(), 9)", "because memory ran out"),
        ("parent.close(); time.sleep(0.3); sys.exit(3)", "status 3"),
    ],
)
def test_death_of_a_child_is_described_in_a_line(start, code, says):
    """Include a pipe that closes before the process ends."""
    child = start(code)
    with pytest.raises((EOFError, OSError)):
        receive(child.pipe, Word)
    assert says in child.describe_death("it", "at once")


@pytest.mark.slow
def test_one_that_does_not_leave_is_killed(start, monkeypatch):
    monkeypatch.setattr("detector.core.run.child.GRACE_S", 0.2)
    child = start(
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); import types\n"
        'parent.send_bytes(b\'{"text": "there"}\')\n'
        "time.sleep(1000)"
    )
    assert receive(child.pipe, Word).text == "there"
    end([child])
    assert child.process.returncode == -signal.SIGKILL


def test_the_command_ends_with_us_and_takes_no_package_of_the_current_folder(tmp_path):
    command = python_command("a.module", 7, tmp_path, "first(); ")
    assert command[:3] == [sys.executable, "-P", "-c"]
    code = command[3]
    assert code.index("first()") < code.index("end_with_parent") < code.index("main(7)")
    assert repr(str(tmp_path)) in code
    assert "None" in python_command("a.module", 7, None)[3]
