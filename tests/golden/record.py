"""Rewrite the recordings: ``python -m tests.golden.record [NAME...]``.

Do this only for a deliberate change of behaviour. A recording shows what users get, so a commit
that changes a recording also adds a line to CHANGELOG.md. Every engine must be installed.
"""

import json
import sys
import tempfile
from pathlib import Path

from tests.golden.commands import COMMANDS
from tests.golden.observing import observe
from tests.golden.running import Runner

RECORDED = Path(__file__).parent / "recorded"


def main(names: list[str]) -> None:
    chosen = [command for command in COMMANDS if not names or command.name in names]
    RECORDED.mkdir(exist_ok=True)
    if not names:
        for path in RECORDED.glob("*.json"):
            path.unlink()
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder) / "golden") as runner:
        runner.start(chosen)
        for command in chosen:
            document = observe(runner.result(command))
            path = RECORDED / f"{command.name}.json"
            path.write_text(as_text(document), encoding="utf-8")
            print(f"{path.name}: exit {document['exit']}, {path.stat().st_size} bytes")


def as_text(document: dict) -> str:
    """Format JSON for readable diffs: a line for each row and for each key of a flat document."""
    lines = []
    for key, value in document.items():
        if isinstance(value, dict) and key == "content":
            parts = ",\n".join(
                f"  {json.dumps(name)}: {_block(one, '   ')}" for name, one in value.items()
            )
            lines.append(f' "content": {{\n{parts}\n }}')
        else:
            lines.append(f" {json.dumps(key)}: {_block(value, '  ')}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _block(value: object, indent: str) -> str:
    if isinstance(value, dict) and value:
        parts = [f"{indent}{json.dumps(key)}: {_dump(one)}" for key, one in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent[1:]}}}"
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return "[\n" + ",\n".join(indent + _dump(one) for one in value) + f"\n{indent[1:]}]"
    return _dump(value)


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1:])
