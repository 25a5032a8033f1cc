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
        "What to do if a camera's pictures arrive faster than they are detected. latest: detect "
        "the newest, drop older ones. every: drop none until it is --max-age old.",
        "P",
        choices=POLICIES,
        flags=("--live",),
        short="If pictures come too fast: latest or every",
    )
    max_age: float = option(
        5.0,
        "With --live every: how old a picture may get, in seconds. Beyond that, whole groups of "
        "pictures are dropped up to the newest key frame.",
        "S",
        at_least=0.1,
        at_most=3600.0,
        short="Seconds that a picture may wait, for --live every",
    )
    gather: str = option(
        "auto",
        "How to batch pictures of several cameras: every and freshest fill a batch with one "
        "picture per camera and never wait for a silent one; auto waits only if that pays.",
        "G",
        choices=GATHERING,
        short="How cameras share a batch: auto, every, freshest",
    )
    repeat: bool = option(
        False,
        "Play files in an endless loop at their own pace, as if they were cameras.",
        flags=("--loop",),
        short="Play files in a loop, as if they were cameras",
    )
    start_timeout: float = option(
        20.0,
        "Seconds to wait for a camera's first picture before trying again. If no camera ever "
        "sends one in that time, the run ends with exit code 3.",
        "S",
        at_least=1.0,
        at_most=600.0,
        short="Seconds to wait for a camera's first picture",
    )
    wait: bool = option(
        False,
        "Never give up on cameras that have not sent a picture yet; keep trying until they do.",
        short="Keep trying cameras that send nothing yet",
    )


RECORDINGS = ("none", "annotated", "copy")


@dataclass(frozen=True, slots=True)
class RecordConfig:
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
        "Write no boxes (ASS subtitles) next to copies of the camera's own video.",
        short="Write no box subtitles next to copies",
    )
    segment: float = option(
        10.0, "Minutes per file of a recording.", "MIN", at_least=0.05, at_most=1440.0
    )
    clips: bool = option(False, "Record only around detections.")
    clip_before: float = option(
        5.0, "Seconds of a clip before the first detection.", "S", at_least=0.0, at_most=300.0
    )
    clip_after: float = option(
        5.0, "Seconds of a clip after the last detection.", "S", at_least=0.0, at_most=300.0
    )
    keep_days: float | None = option(
        None, "Remove recordings older than this many days.", "DAYS", at_least=0.01, at_most=36500.0
    )
    keep_gb: float | None = option(
        None,
        "Remove the oldest recordings if all of them together exceed this many GB (10^9 bytes).",
        "GB",
        at_least=0.001,
        at_most=1e6,
        short="Remove the oldest recordings above this many GB",
    )


@dataclass(frozen=True, slots=True)
class EventsConfig:
    events: str | None = option(
        None,
        "Also write all events (a class appears or leaves, a camera comes or goes) to this file, "
        "one JSON document per line; - is standard output.",
        "FILE",
        short="Write events as JSON lines here; - is stdout",
    )
    webhook: str | None = option(
        None,
        "POST each event to this http or https address. @FILE or env:NAME reads it from a file or "
        "a variable, which keeps it out of process lists. If DETECT_VIDEO_WEBHOOK_KEY is set, it "
        "signs the events (HMAC-SHA256).",
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
        "Serve a page that shows the run, at this port of 127.0.0.1 or at HOST:PORT; port 0 picks "
        "a free one and prints it. A host other than loopback needs a token.",
        "[HOST:]PORT",
        short="Serve a page that shows the run, at this port",
        common=True,
    )
    token_file: str | None = option(
        None,
        "File that holds the page's token; default: DETECT_VIDEO_TOKEN in the environment.",
        "FILE",
    )
    page_hosts: tuple[str, ...] | None = option(
        None,
        "Host names, separated by commas, that browsers may use besides the page's own address, "
        "such as those of a proxy. They need a token.",
        "A,B",
        short="Host names of a proxy in front of the page",
    )
    tls_cert: str | None = option(None, "Certificate (PEM) for the page, for https.", "FILE")
    tls_key: str | None = option(None, "Private key (PEM) of the certificate.", "FILE")
