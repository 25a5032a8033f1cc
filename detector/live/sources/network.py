"""Feeds of cameras and streams on the network, read by PyAV."""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import av

from detector.core.errors.holding import bad_tags
from detector.core.errors.parsing import quote
from detector.core.errors.secrets import redact
from detector.core.errors.text import printable
from detector.core.sources._forms import is_web
from detector.core.sources._network.addresses import THOROUGH, FFmpegOptions, opening_of
from detector.core.sources._network.meanings import (
    ENDED,
    LOG_UNAVAILABLE,
    NO_VIDEO,
    UNDECODED,
    ErrorMeaning,
    explain,
)
from detector.core.sources._network.nested import (
    NestedFile,
    NestedOpener,
    is_named_playlist,
    is_redirect,
    resolve,
)
from detector.core.sources._network.options import PERSONAL
from detector.live.sources.decoding import prepare
from detector.live.sources.hardware import OPTION, accelerator_of
from detector.live.sources.jpegs import Jpegs
from detector.live.sources.packet_feed import PacketFeed, is_held_back
from detector.live.sources.packets import End, Received
from detector.live.sources.status import SECOND
from detector.live.sources.threaded import TICK_S

if TYPE_CHECKING:
    from detector.core.sources._answers import OpenResponse

REDIRECT = re.compile(r"Redirecting to (\S+)")
PATIENCE_S = 3600.0  # PyAV's timeout of a read; without one it would not check its clock
STILL_S = 1.0  # between requests of a still picture, without a ``rate``
SHORT_NS = 2 * SECOND  # a connection of JPEGs that ends sooner is treated as a still picture
LOOK_UP_S = 0.1  # between checks of a look-up


BY_MARKERS = "pictures are found by JPEG's own markers"


class LookUp(threading.Thread):
    def __init__(self, host: str) -> None:
        super().__init__(name=f"look up {host}", daemon=True)
        self._host, self.found = host, False
        self.start()

    def run(self) -> None:
        try:
            self.found = bool(socket.getaddrinfo(self._host, None))
        except (OSError, UnicodeError):  # UnicodeError: a label longer than 63 characters
            self.found = False


