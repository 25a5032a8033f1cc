"""The configuration: every option of the program. Each is a field made by ``option``."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str, metavar: str | None = None, **extra: Any) -> Any:
    """Return a field of the configuration tree, which also becomes a command-line option.

    ``help`` is the long text. The short text, of one line, is ``short`` if given, otherwise the
    first sentence of ``help``. ``common``: --help alone shows the option; ``--help all`` shows all.

    Keys of ``extra``: ``choices``: words or a function that lists them. ``at_least``, ``at_most``:
    limits, which numbers must have. ``flags``: flags other than ``--name``. ``hidden``: not in
    --help. ``bare``: the value if the flag has none. ``also``: another type, accepted by the Python
    API. ``secret_path``: the path in the option's address is secret.
    """
    return field(default=default, metadata={"help": help, "metavar": metavar, **extra})
