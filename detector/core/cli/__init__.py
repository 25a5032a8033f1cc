"""Code that the commands share. Each command is a file in ``commands/`` of the core or a wing."""

from __future__ import annotations

from contextlib import suppress
from typing import NoReturn


def main() -> NoReturn:
    """Run ``detect-video``, from ``sys.argv`` to the exit code of the process."""
    import os
    import sys

    from detector.core.errors import EXIT_ENGINE, EXIT_INTERNAL, DetectVideoError
    from detector.core.run.limits import LEAST_FILES, check_files, keep_blas_alone

    keep_blas_alone()
    try:
        check_files(LEAST_FILES)
    except DetectVideoError as error:  # the limit on open files is too low for the imports below
        with suppress(AttributeError):  # a closed stderr is None
            sys.stderr.write(f"detect-video: {error}\n")
        sys.exit(error.exit_code)
    from detector.core.cli.exits import end
    from detector.core.cli.printing import guard_streams
    from detector.core.run.signals import Stopped, ignore_signals

    guard_streams()
    if any("://" in word for word in sys.argv[1:]):
        from detector.core.config.schema import flag_of, options
        from detector.core.errors.addresses import keep_command_line

        secret = [flag_of(leaf) for _, leaf in options() if "secret_path" in leaf.metadata]
        keep_command_line(sys.argv[1:], secret)
    stopped = False
    try:
        code = _run_command()
    except BaseException as error:
        stopped = isinstance(error, Stopped)
        code = end(error)
    ignore_signals()
    try:
        sys.stdout.flush()
    except BaseException as error:
        code = code or end(error)
    if stopped or code in (EXIT_INTERNAL, EXIT_ENGINE):
        # A normal exit would wait for threads of libraries, or crash in them ("terminate called").
        os._exit(code)
    sys.exit(code)


def _run_command() -> int:
    from detector.core.cli.group import cli

    try:
        # `--help` returns its exit code. Commands raise SystemExit.
        return int(cli.main(prog_name="detect-video", standalone_mode=False) or 0)
    except SystemExit as leaving:
        return int(leaving.code or 0)
