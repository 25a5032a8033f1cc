"""Which of FFmpeg's options belong to one host, and which may go to every host."""

# Options that identify the user. They only go to the host of the camera's own address.
PERSONAL = frozenset(
    ("headers", "cookies", "referer", "post_data", "cert_file", "cert", "key_file", "key")
)
# Options that may be passed to every host. (FFmpeg itself drops those of TLS.)
HANDED_ON = frozenset(
    "http_proxy user_agent rw_timeout timeout icy".split()
    + "tls_verify verify ca_file cafile verifyhost".split()
)
# What the HLS demuxer sets for one address: a range of bytes, and the key of a segment.
OF_DEMUXER = frozenset(("offset", "end_offset", "seekable", "key", "iv"))
