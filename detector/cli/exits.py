"""Turns errors into one line on stderr and the documented exit code.

A user's mistake never prints a traceback.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import click

from detector.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_OUTPUT, DetectVideoError


@contextmanager
def exit_codes(interrupted: str) -> Iterator[None]:
    """Ends the process with the code of whatever the block raises.

    ``interrupted``: what to say after a Ctrl-C that nobody below took care of.
    """
    try:
        yield
    except DetectVideoError as error:
        complain(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo(f"detect-video: {interrupted}", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output is gone (`| head`), so there is nobody to complain to.
        silence()
        sys.exit(EXIT_INTERNAL)
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except MemoryError as error:
        click.echo("detect-video: out of memory; try a smaller --batch or --size", err=True)
        sys.exit(_internal(error))
    except Exception as error:
        sys.exit(printing_failed(error) or _internal(error))


def printing_failed(error: BaseException) -> int | None:
    """The exit code, after a complaint, when printing failed (`> /dev/full`); else None."""
    frames = traceback.extract_tb(error.__traceback__)
    printers = (
        sys.modules[name].__file__ or "" for name in ("click", "rich") if name in sys.modules
    )
    if not isinstance(error, OSError) or not frames[-1].filename.startswith(
        tuple(map(os.path.dirname, printers))
    ):
        return None
    silence()
    click.echo(
        f"detect-video: cannot print to standard output: {error.strerror}; "
        "check where it is redirected to",
        err=True,
    )
    return EXIT_OUTPUT


def silence() -> None:
    """Sends standard output to /dev/null from here on.

    Otherwise the interpreter would fail once more when it flushes what is left.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(error: DetectVideoError) -> None:
    """Prints the message as one line, even if a library put line breaks into it."""
    click.echo(f"detect-video: {' '.join(str(error).split())}", err=True)


def _internal(error: BaseException) -> int:
    handle, path = tempfile.mkstemp(prefix="detect-video-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    click.echo(f"detect-video: internal error, please report it with {path}: {summary}", err=True)
    return EXIT_INTERNAL
