"""A run played again on paper: the loop's threads, queues and pools, with durations that may be changed.

The threads are written down as in ``loop/``: each is a generator of what it does (work, take, give), and ``kernel.py``
runs them. What libraries do beside the calls is played too: a decoder works ahead of ``read``, an encoder goes on after
``write``, each as far as it has room. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from detector.analysis.kernel import Beside, Call, Kernel, Load, Thread, Until, Work
from detector.timeline.stages import ANNOTATE, HEAD, INFER, NMS, PREPROCESS, READ, WRITE

__all__ = ["Beside", "Call", "Load", "replay", "wall"]


def replay(load: Load) -> list[Call]:
    """All calls, by start. Plays the loop that ``load.shape`` describes."""
    libraries = _Libraries(load)
    loop = _in_turn(load, libraries) if load.shape.sync else _overlapped(load, libraries)
    return Kernel(load, loop | libraries.threads()).run()


def wall(calls: Sequence[Call]) -> float:
    """Until the last call of a stage has ended; what a library still does then is the closing's."""
    return max((call.end for call in calls if not call.beside), default=0.0)


class _Room:
    """A counted room: places in a queue, things in a pool."""

    def __init__(self, count: int) -> None:
        self.free = count

    def take(self) -> Until:
        return Until(lambda: self.free > 0, self._less)

    def _less(self) -> None:
        self.free -= 1


class _Libraries:
    """The calls of read and write, with what their libraries do beside them. Counts, of frames, both ways."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._asked = self._decoded = self._sent = self._encoded = 0

    def threads(self) -> dict[str, Thread]:
        made = {READ: self._decoder, WRITE: self._encoder}
        return {f"{stage}, beside": made[stage]() for stage in self._load.beside}

    def read(self, frame: int) -> Thread:
        """Hands over as many frames as there is room for, waits for its own. The call that finds the end waits for
        none."""
        ahead = self._load.beside.get(READ)
        if ahead is not None and frame < self._load.frames:
            self._asked = min(self._load.frames, frame + ahead.room)
            yield Until(lambda: self._decoded > frame, _nothing)
        yield Work(READ, frame)

    def write(self, frame: int) -> Thread:
        yield Work(WRITE, frame)
        behind = self._load.beside.get(WRITE)
        if behind is not None:
            yield Until(lambda: self._sent - self._encoded < behind.room, self._send)

    def _send(self) -> None:
        self._sent += 1

    def _decoder(self) -> Thread:
        for frame in range(self._load.frames):
            yield Until(lambda f=frame: self._asked > f, _nothing)  # type: ignore[misc]
            yield Work(READ, frame, beside=True)
            self._decoded += 1

    def _encoder(self) -> Thread:
        for frame in range(self._load.frames):
            yield Until(lambda f=frame: self._sent > f, _nothing)  # type: ignore[misc]
            yield Work(WRITE, frame, beside=True)
            self._encoded += 1


def _nothing() -> None:
    return None


@dataclass(slots=True)
class _State:
    requests: _Room
    images: _Room
    filled: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    next_result: int = 0
    finished: bool = False


def _rows(load: Load, batch: int) -> range:
    return range(batch * load.shape.batch, min((batch + 1) * load.shape.batch, load.frames))


def _batches(load: Load) -> int:
    return -(-load.frames // load.shape.batch)


def _overlapped(load: Load, libraries: _Libraries) -> dict[str, Thread]:
    state = _State(_Room(load.shape.requests), _Room(load.shape.images))
    workers = {f"worker-{number}": _worker(load, state) for number in range(load.shape.concurrency)}
    return {"reader": _reader(load, state, libraries), **workers, "writer": _writer(load, state, libraries)}


def _reader(load: Load, state: _State, libraries: _Libraries) -> Thread:
    """As ``fill``: the call that finds the end needs a picture's place too, and a request where a batch would begin."""
    for batch in range(load.frames // load.shape.batch + 1):
        yield state.requests.take()
        rows = _rows(load, batch)
        for frame in rows:
            yield state.images.take()
            yield from libraries.read(frame)
            yield Work(PREPROCESS, frame)
        if len(rows) < load.shape.batch:
            yield state.images.take()
            yield Work(READ, load.frames)
            state.images.free += 1
        if rows:
            yield Until(
                lambda: len(state.filled) < load.shape.queue_batches,
                lambda b=batch: state.filled.append(b),  # type: ignore[misc]
            )
    state.finished = True


def _worker(load: Load, state: _State) -> Thread:
    got: list[int] = []
    while True:
        yield Until(
            lambda: bool(state.filled) or state.finished,
            lambda: got.append(state.filled.pop(0) if state.filled else -1),
        )
        batch = got.pop()
        if batch < 0:
            return
        yield Work(INFER, batch)
        yield Until(
            lambda b=batch: b < state.next_result + load.shape.results,  # type: ignore[misc]
            lambda b=batch: state.done.add(b),  # type: ignore[misc]
        )


def _writer(load: Load, state: _State, libraries: _Libraries) -> Thread:
    for batch in range(_batches(load)):
        yield Until(lambda b=batch: b in state.done, lambda b=batch: _pop(state, b))  # type: ignore[misc]
        for frame in _rows(load, batch):
            yield Work(HEAD, frame)
        state.requests.free += 1
        for frame in _rows(load, batch):
            yield Work(NMS, frame)
            yield Work(ANNOTATE, frame)
            yield from libraries.write(frame)
            state.images.free += 1


def _pop(state: _State, batch: int) -> None:
    state.done.remove(batch)
    state.next_result = batch + 1


def _in_turn(load: Load, libraries: _Libraries) -> dict[str, Thread]:
    def main() -> Thread:
        for batch in range(_batches(load)):
            for frame in _rows(load, batch):
                yield from libraries.read(frame)
                yield Work(PREPROCESS, frame)
            yield Work(INFER, batch)
            for frame in _rows(load, batch):
                yield Work(HEAD, frame)
            for frame in _rows(load, batch):
                yield Work(NMS, frame)
                yield Work(ANNOTATE, frame)
                yield from libraries.write(frame)
        yield Work(READ, load.frames)

    return {"main": main()}
