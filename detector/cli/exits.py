"""Errors -> one line on stderr and the documented exit code. No traceback for a user's mistake."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import click

from detector.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, DetectVideoError


@contextmanager
def exit_codes(interrupted: str = "stopped at once; what was being written stays under *.partial.*") -> Iterator[None]:
    """``interrupted``: what to say after a Ctrl-C that nobody below took care of."""
    try:
        yield
    except DetectVideoError as error:
        complain(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo(f"detect-video: {interrupted}", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output left (`| head`): nothing more to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_INTERNAL)
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except MemoryError as error:
        click.echo("detect-video: out of memory; try a smaller --batch or --size", err=True)
        sys.exit(_internal(error))
    except Exception as error:
        sys.exit(_internal(error))


def complain(error: DetectVideoError) -> None:
    """The message as one line, whatever a library put into it."""
    click.echo(f"detect-video: {' '.join(str(error).split())}", err=True)


def _internal(error: BaseException) -> int:
    handle, path = tempfile.mkstemp(prefix="detect-video-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    click.echo(f"detect-video: internal error, please report it with {path}: {summary}", err=True)
    return EXIT_INTERNAL
