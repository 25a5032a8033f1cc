"""Addresses that are read, and others that are refused without showing their secrets."""

import pytest

from detector.core.errors import UsageError
from detector.core.sources import find_claiming
from detector.core.sources._addresses import (
    Location,
    StoredVideo,
    is_address,
    local_path,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://bucket/a/b.mp4", Location("s3", "bucket", "a/b.mp4")),
        ("S3://bucket", Location("s3", "bucket", "")),
        ("gs://bucket/a b.mp4", Location("gs", "bucket", "a b.mp4")),
        ("http://127.0.0.1:9000/a%20b.mp4", Location("http", "127.0.0.1:9000", "a%20b.mp4")),
        ("s3://bucket/cam*/x.mp4", Location("s3", "bucket", "cam*/x.mp4")),
        ("s3://bucket/mail@host/x.mp4", Location("s3", "bucket", "mail@host/x.mp4")),
    ],
)
def test_address_is_parsed(text, place):
    assert parse_address(text) == place
    assert parse_address(str(place)) == place  # workers parse it again
    assert is_address(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ftp://host/a.mp4", "only"),
        ("memory://a.mp4", "only"),
        ("filecache::s3://bucket/a.mp4", "only"),
        ("s3://bucket/a.zip::file.mp4", "chained"),
        ("https://user:password1@host/a.mp4", "netrc"),
        ("s3://key:password1@bucket/a.mp4", "AWS_PROFILE"),
        ("https://host/a.mp4?X-Amz-Signature=password1", "netrc"),
        ("https://host/a.mp4?sv=2026&sig=password1", "netrc"),
        ("https://host/a.mp4#password1", "netrc"),
        ("s3:///a.mp4", "bucket"),
        ("s3://cam*/a.mp4", "bucket"),
        ("http:///a.mp4", "server"),
        ("s3://bucket/a\nb.mp4", "control"),
        ("s3://bucket/..\\..\\a.mp4", "backslash"),
        ("s3://bucket/a.mp4?versionId=1", "versionId"),
    ],
)
def test_unsupported_address_is_refused_without_its_secrets(text, why):
    with pytest.raises(UsageError, match=why) as refused:
        parse_address(text)
    assert "password1" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_file_address_becomes_a_local_path():
    assert local_path("file:///a/b c.mp4") == "/a/b c.mp4"
    assert local_path("a/b.mp4") == "a/b.mp4"
    for text in ("file://host/a.mp4", "file:///a::b"):
        with pytest.raises(UsageError, match="PATH"):
            local_path(text)


def test_path_of_a_web_address_is_percent_decoded():
    assert parse_address("http://host/a%2Fb%20c.mp4").path == "host/a/b c.mp4"
    assert parse_address("s3://host/a%2Fb.mp4").path == "host/a%2Fb.mp4"


def test_stored_source_claims_addresses_only_for_batch_jobs():
    from detector.core.sources.stored import StoredSource
    from detector.live.sources import LiveSource

    assert find_claiming(StoredVideo("s3://bucket/a.mp4")) is StoredSource
    assert find_claiming("s3://bucket/a.mp4") is LiveSource  # its error names the batch command
    assert find_claiming(StoredVideo("http://host/a.mp4")) is StoredSource
