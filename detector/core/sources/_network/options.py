"""FFmpeg's options that may be sent to one host only, and those that every host may receive."""

# Options that identify the user, sent only to the host of the camera's own address.
PERSONAL = frozenset(
    ("headers", "cookies", "referer", "post_data", "cert_file", "cert", "key_file", "key")
)
# Options for every host. (FFmpeg itself discards the TLS options where they do not apply.)
SHARED = frozenset(
    "http_proxy user_agent rw_timeout timeout icy".split()
    + "tls_verify verify ca_file cafile verifyhost".split()
)
# Options that the HLS demuxer sets for one address: a range of bytes, and a segment's key.
DEMUXER_OPTIONS = frozenset(("offset", "end_offset", "seekable", "key", "iv"))
