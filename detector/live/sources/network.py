"""Reads cameras and streams on the network with PyAV."""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import av

from detector.core.errors.holding import bad_tags
from detector.core.errors.parsing import quote
from detector.core.errors.secrets import redact
from detector.core.errors.text import printable
from detector.core.sinks.overlay.packets import demux
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
from detector.live.sources.hardware import OPTION, make_accelerator
from detector.live.sources.jpegs import Jpegs
from detector.live.sources.packet_feed import PacketFeed, is_held_back
from detector.live.sources.packets import End, Received
from detector.live.sources.status import SECOND
from detector.live.sources.threaded import TICK_S

if TYPE_CHECKING:
    from detector.core.sources._answers import OpenResponse

REDIRECT = re.compile(r"Redirecting to (\S+)")
READ_TIMEOUT_S = 3600.0  # ``Interrupt`` ends calls earlier, but can end only calls with a timeout
STILL_S = 1.0  # between requests of a still picture, for a camera without ``rate``
SHORT_NS = 2 * SECOND  # a connection of JPEGs that ends sooner is treated as a still picture
LOOK_UP_S = 0.1  # between checks of a name look-up


class LookUp(threading.Thread):
    def __init__(self, host: str) -> None:
        super().__init__(name=f"look up {host}", daemon=True)
        self._host, self.is_known = host, False
        self.start()

    def run(self) -> None:
        try:
            self.is_known = bool(socket.getaddrinfo(self._host, None))
        except (OSError, UnicodeError):  # UnicodeError: a label longer than 63 characters
            self.is_known = False


