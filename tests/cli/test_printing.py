"""Untrusted text cannot control the terminal, and no encoding stops a run."""

import ast
import contextlib
import io
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from detector.core.cli import printing
from detector.core.errors.text import as_cell, from_cell, printable, printable_page
from detector.core.terminal.console import SafeConsole
from tests.attacks.sessions import run
from tests.cli.command import COMMAND, run_ok
from tests.conftest import CHECKOUT
from tests.sources.clips import write_video

PACKAGE = CHECKOUT / "detector"
EVIL = (
    "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202egpj.exe\u2066 one\ntwo\r\x7f "
    "[/bold] [red]x :smile: \udcff"
)
ALLOWED = {
    "core/cli/__init__.py": {"sys.stderr.write"},  # if too few files may be open for the imports
    "core/cli/printing.py": {"click.echo"},
    "core/terminal/console.py": {"Console"},
    "core/jobs/doctor/attempt.py": {"print"},  # JSON for the parent process
}
PRINTERS = {
    *(
        "click.echo click.secho click.echo_via_pager Console print sys.stderr.write "
        "sys.stdout.write"
    ).split()
}


@pytest.mark.slow
def test_only_allowed_modules_print():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        calls = {
            ast.unparse(node.func)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        }
        if used := calls & PRINTERS:
            found[str(path.relative_to(PACKAGE))] = used
    assert {name: used - ALLOWED.get(name, set()) for name, used in found.items()} == {
        name: set() for name in found
    }


def test_function_printable_escapes_control_characters():
    assert printable("naïve 视频 [x] \\n") == "naïve 视频 [x] \\n"
    shown = printable(EVIL)
    assert shown.isprintable()
    assert "\\x1b[31mred\\x1b]0;title\\x07 \\x9b2J \\u202egpj.exe\\u2066 one\\ntwo\\r\\x7f" in shown
    assert printable(shown) == shown
    assert printable_page("a\n\tb\x1b\udc80") == "a\n\tb\\x1b\\udc80"


@pytest.mark.parametrize(
    "text", ["", "a", "=1", "'=1", "''=1", "'a", "+", "-1", "@", "\t", "\r", "a=1", "'"]
)
def test_csv_cell_is_never_a_formula_and_can_be_read_back(text):
    assert as_cell(text)[:1] not in tuple("=+-@\t\r")
    assert from_cell(as_cell(text)) == text


def table_with(cell):
    one = Table(title=cell, caption=cell)
    one.add_column(cell)
    one.add_row(cell)
    one.add_row(Text(cell, style="bold"))
    return one


@pytest.mark.parametrize(
    "make_renderable",
    [
        str,
        Text,
        table_with,
        lambda text: Group(text, Text(text)),
        lambda text: Panel(text, title=Text(text)),
    ],
)
def test_console_escapes_control_characters(make_renderable):
    out = io.StringIO()
    SafeConsole(file=out, width=400, force_terminal=True, color_system=None).print(
        make_renderable(EVIL)
    )
    text = out.getvalue()
    assert not {one for one in text if not one.isprintable()} - {"\n"}
    assert "\\x1b[31mred" in text
    assert "one\\ntwo" in text
    assert "[/bold] [red]x :smile: \\udcff" in text


def test_our_own_styles_are_kept():
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, color_system="standard", width=80)
    console.print(Text("a\x1b[32mb", style="bold red"))
    assert "\x1b[1;31m" in out.getvalue()
    assert "\x1b[32m" not in out.getvalue()


def test_echo_prints_one_line(capsys):
    printing.echo(EVIL)
    assert capsys.readouterr().out == f"{printable(EVIL)}\n"


def test_unencodable_letter_is_escaped(tmp_path):
    with (tmp_path / "out").open("w+b", buffering=0) as raw:
        before = io.TextIOWrapper(io.BytesIO(), "latin-1", "strict")
        stream = printing._wrap_text(raw, before, lines=False)
        stream.write("ü 视\n")
        stream.flush()
    assert (tmp_path / "out").read_bytes() == "ü \\u89c6\n".encode("latin-1")


@pytest.mark.parametrize(
    "command",
    [
        ["report", f"runs/{EVIL}"],
        ["diff", EVIL, EVIL],
        [EVIL],
        ["models", "show", EVIL],
        ["profile", "--nsys", EVIL],
    ],
)
def test_error_with_control_characters_in_a_name_is_one_printable_line(
    command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(FileNotFoundError):
        code, output = run(command)
        assert code in (2, 3, 4)
        assert output.endswith("\n")
        assert output[:-1].isprintable()


NAMES = [
    os.fsdecode(b"bad\xff\xfc name.mp4"),
    "视频 =1.mp4",
    "\x1b[31m\u202eevil\nname.mp4",
    "=1+1.mp4",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_run_of_a_source_with_an_unusual_name_can_be_reported(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(CHECKOUT / "videos/street.mp4", name)
    code, output = run(
        [name, *"--engine null --frames 8 --no-video --save csv,jsonl --run-dir run".split()]
    )
    assert (code, output) == (0, "")
    for kind in ("html", "table", "json", "csv", "trace"):
        assert run(["report", "run", "--format", kind])[0] == 0
    assert run(["diff", "run", "run"])[0] == 0
    assert json.loads(Path("run/session.json").read_text())["video"]["path"] == name
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert not {one for one in page if not one.isprintable()} - {"\n", "\t"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "POSIX"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=str,
)
def test_output_is_printed_on_a_terminal_with_another_encoding(more, tmp_path):
    """Use a new process, because the interpreter decides on encodings when it starts."""
    name = "视频 ü.mp4"
    shutil.copy(CHECKOUT / "videos/street.mp4", tmp_path / name)
    arguments = (name, "--engine", "null", "--frames", 8, "--no-video", "--run-dir", "run")
    for command in (arguments, ("report", "run", "--format", "table"), ("report", "run")):
        process = subprocess.run(
            [*COMMAND, *map(str, command)],
            cwd=tmp_path,
            env={**os.environ, **more},
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        assert (process.returncode, process.stderr) == (0, b"")
    assert (tmp_path / "run/report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("forced", [{}, {"FORCE_COLOR": "1"}])
def test_forced_terminal_gets_live_progress(tmp_path, forced):
    write_video(tmp_path / "in.mp4", 9)
    done = run_ok("in.mp4", "--engine", "null", "--no-video", cwd=tmp_path, env=forced)
    hides_cursor = "\x1b[?25l" in done.stdout  # rich hides the cursor while it redraws a line
    assert hides_cursor == bool(forced)
