"""Secrets are hidden in all output, however they are encoded."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from detector.core.errors import SourceError
from detector.core.errors.addresses import Address, keep_command_line
from detector.core.errors.secrets import keep_secret, redact
from detector.core.errors.text import printable
from detector.core.session.codec import to_json


@pytest.mark.parametrize(
    ("whole", "shown"),
    [
        ("rtsp://cam/stream", "rtsp://cam/stream"),
        ("rtsp://admin:Pa55word@cam:554/s", "rtsp://***@cam:554/s"),
        ("rtsp://admin@cam/s", "rtsp://***@cam/s"),
        ("rtsp://a:b@[::1]:554/s", "rtsp://***@[::1]:554/s"),
        ("rtsp://a:p@ss:w@cam/s", "rtsp://***@cam/s"),  # an @ in the password
        ("rtsp://a:pa/ss@cam/s", "rtsp://***@cam/s"),  # a slash in the password
        ("http://cam:8080/a@b?k=T0ken123", "http://cam:8080/a@b?k=***"),  # an @ in the path
        ("http://cam/v?token=T0ken123&channel=1", "http://cam/v?token=***&channel=***"),
        ("http://cam/v?T0ken123", "http://cam/v?***"),
        ("http://cam/v?a=&b", "http://cam/v?a=&***"),
        ("http://cam/v#T0ken123", "http://cam/v#***"),
        ("rtmp://host/app/live_K3yK3y", "rtmp://host/app/***"),
        ("rtmp://host/app", "rtmp://host/app"),
        (
            "rtsp://h/user=admin_password=Pa55word_channel=1",
            "rtsp://h/user=***_password=***_channel=1",
        ),
        ("RTSP://u:Pa55word@h/S", "RTSP://***@h/S"),
        ("0", "0"),
        ("a/b?c=d.mp4", "a/b?c=d.mp4"),  # a file name, not an address
    ],
)
def test_shown_address_hides_its_secrets(whole: str, shown: str) -> None:
    address = Address(whole)
    assert (str(address), repr(address), address.whole) == (shown, shown, whole)
    if "Pa55word" in whole:
        assert "Pa55word" not in redact(f"{whole}: 401 {address.whole!r} Pa55word")


def test_address_of_a_webhook_hides_its_path() -> None:
    assert str(Address("https://hooks.example/T00/B00/xyzXYZ123", hide_path=True)) == (
        "https://hooks.example/***"
    )
    assert redact("no route to xyzXYZ123") == "no route to ***"


@pytest.mark.parametrize(
    "password", ["S3cret!#", "q\"uo'te\\d", "per%20cent", "ümläut-x", "a b c d"]
)
def test_every_form_of_a_password_is_hidden(password: str) -> None:
    from urllib.parse import quote

    Address(f"rtsp://admin:{quote(password, safe='')}@cam/s")
    forms = [
        password,
        quote(password, safe=""),
        json.dumps(password),
        repr(password),
        base64.b64encode(f"admin:{password}".encode()).decode(),
        base64.b64encode(f"admin:{quote(password, safe='')}".encode()).decode(),
    ]
    for form in forms:
        assert password not in redact(f"x {form} y")
        assert form.strip("\"'") not in redact(f"x {form} y")


def test_short_secrets_are_hidden_only_as_whole_words() -> None:
    keep_secret("abc")
    keep_secret("main")
    Address("rtsp://h/s?subtype=main&n=1")
    assert redact("abc domain mainly") == "abc domain mainly"
    assert redact("the main stream") == "the *** stream"


@pytest.mark.parametrize(
    ("whole", "secret"),
    [
        ("rtsp://T0ken@cam/s", "T0ken"),  # a login without a password
        ("rtsp://admin:Pa55@cam/s", "admin:Pa55"),
        ("http://cam/v?code=sixsix", "sixsix"),
        ("http://cam/v?sixsix", "sixsix"),
        ("http://cam/v?pwd=four", "four"),  # hidden because of the parameter's name
        ("http://cam/v#four", "four"),
        ("http://cam/key=four/v", "four"),
        ("rtmp://host/app/four", "four"),
        ("http://cam/v?code=fives", ""),  # short, and may be an ordinary word
        ("http://cam/v?fives", ""),
    ],
)
def test_secret_of_an_address_is_hidden_in_other_text(whole: str, secret: str) -> None:
    Address(whole)
    hidden = "no ***, no picture" if secret else "no fives, no picture"
    assert redact(f"no {secret or 'fives'}, no picture") == hidden


def test_addresses_compare_by_their_whole_text() -> None:
    one = Address("rtsp://a:Pa55word@cam/s")
    assert one == Address("rtsp://a:Pa55word@cam/s")
    assert one != Address("rtsp://b:Pa55word@cam/s")
    assert one != "rtsp://a:Pa55word@cam/s"
    assert len({one, Address("rtsp://a:Pa55word@cam/s")}) == 1


def test_error_and_json_document_and_printable_text_hide_secrets() -> None:
    keep_secret("Pa55word")
    assert printable("x Pa55word\x1b") == "x ***\\x1b"
    assert str(SourceError("401 for Pa55word")) == "401 for ***"
    document = {"a": ["Pa55word", {"rtsp://Pa55word/": 1}], "Pa55word": 2}
    assert json.loads(to_json(document)) == {"a": ["***", {"rtsp://***/": 1}], "Pa55word": 2}


def test_table_hides_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    from detector.core.terminal.console import SafeConsole

    keep_secret("Pa55word")
    table = Table("url", "Pa55word")
    table.add_row("rtsp://Pa55word@x", Text("Pa55word", style="bold"))
    SafeConsole(width=80).print(table)
    printed = capsys.readouterr().out
    assert "***" in printed
    assert "Pa55word" not in printed


@pytest.mark.parametrize(
    "words",
    [
        ["rtsp://u:Pa55word@h/s"],
        ["--events=x", "-o", "http://h/?k=Pa55word"],
        ["--webhook", "https://h/Pa55word"],
        ["--webhook=https://h/x/Pa55word"],
        ["look at rtsp://u:Pa55word@h/s, please"],
    ],
)
def test_secrets_of_a_command_line_are_hidden(words: list[str]) -> None:
    keep_command_line(words, ["--webhook"])
    assert "Pa55word" not in redact(" ".join(words))


@pytest.mark.slow
def test_output_and_files_of_a_failed_run_contain_no_secret(tmp_path: Path) -> None:
    """The command line has user info, a query and a webhook."""
    planted = ["Us3rPlanted", "Pa55Planted", "T0kenPlanted", "H00kPlanted"]
    command = [
        f"rtsp://{planted[0]}:{planted[1]}@127.0.0.1:9/s?token={planted[2]}",
        *("--webhook", f"https://127.0.0.1:9/{planted[3]}"),
        *("--model", f"http://{planted[0]}:{planted[1]}@x/y.onnx"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "detector", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode in (2, 3, 4)
    assert "***" in done.stdout + done.stderr
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    everything = (done.stdout + done.stderr).encode() + b"".join(written)
    for secret in planted:
        assert secret.encode() not in everything