class NetworkFeed(PacketFeed):
    may_shed = True
    _look_up: LookUp | None = None
    _probed: OpenResponse | None = None  # the response of an earlier probe, still open
    _redirect_host: str | None = None  # another host to which the camera redirects
    _first: NestedFile | None = None  # the first response, if we, not FFmpeg, open the URLs
    _nested: NestedOpener | None = None
    _multipart_error = ""  # FFmpeg's message about a malformed multipart

    def receive_all(self) -> None:
        self._opening = opening_of(self.camera.address.whole)
        self._has_login = "@" in urlsplit(self.camera.address.whole).netloc
        while not self.stopping.is_set():
            epoch = self.status.connect(self.clock())
            self.wake()
            self.was_cut = self.is_shown = False
            self._redirect_host = self._nested = None
            meaning = self._connection(epoch)
            if self.stopping.is_set():
                return
            text = f"{self.camera.address}: {meaning.text}"
            next_try_ns = self.status.fail(self.clock(), text, login=meaning.login)
            self.wake()
            self.stopping.wait((next_try_ns - self.clock()) / 1e9)
            self.receiving.resume()

    def handle_message(self, message: str) -> None:
        """Stop FFmpeg before it follows a redirect and sends the login to another host."""
        if message.startswith(("Expected boundary", "Unexpected Content-Type")):
            self._multipart_error = message
        match = REDIRECT.search(message)
        if match is None or not self._has_login:
            return
        if (host := _host(match[1])) != _host(self.camera.address.whole):
            self._redirect_host = host or match[1]
            self.receiving.cut()

    def _connection(self, epoch: int) -> ErrorMeaning:
        if self._has_login and not self.watch.receives_messages():
            return LOG_UNAVAILABLE
        if (unknown := self._resolve()) is not None:
            return unknown
        began_ns, self._multipart_error = self.clock(), ""
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
            if self._probed is not None:
                self._probed.close()
            if self._first is not None:
                self._first.close()

    def _open(self) -> Any:
        self._probed = self._take_probed()
        if self._probed is not None:
            return self._open_with(self._opening, THOROUGH, self._probed)
        container = self._open_with(self._opening, self._opening.probing)
        if any(stream.codec_context is not None for stream in container.streams.video):
            return container
        container.close()
        return self._open_with(self._opening, THOROUGH)

    def _jpegs(self, epoch: int, is_odd: bool = False) -> ErrorMeaning | None:
        """Read the JPEGs of a response, if it has any. ``is_odd``: FFmpeg cannot parse it."""
        if not is_web(self.camera.address.whole) or self.receiving.is_cut():
            return None
        every_s = float(1 / self.camera.rate) if self.camera.rate else STILL_S
        with contextlib.closing(Jpegs(self._request, every_s, self.receiving.is_cut)) as jpegs:
            if not jpegs.find_first():
                return None
            note = self._multipart_error.strip()
            if jpegs.preamble and (is_odd or not jpegs.preamble.startswith("--")):
                note = note or f"begins with {quote(jpegs.preamble)}"
            note = printable(redact(note))
            note = (
                note and f"malformed multipart ({note}): pictures are found by JPEG's own markers"
            )
            self.status.expect(every_s, note)
            options = {**self._opening.probing, "strict_mime_boundary": "0"}
            with av.open(jpegs, format="mpjpeg", options=options) as container:
                return self._receive_from(container, epoch)

    def _request(self) -> NestedFile | None:
        options = self._options(self._opening, {})
        options.pop("format_whitelist", None)
        if self._has_login:
            options["max_redirects"] = "0"
        opener = NestedOpener(self.camera.address.whole, options, READ_TIMEOUT_S)
        with contextlib.suppress(av.error.FFmpegError, OSError, ValueError):
            return opener.open_first()
        return None

    def _take_probed(self) -> OpenResponse | None:
        """Reuse a probe's open response, because some servers accept only one connection."""
        if not is_web(self.camera.address.whole):
            return None
        from detector.core.sources._answers import take_open_response

        probed = take_open_response(self.camera.address.whole)
        if probed is not None:
            self.receiving.set_cut(probed.cut)
        return probed

    @property
    def _is_personal(self) -> bool:
        """True if options identify the user. FFmpeg would send them to redirects' targets, too."""
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
        self, opening: FFmpegOptions, probing: dict[str, str], probed: OpenResponse | None = None
    ) -> Any:
        options = self._options(opening, probing)
        arguments: dict[str, Any] = {"file": probed or self.camera.address.whole}
        if probed is None and is_web(self.camera.address.whole):
            if self._is_personal:
                arguments = self._guard(self.camera.address.whole, options)
            elif is_named_playlist(self.camera.address.whole):
                settled, cookies = resolve(self.camera.address.whole)
                options["max_redirects"] = "0"
                arguments = self._guard(settled, options | cookies, follows=True)
            elif self._has_login:
                return self._open_without_redirects(options)
        if "io_open" in arguments:
            options["http_persistent"] = "0"  # FFmpeg can only reuse connections that it opened
        container = self._open_container(arguments, options)
        return arguments["io_open"].keep(container) if "io_open" in arguments else container

    def _open_container(self, arguments: dict[str, Any], options: dict[str, str]) -> Any:
        return av.open(
            **arguments,
            options=options,
            timeout=(READ_TIMEOUT_S, READ_TIMEOUT_S),
            hwaccel=make_accelerator(self.camera.options),
            **bad_tags(),
        )

    def _open_without_redirects(self, options: dict[str, str]) -> Any:
        """Open the camera. We resolve redirects: FFmpeg would send login cookies to the target."""
        address, options = self.camera.address.whole, options | {"max_redirects": "0"}
        try:
            return self._open_container({"file": address}, options)
        except av.error.FFmpegError as error:
            if not is_redirect(error) or (settled := resolve(address)[0]) == address:
                raise
            return self._open_container({"file": settled}, options)

    def _guard(
        self, address: str, options: dict[str, str], follows: bool = False
    ) -> dict[str, Any]:
        """Return arguments of ``av.open``. Only the address's host gets the login and options."""
        if self._first is not None:
            self._first.close()
        self._nested = NestedOpener(address, options, READ_TIMEOUT_S, follows)
        first = self._first = self._nested.open_first()
        if not first.is_playlist():
            return {"file": first}
        # FFmpeg does not see the content type of this response, so name the format.
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
            for packet in demux(container, streams):
                if self.stopping.is_set():
                    break
                if not self.receiving.is_cut():  # after a cut, the packet may be incomplete
                    self.receive(packet, codec, epoch, video.index)
        finally:
            for listener in self.listeners:
                listener.closed()
            self.packets.finish(End(epoch, codec))
        return ENDED

    def _explain(self, error: BaseException) -> ErrorMeaning:
        if self._redirect_host is not None:
            return ErrorMeaning(
                f"the camera redirects to another host, {self._redirect_host}, to which we do not "
                "send its password; give the address at that host"
            )
        if (denied := self._denied()) is not None:
            return denied
        if self.was_cut and self.status.has_arrivals() and not self.is_shown:
            return UNDECODED
        failure = None if self._nested is None else self._nested.failure
        return explain(failure or error, timed_out=self.was_cut)

    def _denied(self) -> ErrorMeaning | None:
        """Explain missing segments, or a refusal by another host, which gets no login."""
        nested = self._nested
        if nested is None or (nested.denied is None and not nested.given_up):
            return None
        if nested.denied is None:
            return ErrorMeaning(f"in its playlist, {nested.given_up}")
        return ErrorMeaning(
            f"its playlist points to another host, {nested.denied}, which refused access, "
            "since login, headers and cookies are only sent to the first host; give the address "
            "of the playlist at the other host, with its own options"
        )

    def _resolve(self) -> ErrorMeaning | None:
        """Look up the host's name in a thread, which may outlive this call; return any error."""
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
        if not self._look_up.is_known:
            return ErrorMeaning(f"host {host} not found; check the name")
        return None


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


class MainStreamFeed(NetworkFeed):
    """A camera's main stream: passes packets to listeners, and decodes none."""

    def _decode(self) -> None:
        while not self.stopping.is_set():
            self._watch()
            item = self.packets.get(TICK_S)
            if isinstance(item, Received):
                codec = item.codec
                self.status.show(
                    self.clock(), item.stamp.epoch, codec.width, codec.height, codec.name
                )
