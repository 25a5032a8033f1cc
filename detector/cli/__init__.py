"""The command line: parse, call, print, exit code. One file a command, heavy imports late."""

from __future__ import annotations


def main() -> None:
    """Entry point of ``detect-video``."""
    from detector.cli.group import cli

    cli(prog_name="detect-video")
