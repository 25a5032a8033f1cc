"""Which of FFmpeg's options belong to one host, and which may go to every one."""

# Options that tell who asks. They go to the host of the camera's own address.
PERSONAL = frozenset(
    ("headers", "cookies", "referer", "post_data", "cert_file", "cert", "key_file", "key")
)
# What may be handed on to each host. (FFmpeg itself forgets those of TLS.)
HANDED_ON = frozenset(
    "http_proxy user_agent rw_timeout timeout icy".split()
    + "tls_verify verify ca_file cafile verifyhost".split()
)
# What the demuxer of HLS says of one address: a range of bytes, and the key of a segment.
OF_DEMUXER = frozenset(("offset", "end_offset", "seekable", "key", "iv"))
