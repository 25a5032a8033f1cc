#!/usr/bin/python3
"""An RTSP server for tests: H.264 or H.265, looped in real time, with RTCP reports.

    /usr/bin/python3 rtsp_server.py PORT NAME=FILE[+FILE...] ... [--user NAME:PASSWORD]
        [--address A]

It serves rtsp://A:PORT/NAME, where A is 127.0.0.1 by default. Port 0 means any free port. It prints
"ready" and the port, and runs until it is ended. SIGSTOP stalls it, SIGCONT resumes it, and SIGKILL
is a power loss. Each FILE holds access units in Annex B, and FILE.json holds their offsets; both
are from tests/live/servers.py. Files of a NAME are played in turn, so the picture size can change.

Needs Debian's gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-{base,good,bad} python3-gi, and the
system's own Python: gi has no wheel.
"""

import json
import sys
from pathlib import Path

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

LAUNCH = (
    "( appsrc name=source is-live=false format=time max-bytes=400000 block=false "
    "caps=video/x-{codec},stream-format=byte-stream,alignment=au ! {codec}parse config-interval=-1 "
    "! rtp{codec}pay name=pay0 pt=96 )"
)


class Playlist:
    def __init__(self, files):
        self.units = []  # (bytes, pts, dts) of the first pass; times in ns
        start = 0
        for file in files:
            data, index = Path(file).read_bytes(), json.loads(Path(f"{file}.json").read_text())
            self.codec = index["codec"]
            for offset, size, pts, dts in index["units"]:
                self.units.append((data[offset : offset + size], start + pts, start + dts))
            start += index["duration"]
        self.duration = start

    def unit(self, number):
        passes, position = divmod(number, len(self.units))
        data, pts, dts = self.units[position]
        return data, pts + passes * self.duration, dts + passes * self.duration


def feed(media, playlist):
    source = media.get_element().get_by_name_recurse_up("source")
    position = [0]

    def push(source, _length):
        data, pts, dts = playlist.unit(position[0])
        position[0] += 1
        buffer = Gst.Buffer.new_wrapped(data)
        buffer.pts, buffer.dts = pts, dts
        source.emit("push-buffer", buffer)

    source.connect("need-data", push)


def protect(server, factories, login):
    user, _, password = login.partition(":")
    permissions = GstRtspServer.RTSPPermissions()
    for what in ("media.factory.access", "media.factory.construct"):
        permissions.add_permission_for_role("user", what, True)
    for factory in factories:
        factory.set_permissions(permissions)
    token = GstRtspServer.RTSPToken()
    token.set_string("media.factory.role", "user")
    auth = GstRtspServer.RTSPAuth()
    auth.add_basic(GstRtspServer.RTSPAuth.make_basic(user, password), token)
    server.set_auth(auth)


def main(arguments):
    values = {"--user": None, "--address": "127.0.0.1"}
    for option in values:
        if option in arguments:
            at = arguments.index(option)
            values[option] = arguments[at + 1]
            del arguments[at : at + 2]
    login = values["--user"]
    port, *mounts = arguments
    Gst.init(None)
    server = GstRtspServer.RTSPServer()
    server.set_address(values["--address"])
    server.set_service(port)
    factories = []
    for mount in mounts:
        name, _, files = mount.partition("=")
        playlist = Playlist(files.split("+"))
        factory = GstRtspServer.RTSPMediaFactory()
        factory.set_launch(LAUNCH.format(codec=playlist.codec))
        factory.connect("media-configure", lambda _f, media, p=playlist: feed(media, p))

        server.get_mount_points().add_factory(f"/{name}", factory)
        factories.append(factory)
    if login:
        protect(server, factories, login)
    server.attach(None)
    print("ready", server.get_bound_port(), flush=True)
    GLib.MainLoop().run()


if __name__ == "__main__":
    main(sys.argv[1:])
