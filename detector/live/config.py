"""The options of cameras and of the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from detector.core.config import option

POLICIES = ("latest", "every")


@dataclass(frozen=True, slots=True)
class LiveConfig:
    title: ClassVar = "Cameras"
    policy: str = option(
        "latest",
        "What to do if cameras send frames faster than they can be detected. latest: detect the "
        "newest and drop older ones. every: drop none until they are --max-age old.",
        "P",
        choices=POLICIES,
        flags=("--live",),
        short="Frames to detect if too many: latest or every",
    )
    max_age: float = option(
        5.0,
        "With --live every: the maximum age of a frame, in seconds. Beyond that, whole groups of "
        "pictures (GOPs) are dropped, up to the newest key frame.",
        "S",
        at_least=0.1,
        at_most=3600.0,
        short="Seconds that a frame may wait, with --live every",
    )
    repeat: bool = option(
        False,
        "Play files in a loop at their own frame rate, as if they were cameras.",
        flags=("--loop",),
        short="Play files in a loop, as if they were cameras",
    )
    start_timeout: float = option(
        20.0,
        "Seconds to wait for a camera's first frame before connecting again. If no camera sends "
        "one in that time, the run ends with exit code 3.",
        "S",
        at_least=1.0,
        at_most=600.0,
        short="Seconds to wait for a camera's first frame",
    )
    wait: bool = option(
        False,
        "Never give up on cameras that have not sent a frame yet; keep trying until they do.",
        short="Keep trying cameras that have sent nothing yet",
    )


RECORDINGS = ("none", "annotated", "copy")


@dataclass(frozen=True, slots=True)
class RecordConfig:
    title: ClassVar = "Recording of cameras"
    record: str = option(
        "none",
        "What to record of cameras: none, annotated (boxes drawn), or copy (the camera's own "
        "video and sound, unchanged, with the boxes in a subtitle file next to it).",
        "R",
        choices=RECORDINGS,
        short="Record cameras: none, annotated or copy",
    )
    no_overlay: bool = option(
        False,
        "Do not write boxes (ASS subtitles) next to copies of the camera's own video.",
        short="No subtitles with boxes next to copies",
    )
    segment: float = option(
        10.0, "Length of a recording's files, in minutes.", "MIN", at_least=0.05, at_most=1440.0
    )
    clips: bool = option(False, "Record only around detections or events of --zones.")
    clip_before: float = option(
        5.0, "Seconds to record before a clip's first detection.", "S", at_least=0.0, at_most=300.0
    )
    clip_after: float = option(
        5.0, "Seconds to record after a clip's last detection.", "S", at_least=0.0, at_most=300.0
    )
    keep_days: float | None = option(
        None, "Delete recordings older than this many days.", "DAYS", at_least=0.01, at_most=36500.0
    )
    keep_gb: float | None = option(
        None,
        "Delete the oldest recordings above this many GB; all cameras together, 10^9 bytes per GB.",
        "GB",
        at_least=0.001,
        at_most=1e6,
    )


@dataclass(frozen=True, slots=True)
class EventsConfig:
    title: ClassVar = "Events"
    events: str | None = option(
        None,
        "Also write all events (a class appears or leaves, a camera connects or is lost) to this "
        "file, one JSON document per line; - is standard output.",
        "FILE",
        short="Write events to this file (JSON Lines; - stdout)",
    )
    webhook: str | None = option(
        None,
        "POST each event to this http or https URL. @FILE or env:NAME may hold it, @FILE.yaml may "
        "hold the whole request. Set DETECT_VIDEO_WEBHOOK_KEY to sign requests (HMAC-SHA256).",
        "URL",
        secret_path=True,
    )
    mqtt: str | None = option(
        None,
        "Publish events to mqtt://HOST[:PORT]/TOPIC; mqtts:// with TLS. The user and password "
        "come from DETECT_VIDEO_MQTT_USER and DETECT_VIDEO_MQTT_PASSWORD.",
        "URL",
    )
    mqtt_discovery: str | None = option(
        None,
        'Announce cameras to Home Assistant; its discovery prefix is normally "homeassistant".',
        "PREFIX",
    )


@dataclass(frozen=True, slots=True)
class PageConfig:
    title: ClassVar = "Page"
    serve: str | None = option(
        None,
        "Serve a page that shows the run at this port of 127.0.0.1, or at HOST:PORT; port 0 picks "
        "a free one and prints it. Hosts other than loopback need a token.",
        "[HOST:]PORT",
        short="Serve a page to watch the run, at this port",
        common=True,
    )
    token_file: str | None = option(
        None,
        "File that holds the page's token. Default: the environment variable DETECT_VIDEO_TOKEN.",
        "FILE",
    )
    page_hosts: tuple[str, ...] | None = option(
        None,
        "Comma-separated host names under which browsers may also reach the page, such as a proxy "
        "in front of it. The page then needs a token.",
        "A,B",
        short="Host names of a proxy in front of the page",
    )
    tls_cert: str | None = option(None, "TLS certificate (PEM) of the page, for https.", "FILE")
    tls_key: str | None = option(None, "Private key (PEM) of the certificate.", "FILE")
