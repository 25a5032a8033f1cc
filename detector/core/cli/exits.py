"""Turn errors into one line on stderr, without a traceback, and the documented exit code."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from detector.core.cli.printing import echo
from detector.core.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    LOGGED,
    DetectVideoError,
    OutputError,
)
from detector.core.errors.private import user_cache
from detector.core.errors.secrets import redact
from detector.core.errors.writing import write_whole
from detector.core.run.signals import Stopped, raise_on_signals, raise_swallowed
from detector.core.wings import MissingPartError

LOG = "detect-video-error.log"
PARTIAL_KEPT = "stopped at once; unfinished output stays under *.partial.*"


@contextmanager
def exit_codes(interrupted: str) -> Iterator[None]:
    """End the process with the exit code of the error raised in the block."""
    with raise_on_signals():
        try:
            yield
        except Stopped as stopped:
            stopped.says = PARTIAL_KEPT if stopped.writing else interrupted
            raise
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            raise_swallowed()  # raises Stopped if a library turned a signal into this error
            sys.exit(end(error))


def end(error: BaseException) -> int:
    """Print why the command ended, in one line. Return the exit code."""
    if isinstance(error, DetectVideoError):
        complain(error)
        return error.exit_code
    if isinstance(error, Stopped):
        _say(f"{error.word}: {error.says}" if error.says else error.word)
        return error.exit_code
    if isinstance(error, click.ClickException):
        # click 8.2 raises NoArgsIsHelpError. Its message is the help, whose layout must stay.
        if len(sys.argv) == 1 or type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            _say(f"{_end_sentence(error.format_message())} See {_help_command(error)}.")
        return error.exit_code
    if isinstance(error, MissingPartError):
        _say(str(error))
        return EXIT_INTERNAL
    if isinstance(error, KeyboardInterrupt | click.Abort):
        _say("interrupted")
        return EXIT_INTERRUPTED
    from detector.core.run.limits import blame_limit

    limit_error = blame_limit(error)
    if limit_error is not None:
        complain(limit_error)
        return limit_error.exit_code
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    _say(f"internal error, please report it with {_find_or_write_log(error)}: {summary}")
    return EXIT_INTERNAL


def _end_sentence(message: str) -> str:
    line = " ".join(message.split())
    return line if line.endswith((".", "?", "?)")) else f"{line}."


def _help_command(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    words = context.command_path.split()[1:] if context is not None else []
    return " ".join(["detect-video", *([] if words == ["detect"] else words), "--help"])


def complain(error: DetectVideoError) -> None:
    """Print the error's message and notes, each as one line even if it contains line breaks."""
    from detector.core.run.limits import folder_is_gone

    hint = "; the current folder was deleted: go to another one with cd" if folder_is_gone() else ""
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(LOGGED)]
    for text in (str(error), *notes):
        _say(" ".join(text.split()) + hint)


def _say(text: str) -> None:
    echo(f"detect-video: {text}", err=True)


def _find_or_write_log(error: BaseException) -> str:
    for note in getattr(error, "__notes__", ()):
        if note.startswith(LOGGED):
            return str(note.removeprefix(LOGGED))
    trace = redact("".join(traceback.format_exception(error)))
    text = trace.encode(errors="backslashreplace")
    with suppress(OutputError, OSError):
        target = user_cache() / LOG
        write_whole(target, text, ours=True, private=True)
        return str(target)
    with suppress(OSError):  # use a unique name, since other accounts may write to this folder
        file, path = tempfile.mkstemp(prefix="detect-video-", suffix=".log")
        with os.fdopen(file, "wb") as log:
            log.write(text)
        return path
    return "the command line (the traceback could not be written)"
