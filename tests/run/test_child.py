"""Child processes: their messages, how they end, and how an unexpected end is described."""

import signal
import sys
from dataclasses import dataclass
from multiprocessing import Pipe

import pytest

from detector.core.errors import UsageError, secrets
from detector.core.run.child import Child, end, listen, python_command, receive, send
from detector.core.run.parent import ROOT

HEAD = f"import os, sys, time; sys.path.insert(0, {ROOT!r})\n"


@dataclass(frozen=True)
class Message:
    text: str


@pytest.fixture
def start(tmp_path):
    children: list[Child] = []

    def make(code: str) -> Child:
        head = f"{HEAD}from detector.core.run.child import open_pipe, receive, send\n"
        children.append(
            Child(
                lambda pipe: [sys.executable, "-c", f"{head}parent = open_pipe({pipe})\n{code}"],
                tmp_path / "output.txt",
            )
        )
        return children[-1]

    yield make
    end(children)
    end(children)
    assert all(child.process.returncode is not None for child in children)


def test_messages_keep_secrets_readable(monkeypatch):
    """A worker needs the password of its source. Only printed and stored text hides passwords."""
    monkeypatch.setattr(secrets, "_pattern", None)
    secrets.keep_secret("sesame-open-sesame")
    child, parent = Pipe()
    send(child, Message("rtsp://u:sesame-open-sesame@host/\udce9"))
    assert receive(parent, Message) == Message("rtsp://u:sesame-open-sesame@host/\udce9")
    child.send_bytes(b"[]")
    with pytest.raises(UsageError):
        receive(parent, Message)


def test_listening_ends_with_the_last_message():
    child, parent = Pipe()
    next_message = listen(parent, Message, lambda message: message.text == "bye")
    for text in ("a", "bye"):
        send(child, Message(text))
        assert next_message().text == text
    child.close()  # without the last message, this would end our process


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
def test_unexpected_end_of_a_child_is_described_in_one_line(start, code, says):
    child = start(code)
    with pytest.raises((EOFError, OSError)):
        receive(child.pipe, Message)
    assert says in child.describe_death("it", "at once")


@pytest.mark.slow
def test_child_that_ignores_sigterm_is_killed(start, monkeypatch):
    monkeypatch.setattr("detector.core.run.child.GRACE_S", 0.2)
    child = start(
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); import types\n"
        'parent.send_bytes(b\'{"text": "there"}\')\n'
        "time.sleep(1000)"
    )
    assert receive(child.pipe, Message).text == "there"
    end([child])
    assert child.process.returncode == -signal.SIGKILL


def test_command_ends_with_its_parent_and_ignores_the_current_folder(tmp_path):
    command = python_command("a.module", 7, tmp_path, "first(); ")
    assert command[:3] == [sys.executable, "-P", "-c"]
    code = command[3]
    assert code.index("first()") < code.index("end_with_parent") < code.index("main(7)")
    assert repr(str(tmp_path)) in code
    assert "None" in python_command("a.module", 7, None)[3]
