"""Hostile requests to the page of a running detector."""

from collections.abc import Callable
from random import Random

from tests.attacks.case import Case, Kind, Limits
from tests.attacks.inputs import NULL, content
from tests.attacks.mutate import NUMBERS, WORDS, damage
from tests.attacks.visitors import MARK, PAUSES, RESETS, TOKEN

PATHS = (
    "/", "/login", "/logout", "/healthz", "/metrics", "/openapi.json", "/page.js", "/api/streams",
    "/api/streams/orchard", "/api/streams/orchard/snapshot.jpg", "/api/history", "/api/events",
    "/api/streams/orchard/stream.mjpg", "/api/pictures", "/api/streams/orchard/stop/../start",
    "/api/recordings", "/api/recordings/orchard/video/20261122T120000Z.mp4",
)  # fmt: skip
ENDLESS = ("/api/events", "/api/pictures", "/api/streams/orchard/stream.mjpg")
METHODS = (
    "GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH",
    "PRI", "get", "G\u00cbT", "X" * 300, "", "GET GET",
)  # fmt: skip
UP = ("..", "%2e%2e", ".%2e", "..%2f..", "..%5c..", "%c0%ae%c0%ae", "..%00", "....//", "%252e%252e")
TARGETS = ("etc/passwd", "letter.txt", "token", "root/.ssh/id_rsa", "orchard.mp4", "%00", "")
NUL_AND_OTHERS = (b"\0", b"\x0b", b"\x7f", b"\xff\xfe", b"\r", b"\n", b"\r\n ", b" \t", b"\xc2\x85")
RANGES = (
    "bytes=0-0", "bytes=-1", "bytes=-0", "bytes=5-1", "bytes=0-99999999999999999999",
    "bytes=" + "0-0," * 60, "bytes=" + ",".join(f"{n}-" for n in range(500)), "bytes=a-b",
    "items=0-1", "bytes=--1", "bytes=", "bytes=\u00b2-\u00b3", "bytes=0-0-0", "bytes= 0 - 1 , ,",
)  # fmt: skip
QUERIES = ("width", "rate", "limit", "camera", "cameras", "kind", "token", "x")
FORM = "application/x-www-form-urlencoded"
GREETINGS = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x1e\x00\x00",
    b"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\r\n\r\n",
    b"\r\n" * 500,
)

Pieces = tuple[bytes, ...]


def head(method: str, path: str, headers: dict[str, str], version: str = "HTTP/1.1") -> bytes:
    lines = [f"{method} {path} {version}"]
    named = {"Host": "127.0.0.1:{port}", "X-Mark": MARK.decode(), **headers}
    lines += [f"{name}: {value}" for name, value in named.items()]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def credentials(random: Random) -> dict[str, str]:
    """Return the headers of a client that sends no token, the right token or a wrong token."""
    wrong = random.choice((*WORDS, TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "A" * 5000))
    wrong = wrong.replace("\n", " ")
    return random.choice((
        {}, {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"Bearer {wrong}"}, {"Authorization": f"Basic {wrong}"},
        {"Cookie": f"session={wrong}"}, {"Cookie": "a=b; " * 300},
    ))  # fmt: skip


def odd_lines(random: Random) -> Pieces:
    version = random.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2", "http/1.1", ""))
    return (head(random.choice(METHODS), random.choice(PATHS), credentials(random), version),)


def odd_addresses(random: Random) -> Pieces:
    path = random.choice(PATHS)
    choice = random.randrange(4)
    if choice == 0:
        path += f"/{random.choice(UP)}" * random.randint(1, 9) + f"/{random.choice(TARGETS)}"
    elif choice == 1:
        camera, kind = random.choice(("orchard", "..", ".", *UP)), random.choice(("video", *UP))
        path = f"/api/recordings/{camera}/{kind}/{random.choice((*UP, *TARGETS))}"
    elif choice == 2:
        names = random.choices(QUERIES, k=random.randint(1, 5))
        values = (str(random.choice((*WORDS, *NUMBERS))).replace(" ", "+") for _ in names)
        path += "?" + "&".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
    else:
        path += random.choice(("?", "/", "//", ";", "#", "%", "%zz", "\\")) * random.choice(
            (1, 9000)
        )
    return (head(random.choice(("GET", "HEAD")), path, credentials(random)),)


def large_heads(random: Random) -> Pieces:
    many, long = random.choice(((1, 100_000), (2000, 10), (300, 300), (90, 3), (1, 16_300)))
    headers = {f"X-{number}": "v" * long for number in range(many)}
    return (head("GET", random.choice(PATHS), {**credentials(random), **headers}),)


def odd_headers(random: Random) -> Pieces:
    name = random.choice((
        "Host", "Origin", "Range", "Sec-Fetch-Site", "Last-Event-ID", "Content-Length", "Expect",
        "Transfer-Encoding", "Connection", "Upgrade", "X-Forwarded-For", "If-Range", "Accept", "",
        "If-Modified-Since", "If-None-Match", "A B", "\u00e4",
    ))  # fmt: skip
    value = random.choice((*WORDS, *map(str, NUMBERS), "null", "chunked, chunked", "100-continue"))
    value = value.replace("\n", " ")
    request = head("GET", random.choice(PATHS), {**credentials(random), name: value})
    if random.random() < 0.3:
        at = random.randrange(len(request))
        request = request[:at] + random.choice(NUL_AND_OTHERS) + request[at:]
    if random.random() < 0.2:
        request = request.replace(
            b"X-Mark", random.choice((b"Host", b"Content-Length", b"Cookie")), 1
        )
    return (request,)


