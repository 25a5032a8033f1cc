"""The options of cameras: how they are read, recorded and shown, and what is told of them."""

from __future__ import annotations

from dataclasses import dataclass

from detector.core.config.field import option

POLICIES = ("latest", "every")
GATHERING = ("auto", "every", "freshest")


@dataclass(frozen=True, slots=True)
class LiveConfig:
    policy: str = option(
        "latest",
        "What to do with pictures of cameras that come faster than they are detected. latest: "
        "detect the newest, drop older ones. every: drop none until they are --max-age old.",
        "P",
        choices=POLICIES,
        flags=("--live",),
        short="Pictures that come too fast: latest or every",
    )
    max_age: float = option(
        5.0,
        "With --live every: how old a picture may get, in seconds. Beyond that, whole groups of "
        "pictures are dropped up to the newest key frame.",
        "S",
        at_least=0.1,
        at_most=3600.0,
        short="Seconds that a picture may wait, of --live every",
    )
    gather: str = option(
        "auto",
        "How pictures of several cameras come together in a batch: every and freshest fill it, "
        "each camera once, and never wait for a silent one; auto waits only where that pays.",
        "G",
        choices=GATHERING,
        short="How cameras share a batch: auto, every, freshest",
    )
    repeat: bool = option(
        False,
        "Play files again and again at their own pace, as if they were cameras.",
        flags=("--loop",),
        short="Play files again and again, as if cameras",
    )
    start_timeout: float = option(
        20.0,
        "Seconds in which a camera must send its first picture, before it is tried again. Where no "
        "camera ever sent one in that time, the run ends with exit code 3.",
        "S",
        at_least=1.0,
        at_most=600.0,
        short="Seconds to wait for a camera's first picture",
    )
    wait: bool = option(
        False,
        "Never give up cameras that have not sent a picture yet: go on trying until they do.",
        short="Never give up cameras that send nothing yet",
    )


RECORDINGS = ("none", "annotated", "copy")


@dataclass(frozen=True, slots=True)
class RecordConfig:
    record: str = option(
        "none",
        "What to record of cameras: none, annotated (boxes drawn), or copy (the camera's own "
        "video and sound, untouched, with the boxes in a file of subtitles beside it).",
        "R",
        choices=RECORDINGS,
        short="Record cameras: none, annotated or copy",
    )
    no_overlay: bool = option(
        False,
        "Write no boxes (ASS subtitles) beside copies of the camera's own video.",
        short="No subtitles with boxes beside copies",
    )
    segment: float = option(
        10.0, "Minutes of one file of a recording.", "MIN", at_least=0.05, at_most=1440.0
    )
    clips: bool = option(False, "Record only around detections.")
    clip_before: float = option(
        5.0, "Seconds of a clip before the first detection.", "S", at_least=0.0, at_most=300.0
    )
    clip_after: float = option(
        5.0, "Seconds of a clip after the last detection.", "S", at_least=0.0, at_most=300.0
    )
    keep_days: float | None = option(
        None,
        "Remove recordings that are older than so many days.",
        "DAYS",
        at_least=0.01,
        at_most=36500.0,
    )
    keep_gb: float | None = option(
        None,
        "Remove the oldest recordings where all of them together exceed so many GB (10^9 bytes).",
        "GB",
        at_least=0.001,
        at_most=1e6,
        short="Remove the oldest recordings above so many GB",
    )


@dataclass(frozen=True, slots=True)
class EventsConfig:
    events: str | None = option(
        None,
        "Also write all events (a class appears or leaves, a camera comes or goes) to this file, "
        "one JSON document a line; - is standard output.",
        "FILE",
        short="Events to this file, JSON lines; - is stdout",
    )
    webhook: str | None = option(
        None,
        "POST each event to this http or https address. @FILE or env:NAME read it from a file or "
        "a variable, which no list of processes shows. DETECT_VIDEO_WEBHOOK_KEY in the "
        "environment signs them (HMAC-SHA256).",
        "URL",
    )
    mqtt: str | None = option(
        None,
        "Publish events to mqtt://HOST[:PORT]/TOPIC (mqtts:// with TLS). User and password come "
        "from DETECT_VIDEO_MQTT_USER and DETECT_VIDEO_MQTT_PASSWORD.",
        "URL",
        short="Publish events to mqtt://HOST[:PORT]/TOPIC",
    )


@dataclass(frozen=True, slots=True)
class PageConfig:
    serve: str | None = option(
        None,
        "Show the run on a page at this port of 127.0.0.1, or at HOST:PORT; port 0 takes a free "
        "one and prints it. Another host than loopback needs a token.",
        "[HOST:]PORT",
        short="A page to watch the run, at this port",
        common=True,
    )
    token_file: str | None = option(
        None,
        "File that holds the page's token. Without it DETECT_VIDEO_TOKEN in the environment is "
        "the token.",
        "FILE",
    )
    page_hosts: tuple[str, ...] | None = option(
        None,
        "Names, with commas, that browsers reach the page by besides its own address: those of a "
        "proxy in front of it. They need a token.",
        "A,B",
        short="Names of a proxy in front of the page",
    )
    tls_cert: str | None = option(None, "Certificate (PEM) of the page, for https.", "FILE")
    tls_key: str | None = option(None, "Private key (PEM) of the certificate.", "FILE")
