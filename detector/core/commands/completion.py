"""``detect-video completion SHELL``: print code that lets a shell complete words."""

from __future__ import annotations

import click

from detector.core.cli.command import subcommand
from detector.core.cli.printing import echo

SHELLS = ("bash", "zsh", "fish")


@subcommand(
    light=True,
    examples=(
        "echo 'eval \"$(detect-video completion bash)\"' >> ~/.bashrc",
        "echo 'eval \"$(detect-video completion zsh)\"' >> ~/.zshrc",
        "detect-video completion fish > ~/.config/fish/completions/detect-video.fish",
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print shell code that completes commands, options and values."""
    from click.shell_completion import get_completion_class

    from detector.core.cli.group import cli

    kind = get_completion_class(shell)
    assert kind is not None  # click knows all three
    for line in kind(cli, {}, "detect-video", "_DETECT_VIDEO_COMPLETE").source().splitlines():
        echo(line)