def ranges(random: Random) -> Pieces:
    headers = {**credentials(random), "Range": random.choice(RANGES)}
    return (head("GET", random.choice(PATHS[-3:]), headers),)


def bodies(random: Random) -> Pieces:
    """Send a POST with bad chunks, a wrong length, several lengths, or too much data."""
    path = random.choice(("/login", "/logout", "/api/streams/orchard/stop", "/api/streams/x/start"))
    kind = random.choice(("application/json", FORM, "text/plain", "x" * 500))
    headers = {**credentials(random), "Content-Type": kind}
    chunks = (
        b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n", b"ffffffffffffffff\r\n{}", b"2\r\n{}0\r\n\r\n",
        b"2;" + b"e" * 20_000 + b"\r\n{}\r\n0\r\n\r\n", b"2\r\n{}\r\n0\r\nX: y\r\n\r\n",
        b"1\r\n{\r\n" * 3000 + b"0\r\n\r\n", b"0x2\r\n{}\r\n0\r\n\r\n", b"2\n{}\n0\n\n", b"",
    )  # fmt: skip
    if random.random() < 0.5:
        headers["Transfer-Encoding"] = random.choice(("chunked", "chunked", "gzip", "Chunked, x"))
        if random.random() < 0.3:
            headers["Content-Length"] = "2"
        return head("POST", path, headers), PAUSES, random.choice(chunks)
    headers["Content-Length"] = random.choice(
        ("2", "0", "-1", "+2", "2, 2", "2, 3", "5000", "99999999999999999999", "1e1", "\u0662", "")
    )
    return head("POST", path, headers), random.choice((b"{}", b"[" * 5000, b"x" * 100_000, b""))


def logins(random: Random) -> Pieces:
    field = random.choice(("token", "token", "TOKEN", "t", "")) + random.choice(
        ("=", "=", "", "==")
    )
    values = (TOKEN, *(word for word in WORDS if "\n" not in word), "%", "%ff", "+", "%00")
    body = "&".join(field + random.choice(values) for _ in range(random.choice((1, 1, 2, 9, 900))))
    data = body.encode("utf-8", "surrogateescape")
    kind = random.choice((FORM, FORM, FORM, f"{FORM}; charset=utf-7", "multipart/form-data; b=x"))
    return (
        head("POST", "/login", {"Content-Type": kind, "Content-Length": str(len(data))}) + data,
    )


def upgrades(random: Random) -> Pieces:
    headers = {
        "Connection": random.choice(("Upgrade", "Upgrade, HTTP2-Settings", "close, keep-alive")),
        "Upgrade": random.choice(("websocket", "h2c", "TLS/1.0", "websocket, h2c")),
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": random.choice(("13", "0", "x")),
        "HTTP2-Settings": "AAMAAABkAAQAAP__",
    }
    frame = bytes([0x81, 0xFE, 0xFF, 0xFF]) + random.randbytes(2000)
    return head("GET", random.choice(PATHS), {**credentials(random), **headers}), PAUSES, frame


def pipelines(random: Random) -> Pieces:
    """Send many requests at once, or other bytes after a request that is still in flight."""
    first = head("GET", random.choice((*PATHS, *ENDLESS)), credentials(random))
    following = random.choice((
        first * random.randint(1, 200), b"\r\n", b"\r\n\r\n", b"no http\r\n\r\n",
        random.randbytes(3000), head("POST", "/login", {"Content-Length": "9"}), b"\0" * 70_000,
        *GREETINGS,
    ))  # fmt: skip
    return (
        (first + following,)
        if random.random() < 0.5
        else (first, PAUSES, following, PAUSES, following)
    )


def strangers(random: Random) -> Pieces:
    return (random.choice((*GREETINGS, random.randbytes(random.choice((1, 50, 70_000))))),)


def idle(random: Random) -> Pieces:
    request = head("GET", random.choice(PATHS), credentials(random))
    pieces = (request[: random.randrange(len(request))], PAUSES, PAUSES)
    return (*pieces, RESETS) if random.random() < 0.5 else pieces


def resets(random: Random) -> Pieces:
    return head("GET", random.choice((*PATHS, *ENDLESS)), credentials(random)), PAUSES, RESETS


def damaged(random: Random) -> Pieces:
    pieces = random.choice(WAYS[:-1])(random)
    return tuple(damage(random, piece) if len(piece) > 10 else piece for piece in pieces)


WAYS: tuple[Callable[[Random], Pieces], ...] = (
    *(odd_lines, odd_addresses, large_heads, odd_headers, ranges, bodies, logins, upgrades),
    *(pipelines, strangers, idle, resets, damaged),
)


def make(random: Random) -> Case:
    argv = ["orchard.mp4", "--loop", *NULL, "--serve", "{port}", "-o", "live/"]
    files = {"orchard.mp4": content("long.mp4"), "dots.onnx": content("dots.onnx")}
    if random.random() < 0.7:
        argv += ["--token-file", "token"]
        files["token"] = f"{TOKEN}\n".encode()
    if random.random() < 0.3:
        argv += ["--record", "copy", "--segment", "0.05"]
    visits = tuple(random.choice(WAYS)(random) for _ in range(random.randint(20, 120)))
    return Case(
        files,
        tuple(argv),
        frozenset({143}),
        limits=Limits(wall_s=150, cpu_s=60),
        modes={"token": 0o600} if "token" in files else {},
        visits=visits,
    )


KIND = Kind("page", make, share=0.5, first=20)
