"""The tree of errors, and the table of exit codes.

    error                   code  meaning
                               0  done
    DetectVideoError           1  a bug, if no more precise code applies
      UsageError               2  a wrong option, configuration key or value; a damaged session
      SourceError              3  a source that cannot be opened, or has no frame
      ModelError               4  a model, weights or names file that cannot be used
      EngineError              5  an engine that is absent or failed, or a limit of the system
                                  (ulimit, cgroup) that is too low for the run
      OutputError              6  an output or a session folder that cannot be written
                               7  done, but a part of a source was lost (``ReadCounts.damaged``):
                                  frames or files could not be read or were damaged, or the file
                                  ended early; for a batch job: some items failed
      GateError                8  a requested gate has failed
                             129  hung up: the terminal was closed
                             130  interrupted (Ctrl-C)
                             143  terminated

If a code has no entry in the column "error", the run wrote its outputs, even after a signal.
"""

from __future__ import annotations

import re

from detector.core.errors.secrets import redact

LONGEST = 2000  # characters; longer messages are cut: they may quote a name of 10 MB

EXIT_DONE = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_SOURCE = 3
EXIT_MODEL = 4
EXIT_ENGINE = 5
EXIT_OUTPUT = 6
EXIT_DAMAGED = 7
EXIT_GATE = 8
EXIT_HUNG_UP = 129
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
STOPPED_CODES = (EXIT_HUNG_UP, EXIT_INTERRUPTED, EXIT_TERMINATED)

LOGGED = "traceback: "  # prefix of an exception's note; the path of the traceback's file follows


class DetectVideoError(Exception):
    """Base of all errors that the user sees: one line that says what is wrong and how to fix it.

    Messages quote names from untrusted files. The constructor escapes characters that would move
    the terminal's cursor, joins lines, cuts the middle out of long text, and hides secrets.

        >>> from detector import Detector
        >>> try:
        ...     Detector("missing.onnx")
        ... except DetectVideoError as error:
        ...     print(type(error).__name__, error.exit_code)
        ModelError 4
    """

    exit_code = EXIT_INTERNAL

    def __init__(self, message: object = "") -> None:
        super().__init__(_join_lines(redact(str(message))))


class UsageError(DetectVideoError):
    exit_code = EXIT_USAGE


class SourceError(DetectVideoError):
    exit_code = EXIT_SOURCE


class ModelError(DetectVideoError):
    exit_code = EXIT_MODEL


class EngineError(DetectVideoError):
    exit_code = EXIT_ENGINE


class OutputError(DetectVideoError):
    exit_code = EXIT_OUTPUT


class GateError(DetectVideoError):
    exit_code = EXIT_GATE


def error_of_code(exit_code: int) -> type[DetectVideoError]:
    """Return the error class of an exit code, which may be that of another process."""
    kinds = (UsageError, SourceError, ModelError, EngineError, OutputError, GateError)
    return next((kind for kind in kinds if kind.exit_code == exit_code), DetectVideoError)


def _join_lines(message: str) -> str:
    if len(message) > LONGEST:
        message = f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"
    if message.isprintable():
        return message
    return "".join(map(_escape, re.sub(r"\s*[\r\n]\s*", " ", message)))


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
