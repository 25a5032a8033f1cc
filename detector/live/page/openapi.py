"""The OpenAPI 3.1 description of the page's API.

``python -m detector.live.page.openapi docs/openapi.json`` writes it; a test checks that file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from detector.core.session.codec import dedent_descriptions
from detector.live.events.wording import EventDocument
from detector.live.page import documents

DOCUMENTS = (
    documents.LiveDocument,
    documents.StreamDocument,
    documents.HistoryDocument,
    EventDocument,
    documents.CountsDocument,
    documents.RecordingsDocument,
    documents.ChangeDocument,
    documents.ErrorDocument,
)
SCHEMAS = "#/components/schemas/"
PICTURE = {"type": "string", "contentMediaType": "image/jpeg"}
TEXT = {"type": "string"}


def _parameter(name: str, place: str, schema: dict[str, Any], text: str = "") -> dict[str, Any]:
    required = {"required": True} if place == "path" else {}
    described = {"description": text} if text else {}
    return {"name": name, "in": place, **required, "schema": schema, **described}


CAMERA = _parameter(
    *("camera", "path", {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,40}$"}),
    "Name of a camera or, in a run over files, of a file.",
)
WIDTH = _parameter(
    *("width", "query", {"type": "integer", "minimum": 16, "maximum": 8192}),
    "Approximate maximum width in pixels; default: as the camera sends it.",
)
RATE = _parameter(
    *("rate", "query", {"type": "number", "minimum": 0.1, "maximum": 25}),
    "Maximum number of pictures per second for each camera.",
)
KINDS = {"enum": ["video", "snapshots"]}
DAYS = {"type": "integer", "minimum": 1, "maximum": 366, "default": 30}
LIMIT = {"type": "integer", "minimum": 1, "maximum": 500, "default": 100}


def description() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(DOCUMENTS, ref_template=SCHEMAS + "{name}")
    dedent_descriptions(schemas)
    camera = "/api/streams/{camera}"
    change = "Accepted; the camera's state changes asynchronously."
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "detect-video, a run's page",
            "version": "1",
            "description": "Served by --serve. If the run has a token, send Authorization: Bearer "
            "TOKEN. GET changes nothing.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}, {"session": []}],
        "paths": {
            "/": _get("The web page.", "text/html", TEXT),
            "/healthz": {
                "get": {
                    "summary": "Returns 200 if a camera is live, the engine responds, and rows "
                    "and recordings are written.",
                    "security": [],
                    "responses": {
                        "200": _response("ok", "text/plain", TEXT),
                        "503": _response("not ok", "text/plain", TEXT),
                    },
                }
            },
            "/metrics": _get("Metrics for Prometheus.", "text/plain", TEXT),
            "/openapi.json": _get("This description.", "application/json", {"type": "object"}),
            "/api/streams": _document("All streams and the run as a whole.", "LiveDocument"),
            camera: _document("One stream.", "StreamDocument", CAMERA),
            f"{camera}/snapshot.jpg": _get(
                "The camera's next frame, with boxes drawn.", "image/jpeg", PICTURE, CAMERA, WIDTH
            ),
            f"{camera}/stream.mjpg": _get(
                "Frames as they arrive, with boxes drawn; a slow client skips some.",
                *("multipart/x-mixed-replace", TEXT, CAMERA, WIDTH, RATE),
            ),
            f"{camera}/start": _post("Start a camera of cameras.yaml.", change),
            f"{camera}/stop": _post("Stop a camera of cameras.yaml.", change),
            f"{camera}/zones": _post(
                "Set a camera's lines and zones. Body: its section of a --zones file (JSON, YAML).",
                "Accepted; they are used from the next frame on.",
                *("size", "lines", "zones"),
            ),
            "/api/pictures": _get(
                "Frames of several cameras in one response; X-Camera names the camera of a part.",
                "multipart/x-mixed-replace",
                TEXT,
                _parameter("cameras", "query", TEXT, "Comma-separated names; default: all."),
                WIDTH,
                RATE,
            ),
            "/api/history": _document("Frame ages and rates, last minutes.", "HistoryDocument"),
            "/api/counts": _document(
                "Counts of lines and zones on the days before today.",
                "CountsDocument",
                _parameter("days", "query", DAYS),
            ),
            "/api/events": _get(
                'Server-sent events of these types: "figures" (LiveDocument, once a second), '
                '"event" (EventDocument), "lost" (how many events this client missed), "silent" '
                '(the run does not respond) and "end".',
                "text/event-stream",
                TEXT,
                _parameter(
                    *("Last-Event-ID", "header", {"type": "integer"}),
                    "Return events after this one; default: all stored events.",
                ),
            ),
            "/api/recordings": _document(
                "Files to download, newest first, including the one being written.",
                "RecordingsDocument",
                {**CAMERA, "in": "query", "required": False},
                _parameter("kind", "query", KINDS),
                _parameter("limit", "query", LIMIT),
            ),
            "/api/recordings/{camera}/{kind}/{name}": _get(
                "One file; Range requests are supported.",
                "video/mp4",
                {"type": "string", "contentMediaType": "video/mp4"},
                CAMERA,
                _parameter("kind", "path", KINDS),
                _parameter("name", "path", TEXT),
            ),
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "detect_video_session"},
            },
        },
    }


def _document(summary: str, name: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    return _get(summary, "application/json", {"$ref": SCHEMAS + name}, *parameters)


def _get(
    summary: str, media_type: str, schema: dict[str, Any], *parameters: dict[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary}
    if parameters:
        operation["parameters"] = list(parameters)
    operation["responses"] = {
        "200": _response(summary, media_type, schema),
        "default": _error_response(),
    }
    return {"get": operation}


def _post(summary: str, accepted: str, *properties: str) -> dict[str, Any]:
    allowed: dict[str, Any] = {name: {} for name in properties}
    body = {"type": "object", "properties": allowed, "additionalProperties": False}
    return {
        "post": {
            "summary": summary,
            "parameters": [CAMERA],
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {
                "202": _response(
                    accepted, "application/json", {"$ref": SCHEMAS + "ChangeDocument"}
                ),
                "default": _error_response(),
            },
        }
    }


def _response(text: str, media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {media_type: {"schema": schema}}}


def _error_response() -> dict[str, Any]:
    return _response(
        "Error, with its reason.", "application/json", {"$ref": SCHEMAS + "ErrorDocument"}
    )


def text() -> str:
    return json.dumps(description(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
