"""Print a command's output. A test finds output that bypasses this module.

Names and messages may come from untrusted files, so we escape control characters (errors/text.py).
Letters that the terminal's encoding lacks are escaped too (streams.py).
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
    """Print one line. ``nl``: whether to print a line break after it."""
    click.echo(printable(line), err=err, nl=nl)


def print_json(document: Any) -> None:
    """Print a document. ``to_json`` has escaped all characters except ASCII."""
    from detector.core.session.codec import to_json

    click.echo(to_json(document), nl=False)


def terminal(piped_width: int) -> SafeConsole:
    """Return a console for tables on standard output. A pipe has COLUMNS or ``piped_width``."""
    from detector.core.terminal.console import SafeConsole

    rich_decides = os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty()
    return SafeConsole(width=None if rich_decides else piped_width)


def error_terminal() -> SafeConsole:
    from detector.core.terminal.console import SafeConsole

    return SafeConsole(stderr=True)
