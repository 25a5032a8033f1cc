"""The one way out for what a command prints; a test finds what goes another way.

Names and messages come from files that anybody may have written, so text is made printable here
(errors/text.py). What the terminal's encoding lacks is an escape too (streams.py).
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
    """Prints one line. ``nl``: with its line end."""
    click.echo(printable(line), err=err, nl=nl)


def print_text(text: str) -> None:
    """Prints lines, each made printable."""
    for line in text.splitlines():
        echo(line)


def print_json(document: Any) -> None:
    """The text of a document is ASCII on its own lines, so it goes out as it is."""
    from detector.core.session.codec import to_json

    click.echo(to_json(document), nl=False)


def terminal(piped_width: int) -> SafeConsole:
    """Standard output for tables. In a pipe they are COLUMNS or ``piped_width`` wide."""
    from detector.core.terminal.console import SafeConsole

    asked = os.environ.get("COLUMNS", "").isdecimal()  # rich reads it
    return SafeConsole(width=None if asked or sys.stdout.isatty() else piped_width)


def error_terminal() -> SafeConsole:
    from detector.core.terminal.console import SafeConsole

    return SafeConsole(stderr=True)
