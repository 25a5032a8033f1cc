"""The figures of a run for Prometheus, in a registry of our own.

Names follow its conventions: a prefix, base units, ``_total`` for what only grows. Counters are
those of the run, read when somebody scrapes; nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from detector import __version__
from detector.live.base import LiveFigures, StreamFigures
from detector.live.page.documents import LIVE, is_healthy

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # what ``generate_latest`` writes
STATES = ("connecting", "live", "stalled", "waiting", "ended")


@dataclass(frozen=True, slots=True)
class PageFigures:
    """What the page knows of itself."""

    watchers: int
    connections: int
    encoded: int
    encoded_bytes: int
    skipped: int
    events_lost: int
    logins_refused: int
    requests: dict[int, int]


class RunCollector(Collector):
    """Makes metrics of the run's newest figures and of the page's own."""

    def __init__(
        self, figures: Callable[[], LiveFigures | None], page: Callable[[], PageFigures]
    ) -> None:
        self._figures, self._page = figures, page

    def describe(self) -> list[Metric]:
        return []  # collect needs no run; the registry must not call it to learn names

    def collect(self) -> Iterator[Metric]:
        """Leaves out what has no value now."""
        return (metric for metric in self._all() if metric.samples)

    def _all(self) -> Iterator[Metric]:
        info = InfoMetricFamily("detect_video", "Version of detect-video.")
        info.add_metric((), {"version": __version__})
        yield info
        figures = self._figures()
        yield _gauge(
            "healthy", "1 where a camera is live and the engine answers.", is_healthy(figures)
        )
        if figures is not None:
            yield from _of_run(figures)
            yield from _of_streams(figures.streams)
        yield from _of_page(self._page())


def exposition(registry: CollectorRegistry) -> bytes:
    return generate_latest(registry)


def registry_of(
    figures: Callable[[], LiveFigures | None], page: Callable[[], PageFigures]
) -> CollectorRegistry:
    """A registry with the run, the page, and this process (CPU, memory, descriptors)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(figures, page))
    ProcessCollector(registry=registry)
    return registry


def _of_run(figures: LiveFigures) -> Iterator[Metric]:
    yield _gauge("uptime_seconds", "Time since the run began.", figures.uptime_s)
    yield _gauge(
        "inference_pictures_per_second",
        "Pictures for each second in which the engine worked, over the last seconds.",
        figures.inference_fps,
    )
    yield _gauge(
        "processed_pictures_per_second",
        "Pictures of all cameras that were detected, over the last seconds.",
        figures.end_to_end_fps,
    )
    yield _gauge("cpu_busy_ratio", "Share of all cores that this program uses.", figures.cpu_share)
    yield _gauge(
        "capacity_cameras", "How many such cameras this machine could take.", figures.capacity
    )
    yield _gauge(
        "engine_idle_seconds",
        "Time since the engine last finished a request.",
        figures.engine_age_s,
    )
    busy = GaugeMetricFamily(
        "detect_video_stage_busy_ratio",
        "Share of the last seconds that a stage was at work.",
        labels=("stage",),
    )
    for stage, share in figures.busy.items():
        busy.add_metric((stage,), share)
    yield busy


def _of_streams(streams: tuple[StreamFigures, ...]) -> Iterator[Metric]:
    for name, text, value in (
        ("received", "Pictures that arrived.", lambda one: one.received),
        ("processed", "Pictures that were detected.", lambda one: one.processed),
        ("reconnects", "Times that a camera came back.", lambda one: one.reconnects),
        ("stalls", "Times that a connected camera sent nothing.", lambda one: one.stalls),
    ):
        unit = f"{name}_pictures" if name in ("received", "processed") else name
        counter = CounterMetricFamily(f"detect_video_stream_{unit}", text, labels=("camera",))
        for one in streams:
            counter.add_metric((one.name,), value(one))  # type: ignore[no-untyped-call]
        yield counter
    dropped = CounterMetricFamily(
        "detect_video_stream_dropped_pictures",
        "Pictures that arrived and were not detected, by reason.",
        labels=("camera", "reason"),
    )
    state = GaugeMetricFamily(
        "detect_video_stream_state",
        "1 for the state that a camera is in.",
        labels=("camera", "state"),
    )
    up = GaugeMetricFamily("detect_video_stream_up", "1 where pictures arrive.", labels=("camera",))
    frozen = GaugeMetricFamily(
        "detect_video_stream_frozen",
        "1 where the same picture arrives again and again.",
        labels=("camera",),
    )
    # SummaryMetricFamily of prometheus-client knows no quantiles.
    age_name = "detect_video_stream_age_seconds"
    age = Metric(
        age_name, "How old pictures were when they were detected, over the last seconds.", "summary"
    )
    rates = GaugeMetricFamily(
        "detect_video_stream_pictures_per_second",
        "Pictures of the last seconds: received from a camera, and processed.",
        labels=("camera", "what"),
    )
    for one in streams:
        for reason, count in one.dropped.items():
            dropped.add_metric((one.name, reason), count)
        for name in STATES:
            state.add_metric((one.name, name), one.state == name)
        up.add_metric((one.name,), one.state == LIVE)
        frozen.add_metric((one.name,), one.frozen)
        quantiles = {"0.5": one.age_ms.p50, "0.9": one.age_ms.p90, "0.99": one.age_ms.p99}
        for quantile, value_ms in quantiles.items():
            if value_ms is not None:
                labels = {"camera": one.name, "quantile": quantile}
                age.add_sample(age_name, labels, value_ms / 1000)
        age.add_sample(f"{age_name}_count", {"camera": one.name}, one.processed)
        for what, fps in (("received", one.camera_fps), ("processed", one.processed_fps)):
            if fps is not None:
                rates.add_metric((one.name, what), fps)
    yield from (dropped, state, up, frozen, age, rates)


def _of_page(page: PageFigures) -> Iterator[Metric]:
    yield _gauge("page_watchers", "Streams of pictures that are being watched.", page.watchers)
    yield _gauge("page_connections", "Open connections.", page.connections)
    for name, text, count in (
        ("page_encoded_pictures", "Pictures that were encoded for watchers.", page.encoded),
        ("page_encoded_bytes", "Bytes of these pictures.", page.encoded_bytes),
        ("page_skipped_pictures", "Pictures that slow watchers left out.", page.skipped),
        ("page_lost_events", "Events that slow watchers did not get.", page.events_lost),
        (
            "page_refused_logins",
            "Wrong tokens, and tries that came too often.",
            page.logins_refused,
        ),
    ):
        counter = CounterMetricFamily(f"detect_video_{name}", text)
        counter.add_metric((), count)
        yield counter
    requests = CounterMetricFamily(
        "detect_video_page_requests", "Answers, by status.", labels=("status",)
    )
    for status, count in sorted(page.requests.items()):
        requests.add_metric((str(status),), count)
    yield requests


def _gauge(name: str, text: str, value: float | None) -> Metric:
    gauge = GaugeMetricFamily(f"detect_video_{name}", text)
    if value is not None:
        gauge.add_metric((), value)
    return gauge
