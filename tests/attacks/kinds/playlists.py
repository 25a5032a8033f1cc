"""A camera's playlists, which lead to another host. This host records the requests that it gets.

The camera gets secrets (a login, headers, cookies). The other host must receive none of them.
"""

from random import Random

from tests.attacks.case import Case, Kind, Limits
from tests.attacks.inputs import NULL, content
from tests.attacks.mutate import damage
from tests.attacks.two_servers import KEY, LOGIN, TOKEN

# The other host, the camera's host, and addresses for which URL parsers disagree about the host.
HOSTS = (
    "http://{other}",
    "http://{other}",
    "http://{other}",
    "//{other}",
    "HTTP://{other}",
    "http://{own}@{other}",
    "http://x:y@{other}",
    "http://{other}#@{own}",
    "http://{other}?@{own}",
    "http://{other}/\\@{own}",
    "http://{own}/../away/..",
    "http://{own}:80",
    "http://localhost",
    "https://{other}",
    "crypto+http://{other}",
    "crypto:http://{other}",
    "http://{own}",
    "",
)
KEY_TAGS = (
    '#EXT-X-KEY:METHOD=AES-128,URI="%s",IV=0x' + "0" * 32,
    '#EXT-X-KEY:METHOD=SAMPLE-AES,URI="%s"',
    '#EXT-X-SESSION-KEY:METHOD=AES-128,URI="%s"',
    '#EXT-X-MAP:URI="%s"',
    '#EXT-X-MAP:URI="%s",BYTERANGE="100@0"',
)
RENDITIONS = (
    '#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID="a",NAME="x",DEFAULT=YES,URI="%s"',
    '#EXT-X-MEDIA:TYPE=SUBTITLES,GROUP-ID="a",NAME="x",URI="%s"',
    '#EXT-X-I-FRAME-STREAM-INF:BANDWIDTH=9,URI="%s"',
)


MANIFEST = """<?xml version="1.0"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="%s" minBufferTime="PT1S"
 mediaPresentationDuration="PT2S" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011">
<Location>%s</Location><BaseURL>%s</BaseURL><Period><AdaptationSet contentType="video">
<ContentProtection schemeIdUri="urn:x" value="%s"/>
<Representation id="1" bandwidth="9" mimeType="video/mp4" codecs="avc1.42c00d"><BaseURL>%s</BaseURL>
<SegmentList><Initialization sourceURL="%s"/><SegmentURL media="%s"/></SegmentList>
</Representation></AdaptationSet></Period></MPD>
"""
# Other formats that contain addresses: DASH, concat, SDP, ASX, PLS.
LISTS = (
    MANIFEST,
    MANIFEST,
    "ffconcat version 1.0\nfile '%s'\nfile %s\n",
    "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\na=control:%s\nm=video 0 RTP/AVP 96\na=control:%s\n",
    '<asx version="3.0"><entry><ref href="%s"/></entry><entryref href="%s"/></asx>',
    "[playlist]\nFile1=%s\nNumberOfEntries=1\n",
)
NAMES = ("list.mpd", "list.ffconcat", "list.sdp", "list.asx", "list.pls", "list.m3u8", "list.ts")


def make(random: Random) -> Case:
    pages = {
        "/a.ts": content("h264.ts"),
        "/k": b"0123456789abcdef",
        "/i.mp4": content("fragmented.mp4"),
        "/media.m3u8": _media(random),
        "/list.m3u8": _master(random) if random.random() < 0.5 else _media(random),
        "/away.ts": b"->http://{other}/a.ts",
        "/away.m3u8": b"->http://{other}/media.m3u8",
    }
    if random.random() < 0.3:
        pages["/list.m3u8"] = damage(random, pages["/list.m3u8"], [pages["/media.m3u8"]])
    wants_login = random.random() < 0.5
    login = f"{LOGIN}@" if wants_login or random.random() < 0.3 else ""
    options = []
    if not login or random.random() < 0.7:
        options += [f'headers: "X-Api-Key: {KEY}\\r\\n"', f'cookies: "token={TOKEN}; path=/"']
        options = random.choice((options, options[:1], options[1:]))
    name = random.choice(("list.m3u8",) * 6 + ("away.m3u8", "a.ts"))
    if random.random() < 0.25:
        name = random.choice(NAMES)
        pages[f"/{name}"] = _other_list(random)
    camera = f"{{url: 'http://{login}{{own}}/{name}', options: {{{', '.join(options)}}}}}"
    files = {"cameras.yaml": f"cameras: {{door: {camera}}}".encode()}
    argv = ("cameras.yaml", *NULL, "--frames", "9", "--duration", "2", "--start-timeout", "1")
    return Case(
        {**files, "dots.onnx": content("dots.onnx")},
        argv,
        frozenset({0, 3, 7}),
        limits=Limits(wall_s=90),
        pages=pages,
        wants_login=wants_login,
    )


def _address(random: Random, *paths: str) -> str:
    return f"{random.choice(HOSTS)}/{random.choice(paths)}"


def _other_list(random: Random) -> bytes:
    text = random.choice(LISTS)
    words = [
        _address(random, "a.ts", "i.mp4", "away.ts", "list.mpd") for _ in range(text.count("%s"))
    ]
    if text is MANIFEST:
        words[0] = random.choice(("static", "dynamic"))
    return (text % tuple(words)).encode()


def _media(random: Random) -> bytes:
    lines = ["#EXTM3U", "#EXT-X-VERSION:7", "#EXT-X-TARGETDURATION:1"]
    for _ in range(random.randint(1, 4)):
        if random.random() < 0.4:
            lines.append(random.choice(KEY_TAGS) % _address(random, "k", "i.mp4"))
        lines.append("#EXTINF:0.3,")
        if random.random() < 0.2:
            lines.append("#EXT-X-BYTERANGE:1880@0")
        lines.append(_address(random, "a.ts", "a.ts", "away.ts", "i.mp4"))
    lines += ["#EXT-X-ENDLIST"] if random.random() < 0.5 else []
    return "\n".join([*lines, ""]).encode()


def _master(random: Random) -> bytes:
    lines = [
        "#EXTM3U",
        *(
            random.choice(RENDITIONS) % _address(random, "media.m3u8", "away.m3u8")
            for _ in range(random.randint(0, 2))
        ),
    ]
    for _ in range(random.randint(1, 2)):
        lines.append('#EXT-X-STREAM-INF:BANDWIDTH=1000,AUDIO="a"')
        lines.append(_address(random, "media.m3u8", "media.m3u8", "away.m3u8"))
    return "\n".join([*lines, ""]).encode()


KIND = Kind("playlists", make, share=4)
