"""Test how cameras are read from cameras.yaml and from addresses on the command line."""

from fractions import Fraction
from pathlib import Path

import pytest

from detector.core.errors import SourceError, UsageError
from detector.core.errors.addresses import Address
from detector.core.errors.secrets import redact
from detector.live.sources.base import FILE, NETWORK, WEBCAM, Camera
from detector.live.sources.cameras import compare_cameras, is_camera_list, make_cameras


def write_list(folder: Path, text: str) -> str:
    path = folder / "cameras.yaml"
    path.write_text(text)
    return str(path)


def test_all_fields_of_a_camera_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOOR", "p@ss/w${DOOR}")
    path = write_list(
        tmp_path,
        """
cameras:
  - name: door
    url: rtsp://admin:${DOOR}@10.0.0.5/sub
    record_url: rtsp://admin:${DOOR}@10.0.0.5/main
    options: {rtsp_transport: udp, reorder_queue_size: 10, tls_verify: true}
    classes: [person, car]
    size: 1280x720
    rate: 12.5
    masks: [[[0, 0], [1, 0], [1, 0.25]]]
  - 0
""",
    )
    door, webcam = make_cameras([path])
    # A variable's value is not expanded again, and characters with a meaning in URLs are escaped.
    login = "admin:p%40ss%2Fw%24%7BDOOR%7D@"
    assert door == Camera(
        "door",
        NETWORK,
        Address(f"rtsp://{login}10.0.0.5/sub"),
        Address(f"rtsp://{login}10.0.0.5/main"),
        {"rtsp_transport": "udp", "reorder_queue_size": "10", "tls_verify": "1"},
        ("person", "car"),
        (1280, 720),
        Fraction(25, 2),
        (((0.0, 0.0), (1.0, 0.0), (1.0, 0.25)),),
    )
    assert webcam == Camera("cam0", WEBCAM, Address("0"))
    assert str(door.address) == "rtsp://***@10.0.0.5/sub"
    assert redact("p@ss/w${DOOR}") == "***"


@pytest.mark.parametrize("rate", [5, 0.5, 5.115363334444017, "30000/1001"])
def test_rate_is_a_number_or_fraction(rate: object, tmp_path: Path) -> None:
    path = write_list(tmp_path, f"cameras: {{a: {{url: 'rtsp://h/1', rate: {rate}}}}}")
    assert make_cameras([path])[0].rate == Fraction(str(rate))


def test_mapping_gives_names_and_login_may_be_separate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOF", "x y")
    path = write_list(
        tmp_path,
        """
cameras:
  yard: rtsp://h/1
  roof: {url: "http://h/2", user: me, password: "${ROOF}"}
""",
    )
    yard, roof = make_cameras([path])
    assert (yard.name, yard.address.whole) == ("yard", "rtsp://h/1")
    assert (roof.name, roof.address.whole) == ("roof", "http://me:x%20y@h/2")


UNSUPPORTED = [  # each raises SourceError, as on the command line
    ("cameras: {a: 'srt://h:1'}", "a.url: srt://h:1: SRT cannot be read"),
    ("cameras: {a: 'gopher://h/1'}", "is not a supported kind"),
    ("cameras: {a: 'file:///etc/passwd'}", "is not a supported kind"),
    ("cameras: {a: 'rtsp://h:port/1'}", "check host and port"),
    ("cameras: {a: 'rtsp:///1'}", "has no host"),
    ("cameras: {a: {url: 'rtsp://h/1', record_url: 'srt://h:1'}}", "a.record_url: srt://h:1"),
]


