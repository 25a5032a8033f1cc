"""Test that no output of a live run contains secrets from its addresses and options."""

from pathlib import Path

import pytest

from detector.core.cli.exits import end
from detector.core.errors import EXIT_INTERNAL
from detector.core.errors.addresses import Address
from tests.live import servers
from tests.live.test_command import live_run
from tests.waiting import wait_for

USER, PASSWORD, WRONG = "Us3rPlanted", "Pa55Planted", "Wr0ngPlanted"
TOKEN, KEY, HOOK, STREAM = "T0kenPlanted", "K3yPlanted", "H00kPlanted", "Str3amPlanted"
HEADER, COOKIE = "H3aderPlanted", "C00kiePlanted"


@pytest.mark.net
@pytest.mark.slow
def test_live_run_reveals_no_secret(tmp_path: Path) -> None:
    with servers.http() as camera, servers.http() as receiver:
        camera.login = f"{USER}:{PASSWORD}"
        place = f"127.0.0.1:{camera.port}"
        (tmp_path / "cameras.yaml").write_text(
            f"""
cameras:
  good: http://{USER}:${{CAMERA_PASSWORD}}@{place}/mjpeg?token={TOKEN}
  wrong: http://{USER}:{WRONG}@{place}/mjpeg
  absent: {{url: "http://{place}/none?token={TOKEN}", user: {USER}, password: {PASSWORD}}}
  keyed:
    url: http://{place}/none.m3u8
    options: {{headers: "X-Key: ${{HEADER}}\\r\\n", cookies: session={COOKIE}}}
  refused: rtmp://127.0.0.1:{servers.free_port()}/live/{STREAM}
"""
        )
        (tmp_path / "config.yaml").write_text(f"events: {{webhook: '{receiver.url(f'/{HOOK}')}'}}")
        inputs = {path.name for path in tmp_path.iterdir()}
        words = (
            *("cameras.yaml", f"http://{USER}:{PASSWORD}@{place}/mjpeg?k={KEY}"),
            *("--config", "config.yaml", "-v", "--run-dir", "run"),
            *("--record", "copy", "--events", "events.jsonl"),
        )
        env = {"CAMERA_PASSWORD": PASSWORD, "HEADER": HEADER}
        env |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        with live_run(tmp_path, *words, env=env) as run:
            run.wait_for_rows(20, "good")
            done = run.end()
    assert done.returncode == 143, done.stderr
    assert camera.sent > 10  # the login was used, so the secret was in memory
    written = {
        path.relative_to(tmp_path): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name not in inputs
    }
    assert any(path.name == "session.json" for path in written)
    assert any(b"***" in content for content in written.values())
    printed = {"stdout": done.stdout, "stderr": done.stderr}
    everything = {**written, **{Path(name): text.encode() for name, text in printed.items()}}
    for secret in (USER, PASSWORD, WRONG, TOKEN, KEY, HOOK, STREAM, HEADER, COOKIE):
        paths = [str(path) for path, content in everything.items() if secret.encode() in content]
        assert not paths, f"{secret} is in {paths}"


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.parametrize("webhook", ["env:HOOK", "@hook"])
def test_webhook_url_from_a_file_or_variable_is_not_revealed(tmp_path: Path, webhook: str) -> None:
    with servers.http() as camera, servers.http() as receiver:
        address = receiver.url(f"/{HOOK}")
        (tmp_path / "hook").write_text(f"{address}\n")
        words = (camera.url("/mjpeg"), "--webhook", webhook, "--run-dir", "run")
        with live_run(tmp_path, *words, env={"HOOK": address}) as run:
            # By the second attempt, the failure of the first has been reported.
            wait_for(lambda: len(receiver.requests) >= 2)
            run.wait_for_rows(20, "127-0-0-1")
            done = run.end()
    assert done.returncode == 143, done.stderr
    assert "the server returned 501" in done.stderr  # the receiver was reached, and refuses POST
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "hook"]
    assert not [path for path in files if HOOK.encode() in path.read_bytes()]
    assert HOOK not in done.stdout + done.stderr


def test_traceback_of_an_internal_error_reveals_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    url = Address(f"rtsp://{USER}:{PASSWORD}@h/s?token={TOKEN}").whole
    assert end(RuntimeError(f"cannot read {url}")) == EXIT_INTERNAL
    log = (tmp_path / "detect-video" / "detect-video-error.log").read_text()
    assert "RuntimeError: cannot read ***" in log or "rtsp://***" in log
    assert "Planted" not in log + capsys.readouterr().err