class NetworkFeed(PacketFeed):
    may_shed = True
    _look_up: LookUp | None = None
    _kept: OpenResponse | None = None
    _led_to: str | None = None  # another host to which the camera redirects
    _first: NestedFile | None = None  # the first response of a guarded opening
    _nested: NestedOpener | None = None
    _odd = ""  # FFmpeg's message about a malformed multipart

    def receive_all(self) -> None:
        self._opening = opening_of(self.camera.address.whole)
        self._has_login = "@" in urlsplit(self.camera.address.whole).netloc
        while not self.stopping.is_set():
            epoch = self.status.connect(self.clock())
            self.wake()
            self.was_cut = self.is_shown = False
            self._led_to = self._nested = None
            meaning = self._connection(epoch)
            if self.stopping.is_set():
                return
            text = f"{self.camera.address}: {meaning.text}"
            next_try_ns = self.status.fail(self.clock(), text, login=meaning.login)
            self.wake()
            self.stopping.wait((next_try_ns - self.clock()) / 1e9)
            self.receiving.resume()

    def handle_message(self, message: str) -> None:
        """Stop FFmpeg before it sends user and password to another host."""
        if message.startswith(("Expected boundary", "Unexpected Content-Type")):
            self._odd = message
        match = REDIRECT.search(message)
        if match is None or not self._has_login:
            return
        if (host := _host(match[1])) != _host(self.camera.address.whole):
            self._led_to = host or match[1]
            self.receiving.cut()

    def _connection(self, epoch: int) -> ErrorMeaning:
        if self._has_login and not self.watch.receives_messages():
            return LOG_UNAVAILABLE
        if (unknown := self._resolve()) is not None:
            return unknown
        began_ns, self._odd = self.clock(), ""
        try:
            with contextlib.closing(self._open()) as container:
                if not container.streams.video:
                    return NO_VIDEO
                meaning = self._receive_from(container, epoch)
                are_jpegs = container.format.name in ("mpjpeg", "mjpeg", "jpeg_pipe")
            is_short = are_jpegs and self.clock() - began_ns < SHORT_NS
            return (self._jpegs(epoch) if is_short else None) or self._denied() or meaning
        except (av.error.FFmpegError, OSError, ValueError) as error:
            number = getattr(error, "errno", None)
            is_short = number == errno.EIO and self.clock() - began_ns < SHORT_NS
            is_other = isinstance(error, av.error.InvalidDataError) or number == errno.EINVAL
            jpegs = self._jpegs(epoch, is_other) if is_other or is_short else None
            return jpegs or self._explain(error)
        finally:
            if self._kept is not None:
                self._kept.close()
            if self._first is not None:
                self._first.close()

    def _open(self) -> Any:
        self._kept = self._take_kept()
        if self._kept is not None:
            return self._open_with(self._opening, THOROUGH, self._kept)
        container = self._open_with(self._opening, self._opening.probing)
        if any(stream.codec_context is not None for stream in container.streams.video):
            return container
        container.close()
        return self._open_with(self._opening, THOROUGH)

    def _jpegs(self, epoch: int, is_odd: bool = False) -> ErrorMeaning | None:
        """Read JPEGs by their markers; None if there are none. ``is_odd``: FFmpeg failed."""
        if not is_web(self.camera.address.whole) or self.receiving.is_cut():
            return None
        every_s = float(1 / self.camera.rate) if self.camera.rate else STILL_S
        with contextlib.closing(Jpegs(self._ask, every_s, self.receiving.is_cut)) as jpegs:
            if not jpegs.begins():
                return None
            odd = self._odd.strip()
            if jpegs.before and (is_odd or not jpegs.before.startswith("--")):
                odd = odd or f"begins with {quote(jpegs.before)}"
            odd = printable(redact(odd))
            self.status.expect(every_s, odd and f"its multipart is off ({odd}), so {BY_MARKERS}")
            options = {**self._opening.probing, "strict_mime_boundary": "0"}
            with av.open(jpegs, format="mpjpeg", options=options) as container:
                return self._receive_from(container, epoch)

    def _ask(self) -> NestedFile | None:
        options = self._options(self._opening, {})
        options.pop("format_whitelist", None)
        if self._has_login:
            options["max_redirects"] = "0"
        opener = NestedOpener(self.camera.address.whole, options, PATIENCE_S)
        with contextlib.suppress(av.error.FFmpegError, OSError, ValueError):
            return opener.open_first()
        return None

    def _take_kept(self) -> OpenResponse | None:
        """Return the connection of an earlier probe, for servers that accept only one."""
        if not is_web(self.camera.address.whole):
            return None
        from detector.core.sources._answers import take_open_response

        kept = take_open_response(self.camera.address.whole)
        if kept is not None:
            self.receiving.call(kept.cut)
        return kept

    @property
    def _is_personal(self) -> bool:
        """Whether options identify the user; FFmpeg sends such options on after a redirect."""
        return not PERSONAL.isdisjoint(self.camera.options)

    def _options(self, opening: FFmpegOptions, probing: dict[str, str]) -> dict[str, str]:
        return {
            **opening.options,
            **probing,
            "protocol_whitelist": opening.protocols,
            **({"format_whitelist": opening.formats} if opening.formats else {}),
            **{name: value for name, value in self.camera.options.items() if name != OPTION},
            **({"max_redirects": "0"} if self._is_personal else {}),
        }

    def _open_with(
        self, opening: FFmpegOptions, probing: dict[str, str], kept: OpenResponse | None = None
    ) -> Any:
        options = self._options(opening, probing)
        how: dict[str, Any] = {"file": kept or self.camera.address.whole}
        if kept is None and is_web(self.camera.address.whole):
            if self._is_personal:
                how = self._guard(self.camera.address.whole, options)
            elif is_named_playlist(self.camera.address.whole):
                settled, cookies = resolve(self.camera.address.whole)
                options["max_redirects"] = "0"
                how = self._guard(settled, options | cookies, follows=True)
            elif self._has_login:
                return self._open_unled(options)
        if "io_open" in how:
            options["http_persistent"] = "0"  # else FFmpeg expects its own connection in ours
        container = av.open(
            **how,
            options=options,
            timeout=(PATIENCE_S, PATIENCE_S),
            hwaccel=accelerator_of(self.camera.options),
            **bad_tags(),
        )
        return how["io_open"].keep(container) if "io_open" in how else container

    def _open_unled(self, options: dict[str, str]) -> Any:
        """Open without redirects, to which FFmpeg would take a cookie that holds the login."""
        how = {
            "options": options | {"max_redirects": "0"},
            "timeout": (PATIENCE_S, PATIENCE_S),
            "hwaccel": accelerator_of(self.camera.options),
            "metadata_errors": "replace",
        }
        try:
            return av.open(self.camera.address.whole, **how)
        except av.error.FFmpegError as error:
            if not is_redirect(error):
                raise
            settled, _ = resolve(self.camera.address.whole)
            if settled == self.camera.address.whole:
                raise
            return av.open(settled, **how)

    def _guard(
        self, address: str, options: dict[str, str], follows: bool = False
    ) -> dict[str, Any]:
        """Return how PyAV opens an address whose login and options are only for its own host."""
        if self._first is not None:
            self._first.close()
        self._nested = NestedOpener(address, options, PATIENCE_S, follows)
        first = self._first = self._nested.open_first()
        if not first.is_playlist():
            return {"file": first}
        # FFmpeg does not get the content type of our bytes, so name the format.
        return {"file": address, "format": "hls", "io_open": self._nested}

    def _receive_from(self, container: Any, epoch: int) -> ErrorMeaning:
        video = container.streams.video[0]
        codec = video.codec_context
        if codec is None:
            return UNDECODED
        prepare(codec)
        streams = [video, *container.streams.audio] if self.listeners else [video]
        self.begin(streams, is_held_back(container.format.name, codec.name))
        try:
            for packet in _demux(container, streams):
                if self.stopping.is_set():
                    break
                if not self.receiving.is_cut():  # else it may be part of a picture
                    self.receive(packet, codec, epoch, video.index)
        finally:
            for listener in self.listeners:
                listener.closed()
            self.packets.finish(End(epoch, codec))
        return ENDED

    def _explain(self, error: BaseException) -> ErrorMeaning:
        if self._led_to is not None:
            return ErrorMeaning(
                f"the camera redirects to another host, {self._led_to}, to which we do not send "
                "its password; give the address at that host"
            )
        if (denied := self._denied()) is not None:
            return denied
        if self.was_cut and self.status.has_arrivals() and not self.is_shown:
            return UNDECODED
        failure = None if self._nested is None else self._nested.failure
        return explain(failure or error, timed_out=self.was_cut)

    def _denied(self) -> ErrorMeaning | None:
        """Explain a refusal by another host, which got no secrets, or a missing segment."""
        nested = self._nested
        if nested is None or (nested.denied is None and not nested.given_up):
            return None
        if nested.denied is None:
            return ErrorMeaning(f"of its playlist, {nested.given_up}")
        return ErrorMeaning(
            f"its playlist points to another host, {nested.denied}, which refused access: "
            "we do not send it the login, headers and cookies of this one; give the playlist at "
            "that host, with its own options"
        )

    def _resolve(self) -> ErrorMeaning | None:
        """Return what is wrong with the host's name. A pending look-up thread may remain."""
        host = _host(self.camera.address.whole)
        if host is None:
            return None
        if self._look_up is None or not self._look_up.is_alive():
            self._look_up = LookUp(host)
        until_ns = self.clock() + round(self.terms.start_timeout_s * SECOND)
        while self._look_up.is_alive() and self.clock() < until_ns and not self.stopping.is_set():
            self._look_up.join(LOOK_UP_S)
        if self._look_up.is_alive():
            return ErrorMeaning(f"looking up {host} timed out; check the name server")
        if not self._look_up.found:
            return ErrorMeaning(f"host {host} not found; check the name")
        return None


def _demux(container: Any, streams: list[Any]) -> Iterator[Any]:
    while True:
        try:
            for packet in container.demux(streams):
                if packet.size:  # an empty packet marks the end
                    yield packet
            return
        except IndexError:  # a new stream: demux again to include it
            continue


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


class MainStreamFeed(NetworkFeed):
    """A camera's second stream, of which nobody detects anything: it hands packets to its listeners
    and decodes none, so ``take`` never has a picture."""

    def _decode(self) -> None:
        while not self.stopping.is_set():
            self._watch()
            item = self.packets.get(TICK_S)
            if isinstance(item, Received):
                codec = item.codec
                self.status.show(
                    self.clock(), item.stamp.epoch, codec.width, codec.height, codec.name
                )
