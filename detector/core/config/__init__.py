"""The configuration: every option of the program. Each is a field made by ``option``."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str, metavar: str | None = None, **extra: Any) -> Any:
    """Return a field of the configuration tree, which also becomes a command-line option.

    ``help`` is the long text; the short one, of one line, is its first sentence unless ``short`` is
    given. ``common``: a plain --help shows the option; ``--help all`` shows all.

    ``extra``: ``choices``: words, or a function that lists them; ``at_least``, ``at_most``: limits,
    required for numbers; ``flags``: if other than ``--name``; ``hidden``: not in --help; ``bare``:
    what the flag means if no value follows; ``also``: another type that the Python API accepts;
    ``secret_path``: the path of its address is a secret.
    """
    return field(default=default, metadata={"help": help, "metavar": metavar, **extra})
