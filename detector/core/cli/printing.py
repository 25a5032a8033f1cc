"""Print a command's output. A test finds output that bypasses this module.

Names and messages come from untrusted files, so we make text printable (errors/text.py). Letters
that the terminal's encoding lacks become escapes as well (streams.py).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from detector.core.errors.text import printable

if TYPE_CHECKING:
    from detector.core.terminal.console import SafeConsole


def echo(line: str, *, err: bool = False, nl: bool = True) -> None:
    """Print one line. ``nl``: end it."""
    click.echo(printable(line), err=err, nl=nl)


def print_text(text: str) -> None:
    for line in text.splitlines():
        echo(line)


def print_json(document: Any) -> None:
    """Print a document. Its text is ASCII on our own lines, so it needs no escaping."""
    from detector.core.session.codec import to_json

    click.echo(to_json(document), nl=False)


def terminal(piped_width: int) -> SafeConsole:
    """Return a console for tables on standard output; COLUMNS or ``piped_width`` wide in a pipe."""
    from detector.core.terminal.console import SafeConsole

    asked = os.environ.get("COLUMNS", "").isdecimal()  # rich reads it too
    return SafeConsole(width=None if asked or sys.stdout.isatty() else piped_width)


def error_terminal() -> SafeConsole:
    from detector.core.terminal.console import SafeConsole

    return SafeConsole(stderr=True)
