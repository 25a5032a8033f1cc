"""Errors of a store that refuses credentials: one line, the exit code, and no secret.

The store is moto's server, which checks the credentials of every request.
"""

import pytest

from detector.batch.bucket import BucketOutputs
from detector.batch.item import process_item
from detector.batch.listing import list_sources
from detector.batch.places import open_outputs
from detector.core.errors import EXIT_OUTPUT, EXIT_SOURCE, OutputError, SourceError
from detector.core.sources import _ranges, _storage
from tests.batch.storage import Guard, Keys, s3_server, small_model, task_of, use_store
from tests.cli.command import assert_one_line_error, detect_video
from tests.cli.small import write_network
from tests.sources.clips import write_video

pytestmark = [pytest.mark.net, pytest.mark.slow]
ALL = "s3:*"


class Store:
    def __init__(self, port, clip):
        self.port = port
        self.guard = Guard(port)
        with pytest.MonkeyPatch.context() as patch:
            store = use_store(patch, port)
            store.mkdir("videos")
            store.put_file(str(clip), "videos/in/a.mp4")
        self.users = {
            "good": self.guard.add_user("good", ALL),
            "nothing allowed": self.guard.add_user("nobody"),
            "may only list": self.guard.add_user("lister", "s3:ListBucket"),
            "unknown key": Keys("AKIAIOSFODNN7NOTHERE", "a-secret-of-nobody-at-all"),
            "no key": Keys("", ""),
        }
        self.users["wrong secret"] = self.users["good"]._replace(secret="not-the-secret-of-it")
        role = self.guard.take_role("role", ALL)
        self.users["role"] = role
        self.users["invalid token"] = role._replace(token="a-token-that-ran-out")
        self.guard.close()

    def add_user(self, name):
        self.guard.open()
        keys = self.guard.add_user(name, ALL)
        self.guard.close()
        return keys

    def log_in(self, monkeypatch, keys, home):
        use_store(monkeypatch, self.port)
        monkeypatch.setenv("HOME", str(home))  # without the developer's own credentials
        for name, text in keys.environment().items():
            monkeypatch.setenv(name, text)
            if not text:
                monkeypatch.delenv(name)
        _storage._open.cache_clear()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    pytest.importorskip("s3fs", reason="machine: s3fs is not installed")
    pytest.importorskip("moto.server", reason="machine: moto is not installed")
    clip = write_video(tmp_path_factory.mktemp("clip") / "a.mp4", 60, crf="10")
    with s3_server() as port:
        yield Store(port, clip)
    _storage._open.cache_clear()


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(_ranges, "PAUSES_S", (0.0, 0.0))


@pytest.fixture
def model(tmp_path):
    with small_model(tmp_path) as opened:
        yield opened


REFUSED = ("wrong secret", "unknown key", "invalid token", "nothing allowed", "no key")


@pytest.mark.parametrize("user", REFUSED)
def test_error_for_refused_keys_names_the_variable_to_set(store, monkeypatch, tmp_path, user):
    keys = store.users[user]
    store.log_in(monkeypatch, keys, tmp_path)
    with pytest.raises(SourceError) as listing:
        list_sources(["s3://videos/in/"], "out")
    with pytest.raises(SourceError) as one:
        list_sources(["s3://videos/in/a.mp4"], "out")
    with pytest.raises(OutputError) as writing:
        BucketOutputs("s3://videos/out").fetch_home()
    for error in (listing, one, writing):
        message = str(error.value)
        assert "wrong credentials" in message
        assert "AWS_PROFILE" in message
        assert "\n" not in message
        assert not any(text in message for text in (keys.secret, keys.token) if text)


@pytest.mark.parametrize("user", ["good", "role"])
def test_valid_credentials_can_list_and_write(store, monkeypatch, tmp_path, user):
    store.log_in(monkeypatch, store.users[user], tmp_path)
    assert len(list_sources(["s3://videos/in/"], "out").items) == 1
    BucketOutputs("s3://videos/out").fetch_home()


def test_command_reports_wrong_credentials_in_one_line(store, monkeypatch, tmp_path):
    keys = store.users["wrong secret"]
    store.log_in(monkeypatch, keys, tmp_path)
    write_network(tmp_path)
    write_video(tmp_path / "a.mp4", 3)
    settings = ("--model", "x.cfg", "--engine", "null")
    for source, output, code in (
        ("s3://videos/in/", "out", EXIT_SOURCE),
        ("a.mp4", "s3://videos/out", EXIT_OUTPUT),
    ):
        done = detect_video("batch", source, "-o", output, *settings, cwd=tmp_path)
        assert_one_line_error(done, code, "wrong credentials", "AWS_PROFILE")
        assert keys.secret not in done.stderr
        assert not (tmp_path / "out").exists()
    done = detect_video("s3://videos/in/a.mp4", *settings, cwd=tmp_path)
    assert_one_line_error(done, EXIT_SOURCE, "detect-video batch")


def test_user_who_may_only_list_cannot_read(store, monkeypatch, tmp_path, model):
    store.log_in(monkeypatch, store.users["good"], tmp_path)
    task = task_of("s3://videos/in/a.mp4")
    store.log_in(monkeypatch, store.users["may only list"], tmp_path)
    with pytest.raises(SourceError, match="no permission"):
        process_item(task, model, open_outputs(str(tmp_path / "out")))
    assert list(tmp_path.glob("out/files/*")) == []


@pytest.mark.parametrize("to", ["a folder", "the store"])
def test_key_revoked_during_an_item_leaves_no_partial_result(
    store, monkeypatch, tmp_path, model, to
):
    """For a folder, the key is revoked while the clip is read; for the store, before the upload."""
    monkeypatch.setattr(_ranges, "BLOCK", 1 << 14)
    monkeypatch.setattr(_ranges, "CACHED_BLOCKS", 4)
    name = f"goes-{to[-5:]}"
    keys = store.add_user(name)
    store.log_in(monkeypatch, keys, tmp_path)
    task = task_of("s3://videos/in/a.mp4")
    outputs = open_outputs(str(tmp_path / "out") if to == "a folder" else f"s3://videos/{name}")
    when = 5 if to == "a folder" else 60

    def revoke_key(frames):
        if frames == when:
            store.guard.forget_key(name, keys)

    with pytest.raises((SourceError, OutputError), match="no permission"):
        process_item(task, model, outputs, watch=revoke_key)
    assert list(tmp_path.glob("out/files/*")) == []
    store.log_in(monkeypatch, store.users["good"], tmp_path)
    assert outputs.read_marker("a.mp4") is None
    process_item(task, model, outputs)
    assert outputs.read_marker("a.mp4").frames == 60
