"""Declare an option as a field of the configuration tree in schema.py."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str, metavar: str | None = None, **extra: Any) -> Any:
    """Return a field of the tree, which is an option of the command line too.

    ``help`` is the long text; the short one, of one line, is its first sentence unless ``short`` is
    given. ``common``: --help alone shows it.

    ``extra``: ``choices`` (words, or a function that lists them), ``at_least`` and ``at_most``
    (every number has both), ``flags`` if they are not ``--name``, ``hidden`` from --help, ``bare``:
    the value of a flag that no value follows, ``also``: another type that Python accepts.
    """
    return field(default=default, metadata={"help": help, "metavar": metavar, **extra})
