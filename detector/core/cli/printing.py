"""Print a command's output, even if a standard stream is closed, full, or without a reader. A test
fails if other code prints without this module.

Names and messages may come from untrusted files, so we escape control characters (errors/text.py).
Letters that the terminal's encoding lacks are escaped, too.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

import click

from detector.core.errors import OutputError, UsageError
from detector.core.errors.secrets import redact
from detector.core.errors.text import printable

if TYPE_CHECKING:
    from detector.core.terminal.console import SafeConsole

GONE = (errno.EPIPE, errno.EIO)  # errors if the reader of a pipe (`| head`) or terminal is gone
_CLOSED: list[str] = []  # the standard streams that the caller closed


def echo(line: str, *, err: bool = False, nl: bool = True) -> None:
    """Print one line. ``nl``: whether to print a line break after it."""
    click.echo(printable(line), err=err, nl=nl)


def print_json(document: Any) -> None:
    """Print a document. ``to_json`` has escaped all characters except ASCII."""
    from detector.core.session.codec import to_json

    click.echo(to_json(document), nl=False)


def terminal(piped_width: int) -> SafeConsole:
    """Return a console for tables on standard output. In a pipe, tables are as wide as COLUMNS
    says, or ``piped_width`` characters if it is not set."""
    from detector.core.terminal.console import SafeConsole

    rich_decides = os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty()
    return SafeConsole(width=None if rich_decides else piped_width)


def error_terminal() -> SafeConsole:
    from detector.core.terminal.console import SafeConsole

    return SafeConsole(stderr=True)


class _StandardOutput(io.FileIO):
    """The first error raises OutputError, unless the reader is gone. Later output is discarded."""

    _lost = False

    def write(self, data: Any, /) -> int:
        if not self._lost:
            try:
                return super().write(data)  # if this writes a part, the buffer writes the rest
            except OSError as error:
                self._lost = True
                self._complain(error)
        return memoryview(data).nbytes

    def _complain(self, error: OSError) -> None:
        if error.errno not in GONE:
            raise OutputError(
                f"cannot print to standard output: {error.strerror}; check where it is "
                "redirected to"
            ) from error


class _Errors(_StandardOutput):
    """Standard error as bytes. Failed writes are ignored: there is nowhere left to report them."""

    def _complain(self, error: OSError) -> None:
        pass


def check_standard_output(owners: Mapping[str, bool]) -> None:
    """Raise UsageError if several options write to standard output. Raise OutputError if one does,
    but standard output is closed. ``owners``: option -> whether it writes to standard output."""
    writers = [option for option, writes in owners.items() if writes]
    if len(writers) > 1:
        raise UsageError(
            f"{' and '.join(writers)} both write to standard output; omit one, or name a file"
        )
    if writers and "stdout" in _CLOSED:
        raise OutputError(f"{writers[0]}: standard output is closed; omit >&-, or write to a file")


def take_standard_output() -> int:
    """Return a new descriptor of standard output. Afterwards, libraries print to standard error."""
    sys.stdout.flush()
    taken = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return taken


def guard_streams() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` with streams that handle failed writes."""
    _open_closed()
    with suppress(OSError):
        sys.stdout.flush()  # the user's sitecustomize.py may have printed something
    sys.stdout = _wrap_text(_StandardOutput(1, "w", closefd=False), sys.stdout, os.isatty(1))
    sys.stderr = _wrap_text(_Errors(2, "w", closefd=False), sys.stderr, True, _ErrorText)


def keep_others_out() -> None:
    """Reserve standard output for us: redirect what libraries print there to standard error."""
    before = sys.stdout
    raw = getattr(getattr(before, "buffer", None), "raw", None)
    if isinstance(raw, _StandardOutput) and raw.fileno() == 1:
        ours = take_standard_output()
        sys.stdout = _wrap_text(_StandardOutput(ours, "w"), before, os.isatty(ours))


class _ErrorText(io.TextIOWrapper):
    """Standard error as text. Hides secrets, even in warnings, logs and tracebacks of threads."""

    def write(self, text: str, /) -> int:
        super().write(redact(text))
        return len(text)


def _wrap_text(
    raw: io.FileIO, before: TextIO, lines: bool, kind: type[io.TextIOWrapper] = io.TextIOWrapper
) -> io.TextIOWrapper:
    return kind(
        io.BufferedWriter(raw),
        encoding=before.encoding,
        errors="backslashreplace",  # a letter that the terminal lacks must not end the program
        newline="\n",
        line_buffering=lines,
    )


def _open_closed() -> None:
    """Open /dev/null for each standard stream that the caller closed (`>&-`)."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            _CLOSED.append(name)
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is ``number``
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