SECRET_OPTIONS = [
    ("{headers: ['X-Api-Key: S3cretKey']}", "options: headers is neither text"),
    ("{headers: {X-Api-Key: S3cretKey}}", 'text (headers: "NAME: VALUE\\r\\n")'),
    ("{cookies: [S3cretKey]}", "options: cookies is neither text"),
    ("'headers: S3cretKey'", "options: is not a mapping"),
    ("[S3cretKey]", "options: is not a mapping"),
    ("{rtsp_transport: tcp, 'headers: S3cretKey': }", "options: entry 2 is neither"),
    ("{S3cretKey}", "options: entry 1 is neither"),
    ("{headers: 'X: S3cretKey${NOT_SET}'}", "variable NOT_SET is not set"),
    ("{headers: 'X: S3cretKey${no name}'}", "'${no name}' is not a variable"),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cameras: 5", "cameras: is not a list"),
        ("cameras: []", "cameras: is empty"),
        ("cameras:", "cameras: is empty"),
        ("cameras: [{url: 'rtsp://h/1'}]\ncamera: 1", "did you mean cameras?"),
        ("cameras: [{name: a}]", "cameras[0].url: is missing"),
        ("cameras: [{name: a b, url: 'rtsp://h/1'}]", "cameras[0].name: 'a b' is not"),
        ("cameras: [{name: ../x, url: 'rtsp://h/1'}]", "is not a name"),
        (f"cameras: [{{name: {'a' * 41}, url: 'rtsp://h/1'}}]", "is not a name"),
        ("cameras: [{nam: a, url: 'rtsp://h/1'}]", "unknown key 'nam'; did you mean name?"),
        ("cameras: {a: 'rtsp://h/1', A: 'rtsp://h/2'}", "A: the name A is used twice"),
        ("cameras: {a: 'rtsp://h/${NOT_SET}'}", "a.url: the environment variable NOT_SET"),
        ("cameras: {a: 'rtsp://h/${no name}'}", "is not a variable"),
        ("cameras: {a: {url: 'rtsp://h/1', classes: ['${X}']}}", "expanded only in url"),
        ("cameras: {a: {url: 'rtsp://u:p@h/1', user: x}}", "contains a login"),
        ("cameras: {a: {url: '0', user: x}}", "has no login"),
        ("cameras: {a: 'concat:x|y'}", "add --loop"),
        ("cameras: {a: street.mp4}", "add --loop"),
        ("cameras: {a: '-'}", "a.url: - standard input is not"),
        ("cameras: {a: {url: 'rtsp://h/1', record_url: 'x.mp4'}}", "a.record_url: x.mp4 is not"),
        ("cameras: {a: {url: 'rtsp://h/1', rate: 0}}", "cameras.a.rate: 0 must be above 0"),
        ("cameras: {a: {url: 'rtsp://h/1', rate: fast}}", "rate: 'fast' is not a number"),
        ("cameras: {a: {url: 'rtsp://h/1', rate: 1/0}}", "rate: '1/0'"),
        ("cameras: {a: {url: 'rtsp://h/1', size: 0x0}}", "is not a size"),
        ("cameras: {a: {url: 'rtsp://h/1', classes: 5}}", "is not a list of classes"),
        ("cameras: {a: {url: 'rtsp://h/1', tiles: 2}}", "number of tiles"),
        ("cameras: {a: {url: 'rtsp://h/1', tiles: 99x99}}", "number of tiles"),
        ("cameras: {a: {url: 'rtsp://h/1', masks: [[[0, 0], [1, 1]]]}}", "list of 3 to 256"),
        ("cameras: {a: {url: 'rtsp://h/1', masks: [[[0, 0], [1, 1], [1, 2]]]}}", "outside 0 to 1"),
        ("cameras: {a: {url: 'rtsp://h/1', options: [udp]}}", "is not a mapping of FFmpeg"),
        ("cameras: {a: {url: 'http://h/1', options: {headers: '${NO}'}}}", "variable NO is not"),
        ("cameras: {a: {url: true}}", "a.url: is not an address"),
        ("cameras: [" + "'rtsp://h/1', " * 257 + "]", "257 cameras, more than 256"),
        ("cameras: {'rtsp://me:S3cretPw@h/1': []}", "rtsp://"),
        *(
            (f"cameras: {{a: {{url: 'http://h/1', options: {options}}}}}", message)
            for options, message in SECRET_OPTIONS
        ),
        *UNSUPPORTED,
    ],
)
def test_invalid_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    error = SourceError if (text, message) in UNSUPPORTED else UsageError
    with pytest.raises(error) as refused:
        make_cameras([write_list(tmp_path, text)])
    assert message in str(refused.value)
    assert "S3cret" not in str(refused.value)


