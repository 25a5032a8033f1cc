"""Listening addresses of this machine's processes, from /proc."""

import os
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

LISTENING = "0A"  # the state of a socket in /proc/net/tcp


def listening(pids: Collection[int]) -> list[str]:
    """Return the addresses, without ports, on which these processes listen."""
    sockets = set()
    for pid in pids:
        with suppress(OSError):
            for path in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    sockets.add(os.readlink(path))
    addresses = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                raw = bytes.fromhex(fields[1].partition(":")[0])
                words = [raw[at : at + 4][::-1] for at in range(0, len(raw), 4)]
                addresses.append(socket.inet_ntop(family, b"".join(words)).removeprefix("::ffff:"))
    return addresses
