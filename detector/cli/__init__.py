"""The command line. Each file is one command: parse, call, print, return an exit code.

``command``, ``options``, ``exits`` and ``group`` hold what the commands share.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of ``detect-video``."""
    import sys

    import click

    from detector.cli.exits import printing_failed, silence
    from detector.cli.group import cli
    from detector.errors import EXIT_INTERNAL, EXIT_INTERRUPTED

    _open_closed_streams()
    try:
        sys.exit(cli.main(prog_name="detect-video", standalone_mode=False))
    except click.ClickException as error:
        if len(sys.argv) == 1:
            error.show()  # no argument at all: the help
        else:
            message = " ".join(error.format_message().split())
            click.echo(f"detect-video: {message} See detect-video --help.", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of the help is gone
        silence()
        sys.exit(EXIT_INTERNAL)
    except OSError as error:  # the help could not be printed
        code = printing_failed(error)
        if code is None:
            raise
        sys.exit(code)
    except click.Abort:  # Ctrl-C before the run had its own handlers
        sys.exit(EXIT_INTERRUPTED)


def _open_closed_streams() -> None:
    """Opens /dev/null for every standard stream that the caller closed (`>&-`).

    Otherwise the first file that we open would get the stream's number, and what a library prints
    would be written into that file.
    """
    import os
    import sys

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