def test_variables_in_options_are_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = r"""
cameras:
  - url: http://h/1.m3u8
    options:
      headers: "X-Api-Key: ${KEY}\r\nConnection: close\r\nX-More: literal-S3cret\r\n"
      cookies: token=${TOKEN}; path=/
      http_proxy: http://me:${PROXY}@proxy:3128
"""
    for name, value in (("KEY", "S3cretKey"), ("TOKEN", "S3cretTok"), ("PROXY", "p@ss/S3cret")):
        monkeypatch.setenv(name, value)
    (camera,) = make_cameras([write_list(tmp_path, text)])
    assert camera.options == {
        "headers": "X-Api-Key: S3cretKey\r\nConnection: close\r\nX-More: literal-S3cret\r\n",
        "cookies": "token=S3cretTok; path=/",
        "http_proxy": "http://me:p%40ss%2FS3cret@proxy:3128",
    }
    shown = redact(repr(camera))
    assert "S3cret" not in shown
    assert "close" in shown


def test_addresses_get_names_without_their_secrets() -> None:
    specs = "0 /dev/video3 rtsp://10.0.0.5/a rtsp://10.0.0.5/b udp://@:5000 x/in.mp4".split()
    cameras = make_cameras(specs, loop=True)
    assert [(camera.name, camera.kind) for camera in cameras] == [
        ("cam0", WEBCAM),
        ("cam3", WEBCAM),
        ("10-0-0-5-a", NETWORK),
        ("10-0-0-5-b", NETWORK),
        ("cam", NETWORK),
        ("in", FILE),
    ]
    keyed = [f"rtmp://h/live/S3cretKey{n}" for n in range(2)]
    specs = ["rtsp://h/Channels/101?token=S3cret", "rtsp://u:S3cret@h/user=me&password=S3cret_x"]
    names = [camera.name for camera in make_cameras([*keyed, *specs])]
    assert names == ["h-2", "h-3", "h-101", "h-4"], "names must not contain the stream key"


def test_lists_and_addresses_can_be_combined(tmp_path: Path) -> None:
    path = write_list(tmp_path, "cameras: {h: 'rtsp://h/1'}")
    assert is_camera_list(path)
    assert [camera.name for camera in make_cameras([path, "rtsp://h/2"])] == ["h", "h-2"]
    with pytest.raises(UsageError, match="used twice"):
        make_cameras([path, path])


def test_source_that_is_not_a_camera_is_refused(tmp_path: Path) -> None:
    assert not is_camera_list(write_list(tmp_path, "conf: 0.4"))
    assert not is_camera_list(str(tmp_path / "absent.yaml"))
    with pytest.raises(UsageError, match="--loop"):
        make_cameras(["in.mp4"])
    with pytest.raises(UsageError, match="standard input"):
        make_cameras(["-"], loop=True)
    with pytest.raises(SourceError, match="SRT"):
        make_cameras(["srt://h:1"])


def test_changes_between_two_lists_are_found() -> None:
    first, second, third = make_cameras(["rtsp://one/", "rtsp://two/", "rtsp://three/"])
    changed = Camera("TWO", NETWORK, Address("rtsp://two/x"))
    changes = compare_cameras((first, second), (third, changed))
    assert (changes.added, changes.removed) == ((third,), (first,))
    assert changes.changed == ((second, changed),)
    assert not compare_cameras((first, second), (second, first))
