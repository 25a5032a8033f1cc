"""A network that loses, delays and reorders packets, between two network namespaces.

    servers' namespace ── wire (TUN) ── relay, a process ── wire (TUN) ── the program's namespace

The relay passes on every IP packet, and delays those to the program. At both ends, the kernel
counts arriving packets and drops some, by rules of nftables (``numgen random``) or iptables
(``statistic``). The machine's own network is not changed. All this needs root.

    python -m tests.live.poor_network relay NAMESPACE NAMESPACE DELAY_MS JITTER_MS ORDERED
    python -m tests.live.poor_network mjpeg ADDRESS
"""

import ctypes
import fcntl
import heapq
import os
import random
import re
import selectors
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.live.program import ROOT, Program, ProgramEndedError, UnavailableError, write_cameras
from tests.live.servers import STEADY, RtspServer, http, make_clip, need_rtsp

SERVERS, CLIENT = "10.77.0.1", "10.77.0.2"
WIRE = "wire"
FPS = 25
NAMES = ("tcp", "udp", "mjpeg")
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


@dataclass(frozen=True, slots=True)
class Weather:
    """Network conditions. ``loss``: share of packets lost at each end. ``delay_ms``: from cameras
    to the program, plus or minus ``jitter_ms``. ``ordered``: no packet overtakes another."""

    name: str
    loss: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    ordered: bool = True


WEATHERS = (
    Weather("none"),
    Weather("loss 1%", loss=0.01),
    Weather("loss 5%", loss=0.05),
    Weather("delay 200 ms", delay_ms=200),
    Weather("delay 200 ± 100 ms", delay_ms=200, jitter_ms=100),
    Weather("delay 20 ± 20 ms, out of order", delay_ms=20, jitter_ms=20, ordered=False),
    Weather("loss 5%, delay 200 ± 100 ms", loss=0.05, delay_ms=200, jitter_ms=100),
)


@dataclass(slots=True)
class CameraOutcome:
    name: str
    up_at_end: bool
    received: int
    processed: int
    corrupt: int
    no_key: int
    reconnects: int
    stalls: int
    age_p50_ms: float | None


@dataclass(slots=True)
class Outcome:
    """``packets`` reached the program's namespace, and ``lost`` of them were dropped. ``wrong``:
    what went wrong."""

    weather: Weather
    packets: int = 0
    lost: int = 0
    exit_code: int | None = None
    cameras: list[CameraOutcome] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


# The two namespaces and their connection.


def run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UnavailableError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise UnavailableError(f"{' '.join(command)}: {lines[0] if lines else done.returncode}")
    return done.stdout


def in_namespace(namespace: str) -> tuple[str, ...]:
    return "ip", "netns", "exec", namespace


@contextmanager
def namespaces(weather: Weather) -> Iterator[tuple[str, str]]:
    if os.geteuid() != 0:
        raise UnavailableError("network namespaces need root")
    if not os.path.exists("/dev/net/tun"):
        raise UnavailableError("/dev/net/tun: the kernel has no TUN")
    with ExitStack() as resources:
        pair = []
        for end in ("servers", "program"):
            name = f"detect-{end}-{os.getpid()}"
            run("ip", "netns", "add", name)
            resources.callback(run, "ip", "netns", "delete", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "tuntap", "add", "dev", WIRE, "mode", "tun")
            pair.append(name)
        for name, own, peer in zip(pair, (SERVERS, CLIENT), (CLIENT, SERVERS), strict=True):
            run("ip", "-n", name, "address", "add", own, "peer", peer, "dev", WIRE)
            run("ip", "-n", name, "link", "set", WIRE, "up")
            drop(name, weather.loss)
        delays = weather.delay_ms, weather.jitter_ms, int(weather.ordered)
        if start_own(resources, (), "relay", *pair, *map(str, delays)) != "ready":
            raise UnavailableError("the relay between the namespaces does not start; see above")
        yield pair[0], pair[1]


def start_own(running: ExitStack, prefix: tuple[str, ...], *words: str) -> str:
    """Run this module in a process until ``running`` is closed. Return the first line it prints."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.live.poor_network", *words],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    running.callback(process.wait)
    running.callback(process.kill)
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def drop(namespace: str, loss: float) -> None:
    rules = f"""
        table ip weather {{
            chain input {{
                type filter hook input priority 0;
                iifname {WIRE} counter
                iifname {WIRE} numgen random mod 10000 < {round(loss * 1e4)} counter drop
            }}
        }}
    """
    try:
        path = f"/tmp/{namespace}.nft"
        Path(path).write_text(rules)
        try:
            run(*in_namespace(namespace), "nft", "-f", path)
        finally:
            os.unlink(path)
    except UnavailableError as by_nft:
        match = ("-i", WIRE, "-m", "statistic", "--mode", "random", "--probability", f"{loss:g}")
        try:
            run(*in_namespace(namespace), "iptables", "-A", "INPUT", "-i", WIRE)
            run(*in_namespace(namespace), "iptables", "-A", "INPUT", *match, "-j", "DROP")
        except UnavailableError as by_iptables:
            raise UnavailableError(f"{by_nft}; {by_iptables}") from by_iptables


def count_packets(namespace: str) -> tuple[int, int]:
    """Return the number of packets that arrived, and how many of them were dropped."""
    try:
        text = run(*in_namespace(namespace), "nft", "list", "table", "ip", "weather")
        counts = re.findall(r"packets (\d+) bytes", text)
    except UnavailableError:
        text = run(*in_namespace(namespace), "iptables", "-L", "INPUT", "-v", "-x", "-n")
        counts = [line.split()[0] for line in text.splitlines()[2:]]
    return int(counts[0]), int(counts[1])


# The relay.


def open_wire(namespace: str) -> int:
    """Open the namespace's TUN device. The calling thread stays in that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(place, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(place)
    wire = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(wire, TUNSETIFF, struct.pack("16sH22x", WIRE.encode(), IFF_TUN | IFF_NO_PI))
    return wire


