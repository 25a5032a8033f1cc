"""A webhook request described by a file, for receivers that need their own format.

--webhook @a.yaml reads, for example:

url: https://api.telegram.org/bot${TOKEN}/sendMessage   # the variable is treated as a secret
headers: {Priority: high}
json: {chat_id: 1, text: "{camera}: {class}"}           # or body: TEXT; default: the event's JSON
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

import msgspec

from detector.core.errors import UsageError
from detector.core.errors.reading import read_text
from detector.core.errors.secrets import keep_secret
from detector.core.errors.yaml_parsing import parse_yaml
from detector.live.base import Event, to_utc
from detector.live.events.wording import EventDocument, as_document, as_json

FIELDS = (*(one.encode_name for one in msgspec.structs.fields(EventDocument)), "time")
_PART = re.compile(r"(\$?)\{(\w+)\}")
_UNQUOTED = re.compile(r'\{"(\w+)": null\}')  # YAML reads an unquoted {camera} as a mapping
_HeaderName = Annotated[str, msgspec.Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]  # RFC 9110


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request. Its texts may contain fields such as {camera}."""

    url: str
    headers: dict[_HeaderName, str | int] = {}
    body: str | None = None
    json: dict[str, Any] | list[Any] | None = None

    def fill(self, target: str, event: Event) -> tuple[str, dict[str, str | bytes], bytes]:
        """Return target, headers and body for an event. ``target``: the URL's path and query."""
        values: dict[str, Any] = {**dict.fromkeys(FIELDS), **as_document(event)}
        values["time"] = to_utc(event.time_s).astimezone().isoformat(" ", "seconds")
        texts = {name: "" if value is None else str(value) for name, value in values.items()}
        kind, body = "application/json", as_json(event)
        if self.json is not None:
            # A text that consists of one field becomes the field's value, perhaps a number or null.
            alone = {f"{{{name}}}": value for name, value in values.items()}
            body = json.dumps(_change(self.json, lambda text: alone.get(text, _fill(texts, text))))
        elif self.body is not None:
            kind, body = "text/plain; charset=utf-8", _fill(texts, self.body)
        headers: dict[str, str | bytes] = {"Content-Type": kind}
        for name, text in self.headers.items():
            filled = re.sub(r"[\x00-\x1f\x7f]+", " ", _fill(texts, str(text)))
            headers[name.title()] = filled.encode(errors="replace")
        escaped = {name: quote(text, safe="", errors="replace") for name, text in texts.items()}
        return _fill(escaped, target), headers, body.encode(errors="replace")


def read_template(path: str, environment: Mapping[str, str] = os.environ) -> Template:
    """Read a template. Raises UsageError for unknown fields and unset variables."""
    cure = "check the path after --webhook @"
    content = parse_yaml(read_text(path, "the request of a webhook", cure=cure), path)
    if (match := _UNQUOTED.search(json.dumps(content, default=str))) is not None:
        raise UsageError(f"{path}: put quotes around the text with {{{match[1]}}}")

    def expand(match: re.Match[str]) -> str:
        if not match[1] and match[2] in FIELDS:
            return match[0]
        if not match[1]:
            raise UsageError(f"{path}: unknown field {match[0]}; known: {', '.join(FIELDS)}")
        if not (value := environment.get(match[2])):
            raise UsageError(f"{path}: the environment variable {match[2]} is not set; set it")
        keep_secret(value)
        return value

    try:
        return msgspec.convert(_change(content, partial(_PART.sub, expand)), Template)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}; the keys are url, headers, and body or json") from error


def _fill(values: Mapping[str, str], text: str) -> str:
    return _PART.sub(lambda match: values.get(match[2], match[0]), text)


def _change(given: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(given, dict):
        return {key: _change(one, change) for key, one in given.items()}
    if isinstance(given, list):
        return [_change(one, change) for one in given]
    return change(given) if isinstance(given, str) else given
