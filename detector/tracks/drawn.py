"""Put lines and zones that a viewer draws during a run into the text of the --zones file."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial

import yaml

from detector.core.errors import UsageError
from detector.core.errors.parsing import refuse_unknown
from detector.core.errors.reading import read_text
from detector.core.errors.yaml_parsing import parse_yaml
from detector.tracks.zones_file import ZoneSet, ZonesFile, mapping, read_zones

DRAWN, KEPT = ("size", "lines", "zones"), ("classes", "stays")
MARK = "# Drawn on the page of a run:\n"
_dump = partial(yaml.safe_dump, default_flow_style=None, sort_keys=False, allow_unicode=True)


def put_drawing(path: str, camera: str, drawing: str) -> tuple[ZonesFile, str, str]:
    """Replace a camera's lines and zones with ``drawing`` (YAML or JSON). Return the file, its text
    and a list of the changes. Other options stay. Comments above ``MARK`` stay, too, unless
    the text there has a key ``cameras`` of its own. Raises UsageError."""
    text = read_text(path, "a file of lines and zones") if os.path.lexists(path) else ""
    before = read_zones(path, text).of_camera(camera) if text else ZoneSet()
    content = parse_yaml(text, path) or {}
    where, cameras = f"{path}: cameras.{camera}", content.get("cameras") or {}
    drawn = mapping(where, parse_yaml(drawing, f"{where}: the drawing"))
    refuse_unknown(where, "key", drawn, DRAWN)
    own = cameras.get(camera)
    for group in DRAWN[1:]:
        old, new = (content if own is None else own).get(group) or {}, drawn.get(group) or {}
        for name, shape in new.items() if isinstance(new, dict) else ():
            if isinstance(shape, dict) and isinstance(before_it := old.get(name), dict):
                new[name] = {**{key: before_it[key] for key in KEPT if key in before_it}, **shape}
        drawn[group] = new
    new_content = {**content, "cameras": {**cameras, camera: {**(own or {}), **drawn}}}
    head, parsed = text.partition(MARK)[0].rstrip(), None
    written = f"{head}\n{MARK}{_dump({'cameras': new_content['cameras']})}".lstrip()
    with suppress(UsageError):  # fails if the user's text has ``cameras``, too
        parsed = parse_yaml(written, path)
    if parsed != new_content:
        written = str(_dump(new_content))
    file = read_zones(path, written)
    both = before, file.of_camera(camera)
    was, now = ({shape.name: each.key_of(shape) for shape in each.shapes} for each in both)
    changed = (name for name in now if was.get(name) != now[name])
    words = [f"{name} {'changed' if name in was else 'added'}" for name in changed]
    words += [f"{name} removed" for name in was if name not in now]
    return file, written, ", ".join(words) or "nothing changed"
