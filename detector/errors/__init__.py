"""The one tree of errors, and the one table of exit codes.

    error                   code  meaning
                               0  done
    DetectVideoError           1  a bug, when nothing more precise fits
      UsageError               2  a wrong option, configuration key or value
      SourceError              3  a source that cannot be opened, or has no frame
      ModelError               4  a model, weights or names file that cannot be used
      EngineError              5  an engine that is absent or failed
      OutputError              6  an output or a session folder that cannot be written
                               7  done, but a part of a source was lost (``Source.damaged``): frames
                                  or files could not be read, or the file ended early
      GateError                8  a gate that was asked for has failed
                             130  interrupted (Ctrl-C)
                             143  terminated

Codes without an error belong to runs that finish and write their outputs.
"""

EXIT_DONE = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_SOURCE = 3
EXIT_MODEL = 4
EXIT_ENGINE = 5
EXIT_OUTPUT = 6
EXIT_DAMAGED = 7
EXIT_GATE = 8
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class DetectVideoError(Exception):
    """Base of all errors that the user sees: one line that says what is wrong and how to fix it."""

    exit_code = EXIT_INTERNAL


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
