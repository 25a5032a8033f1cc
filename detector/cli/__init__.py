"""The command line: parse, call, print, exit code. One file a command, heavy imports late."""

from __future__ import annotations


def main() -> None:
    """Entry point of ``detect-video``."""
    import os
    import sys

    import click

    from detector.cli.group import cli
    from detector.errors import EXIT_INTERNAL, EXIT_INTERRUPTED

    try:
        sys.exit(cli.main(prog_name="detect-video", standalone_mode=False))
    except click.ClickException as error:
        if len(sys.argv) == 1:
            error.show()  # no argument at all: the help
        else:
            click.echo(f"detect-video: {' '.join(error.format_message().split())} See detect-video --help.", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # whoever read the help has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_INTERNAL)
    except click.Abort:  # Ctrl-C before the run had its own handlers
        sys.exit(EXIT_INTERRUPTED)
