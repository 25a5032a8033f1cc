"""Write texts made from the schema: cfg/default.yaml, the table of options in docs/usage.md, and
the options of the Python API with their types (detector/core/api/options.py).

    python -m detector.core.config.reference     # in a checkout, after a change of schema.py

A test fails if one of them differs from the schema.
"""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

import yaml

from detector.core.config.schema import (
    choices_of,
    flag_of,
    help_of,
    option_groups,
    options,
    short_of,
)

# ``Detector`` takes the options of PYTHON_GROUPS except NOT_IN_PYTHON, and ALSO_IN_PYTHON. Options
# for writing and drawing are omitted, except ``blur``: in Python, the caller does that.
PYTHON_GROUPS = ("network", "runtime", "calibration", "selection", "input", "loop", "live")
NOT_IN_PYTHON = ("model", "engine", "self_timing")
ALSO_IN_PYTHON = ("blur", "infer_every", "zones")

HEAD = """\
# Every option of `detect-video` with its default. Generated from detector/core/config/schema.py by
# `python -m detector.core.config.reference`: change it there.
# Precedence, lowest first: this file < cfg/models/NAME.yaml < --config FILE < flags.
# In your own file an option may be in its group, as here, or at the top level.
"""
PYTHON_HEAD = '''\
"""The options of ``Detector`` with their types, for type checkers and editors.

Made from detector/core/config/schema.py by ``python -m detector.core.config.reference``: change it
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class Options(TypedDict, total=False):
    """Options of the command line under their names; docs/usage.md says what each does.

    Options for writing and drawing are not included: in Python you do that yourself.
    """

'''
WIDTH = 100  # columns
BEGIN = "<!-- options: made by python -m detector.core.config.reference -->\n"
END = "<!-- end of options -->\n"


def default_yaml() -> str:
    lines = [HEAD]
    for group in option_groups():
        lines.append(f"{group}:\n")
        for name, leaf in options():
            if name == group:
                text = " ".join([help_of(leaf), *_describe_limits(leaf, help_of(leaf))])
                lines += [f"  # {line}\n" for line in textwrap.wrap(text, WIDTH - len("  # "))]
                lines.append(f"  {leaf.name}: {_to_yaml(leaf.default)}\n")
    return "".join(lines)


def python_options() -> list[tuple[str, dataclasses.Field[Any]]]:
    return [
        (group, leaf)
        for group, leaf in options()
        if leaf.name in ALSO_IN_PYTHON
        or (group in PYTHON_GROUPS and leaf.name not in NOT_IN_PYTHON)
    ]


def python_types() -> str:
    """Return the text of detector/core/api/options.py, where a list may be any sequence."""
    lines = [PYTHON_HEAD]
    for _, leaf in python_options():
        kind = str(leaf.type).replace("tuple[str, ...]", "Sequence[str]")
        if also := leaf.metadata.get("also"):
            kind = kind.replace("str", f"str | {also}")
        lines.append(f"    {leaf.name}: {kind}\n")
    cameras = (leaf.name for group, leaf in python_options() if group == "live")
    named = ", ".join(f'"{name}"' for name in cameras if name != "repeat")
    lines.append("\n\n# Options that only apply to cameras.\n")
    return "".join([*lines, f"OF_CAMERAS = frozenset(({named}))\n"])


def options_table() -> str:
    lines = []
    for group in option_groups():
        lines.append(f"\n**{group}**\n\n| option | default | |\n|---|---|---|\n")
        for name, leaf in options():
            if name == group:
                default = "" if leaf.default is None else f"`{_to_yaml(leaf.default)}`"
                text = ". ".join(
                    [short_of(leaf).removesuffix("."), *_describe_limits(leaf, short_of(leaf))]
                )
                lines.append(f"| `{_flag_or_path(leaf)}` | {default} | {text} |\n")
    return "".join(lines).lstrip("\n")


def with_options_table(page: str) -> str:
    """Return the page with the current table between the marks BEGIN and END."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{options_table()}{END}{after}"


def _flag_or_path(leaf: dataclasses.Field[Any]) -> str:
    """Return the flags of an option, or its name in YAML if --help hides it."""
    meta = leaf.metadata
    if meta.get("hidden"):
        return f"{leaf.name}: (YAML)"
    flags = ", ".join(meta.get("flags", (flag_of(leaf),)))
    return flags if meta["metavar"] is None else f"{flags} {meta['metavar']}"


def _describe_limits(leaf: dataclasses.Field[Any], text: str) -> list[str]:
    """Return sentences for limits and choices that ``text`` does not state."""
    low, high = leaf.metadata.get("at_least"), leaf.metadata.get("at_most")
    sentences = []
    if low is not None and high is not None and f"to {high}" not in text:
        sentences.append(f"{_format_number(low)} to {_format_number(high)}.")
    missing = [choice for choice in choices_of(leaf) if choice not in text]
    if missing:
        sentences.append(f"One of {', '.join(choices_of(leaf))}.")
    return sentences


def _format_number(number: float) -> str:
    return str(int(number) if number == int(number) else number)


def _to_yaml(value: Any) -> str:
    return str(yaml.safe_dump(value)).removesuffix("...\n").strip()


def main() -> None:
    checkout = Path(__file__).parents[3]
    (checkout / "cfg/default.yaml").write_text(default_yaml(), encoding="utf-8")
    (checkout / "detector/core/api/options.py").write_text(python_types(), encoding="utf-8")
    page = checkout / "docs/usage.md"
    page.write_text(with_options_table(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
