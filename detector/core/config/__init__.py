"""The configuration: every option of the program. Each is a field made by ``option``."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str, metavar: str | None = None, **extra: Any) -> Any:
    """Return a field of the configuration tree, which also becomes a command-line option.

    ``help`` is the long text. The short text, of one line, is ``short`` if given, otherwise the
    first sentence of ``help``. ``common``: plain --help shows the option; ``--help all`` shows all.

    Keys of ``extra``: ``choices``: words or a function that lists them. ``at_least``, ``at_most``:
    limits; every number needs both. ``flags``: flags other than ``--name``. ``hidden``: not in
    --help. ``bare``: the value if the flag is given without one. ``also``: another type that the
    Python API accepts. ``secret_path``: if the option is an address, its path is secret.
    """
    return field(default=default, metadata={"help": help, "metavar": metavar, **extra})