def relay(first: str, second: str, delay_ms: float, jitter_ms: float, ordered: bool) -> None:
    """Relay packets, delaying those from ``first`` to ``second``."""
    wires = open_wire(first), open_wire(second)
    selector, chance = selectors.DefaultSelector(), random.Random(1)
    for wire in wires:
        selector.register(wire, selectors.EVENT_READ)
    waiting: list[tuple[float, int, bytes]] = []
    number, last = 0, 0.0
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            send(wires[1], heapq.heappop(waiting)[2])
        ready = selector.select(max(0.0, waiting[0][0] - now) if waiting else None)
        for key, _ in ready:
            packet = os.read(key.fd, 65536)
            if key.fd == wires[1]:
                send(wires[0], packet)
                continue
            due = time.monotonic() + delay_ms / 1e3 + chance.uniform(-1, 1) * jitter_ms / 1e3
            last = due = max(due, last) if ordered else due
            number += 1
            heapq.heappush(waiting, (due, number, packet))


def send(wire: int, packet: bytes) -> None:
    with suppress(BlockingIOError):  # drop the packet if the queue is full, as a router does
        os.write(wire, packet)


def serve_mjpeg(address: str) -> None:
    with http(address) as server:
        server.fps = FPS
        print(server.url("/mjpeg", host=address), flush=True)
        threading.Event().wait()


# Cameras behind such a network.


def check_network(folder: Path, weather: Weather, seconds: float, engine: str) -> Outcome:
    """Run three cameras: RTSP over TCP, RTSP over UDP, and MJPEG over HTTP. Raises
    UnavailableError if this machine cannot make the network."""
    need_rtsp()
    outcome = Outcome(weather)
    # The pictures are small, because TCP gets little through if 5% of packets are lost.
    clip = make_clip(folder / "clip.mp4", 250, FPS, gop=FPS, options={**STEADY, "crf": "28"})
    with ExitStack() as running:
        servers, client = running.enter_context(namespaces(weather))
        rtsp = RtspServer({"x": clip}, None, SERVERS, in_namespace(servers))
        running.callback(rtsp.kill)
        rtsp.start()
        mjpeg = start_own(running, in_namespace(servers), "mjpeg", SERVERS)
        urls = {"tcp": rtsp.url("x"), "udp": rtsp.url("x"), "mjpeg": mjpeg}
        cameras = folder / "cameras.yaml"
        write_cameras(cameras, urls, tcp="tcp", udp="udp")
        options = ("--engine", engine)
        program = Program(folder, cameras, options, prefix=in_namespace(client))
        running.callback(program.kill)
        try:
            program.wait_for_cameras(NAMES)
            packets, lost = count_packets(client)
            program.watch(seconds)
            after, lost_after = count_packets(client)
            document = program.end()
        except ProgramEndedError as ended:
            outcome.wrong.append(str(ended))
            return outcome
    outcome.packets, outcome.lost, outcome.exit_code = (
        after - packets,
        lost_after - lost,
        program.exit_code,
    )
    for stream in document["streams"]:
        outcome.cameras.append(read_outcome(stream, program))
    outcome.wrong += judge(outcome, program)
    return outcome


def read_outcome(stream: dict[str, Any], program: Program) -> CameraOutcome:
    events = [
        event
        for event in program.lines(stream["name"], "events")
        if event["event"] in ("camera_up", "camera_down") and event["reason"] != "the run ended"
    ]
    return CameraOutcome(
        stream["name"],
        events[-1]["event"] == "camera_up",
        stream["received"],
        stream["processed"],
        stream["dropped"].get("corrupt", 0),
        stream["dropped"].get("no_key", 0),
        stream["reconnects"],
        stream["stalls"],
        stream["age_ms"]["p50"],
    )


def judge(outcome: Outcome, program: Program) -> list[str]:
    wrong = []
    if outcome.exit_code != 143:
        wrong.append(f"exit code {outcome.exit_code} after SIGTERM")
    # Only these texts count: the end of the run may print other errors.
    if ended_lines := [
        line for line in program.error_lines() if re.search(r": (ended|.*reading failed)", line)
    ]:
        wrong.append(f"a camera ended: {ended_lines[0]}")
    if faults := [line for line in program.error_lines() if "internal error" in line]:
        wrong.append(faults[0])
    by_name = {camera.name: camera for camera in outcome.cameras}
    lost = outcome.lost
    for camera in outcome.cameras:
        if not camera.processed:
            wrong.append(f"{camera.name}: no picture")
        if camera.corrupt and not outcome.weather.loss and outcome.weather.ordered:
            wrong.append(f"{camera.name}: {camera.corrupt} corrupt pictures without packet loss")
    # Of more than 50 lost packets, some belong to the camera udp and damage its pictures.
    udp = by_name["udp"]
    if outcome.weather.loss and lost > 50 and not udp.corrupt + udp.no_key:
        wrong.append(f"udp: {lost} packets were lost, and no picture counts as corrupt")
    return wrong


if __name__ == "__main__":
    if sys.argv[1] == "relay":
        relay(*sys.argv[2:4], float(sys.argv[4]), float(sys.argv[5]), sys.argv[6] == "1")
    else:
        serve_mjpeg(sys.argv[2])
