"""Checks the settings of --serve (address, token, certificate), and opens the port."""

from __future__ import annotations

import errno
import importlib
import ipaddress
import os
import re
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from detector.core.errors import OutputError, UsageError
from detector.core.errors.reading import read_text
from detector.core.errors.secrets import keep_secret
from detector.live.config import PageConfig

LIBRARIES = ("starlette", "uvicorn", "prometheus_client")
TOKEN = "DETECT_VIDEO_TOKEN"
SHORTEST_TOKEN = 16  # characters
SEND_BUFFER = 256 << 10  # bytes per connection that the kernel buffers for a slow viewer
BACKLOG = 64
CURE = (
    f"use --token-file token (or the variable {TOKEN}); to make this file, run: "
    "openssl rand -hex 32 > token; chmod 600 token"
)
HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


@dataclass(slots=True)
class Binding:
    socket: socket.socket
    host: str  # as given; "127.0.0.1" if only a port was given
    port: int
    token: str | None  # None: no login
    certificate: tuple[str, str] | None  # paths of the certificate chain and of the private key
    names: frozenset[str]  # host names allowed in a Host header, in lower case

    @property
    def address(self) -> str:
        """The URL for a browser on this machine: ``http://127.0.0.1:8080/``."""
        scheme = "http" if self.certificate is None else "https"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}/"


def check_page(config: PageConfig) -> None:
    """Raise the errors of --serve and its options, but open no port."""
    if config.serve is not None:
        require_libraries(config.serve)
        bind(config, listen=False).socket.close()


def bind(config: PageConfig, *, listen: bool = True) -> Binding:
    """Check all settings, then open the port. Raises UsageError and OutputError."""
    host, port = parse_address(config.serve or "")
    token = read_token(config)
    names = frozenset(name.lower().rstrip(".") for name in config.page_hosts or ())
    for name in names:
        if not HOST_NAME.fullmatch(name):
            raise UsageError(f"--page-hosts {name}: not a host name such as cam.example.org")
    if token is None and (names or not is_loopback(host)):
        option = f"--serve {config.serve}" if not names else f"--page-hosts {','.join(names)}"
        raise UsageError(f"{option}: access from other machines needs a token; {CURE}")
    certificate = _certificate(config)
    if not is_address(host):
        names |= {host.lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower()}
    listening = _listen(host, port, config.serve or "") if listen else socket.socket()
    return Binding(listening, host, listening.getsockname()[1], token, certificate, names)


def parse_address(text: str) -> tuple[str, int]:
    """Split ``8080``, ``HOST:8080`` or ``[::1]:8080`` into host and port. Raises UsageError."""
    match = re.fullmatch(r"(?:(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@\s]+)):)?([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise UsageError(
            f"--serve {text}: not an address to serve at; write a port such as 8080 (0: any free "
            "port), or HOST:8080 ([::1]:8080 for IPv6)"
        )
    host = match[1] or match[2] or "127.0.0.1"
    if not (is_address(host) or HOST_NAME.fullmatch(host)):
        raise UsageError(f"--serve {text}: {host} is neither an address nor a host name")
    return host, int(match[3])


def require_libraries(option: str) -> None:
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(
                f"--serve {option}: {name} cannot be imported ({error}); "
                "install it with: pip install 'detect-video[serve]'"
            ) from error


def read_token(config: PageConfig) -> str | None:
    """Return the token from --token-file or the environment, if any; register it as a secret."""
    if config.token_file is not None:
        token = read_text(config.token_file, "a token", limit=4096, cure=CURE).strip()
        where = f"--token-file {config.token_file}"
    elif TOKEN in os.environ:
        token, where = os.environ[TOKEN].strip(), TOKEN
    else:
        return None
    if len(token) < SHORTEST_TOKEN or not re.fullmatch(r"[!-~]+", token):
        raise UsageError(
            f"{where}: a token needs {SHORTEST_TOKEN} or more characters (ASCII, no space); {CURE}"
        )
    keep_secret(token)
    return token


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def is_address(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _certificate(config: PageConfig) -> tuple[str, str] | None:
    """Return the certificate and key files, if any. Raises UsageError if they are invalid."""
    if config.tls_cert is None and config.tls_key is None:
        return None
    if config.tls_cert is None or config.tls_key is None:
        raise UsageError("--tls-cert and --tls-key go together; give both")
    for flag, path in (("--tls-cert", config.tls_cert), ("--tls-key", config.tls_key)):
        if not Path(path).is_file():
            raise UsageError(f"{flag} {path}: no such file")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without ``password``, OpenSSL would ask for an encrypted key's password on the terminal.
        context.load_cert_chain(config.tls_cert, config.tls_key, password="")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--tls-cert {config.tls_cert} --tls-key {config.tls_key}: not a PEM certificate "
            f"and its unencrypted private key ({error})"
        ) from error
    return config.tls_cert, config.tls_key


def _listen(host: str, port: int, option: str) -> socket.socket:
    try:
        family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UsageError(f"--serve {option}: unknown host {host} ({error.strerror})") from error
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        listening.bind(place)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise _bind_error(error, host, port, option) from error
    return listening


def _bind_error(error: OSError, host: str, port: int, option: str) -> OutputError | UsageError:
    if error.errno == errno.EADDRINUSE:
        return OutputError(
            f"--serve {option}: port {port} of {host} is in use; choose another, or 0 for any free "
            "port"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return OutputError(
            f"--serve {option}: this user may not use port {port}; choose one above 1023"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(
            f"--serve {option}: {host} is not an address of this machine; 0.0.0.0 means all of them"
        )
    return OutputError(f"--serve {option}: {error.strerror}")
