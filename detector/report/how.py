"""How each number of the report was taken: a line each, and where the documentation says more."""

from __future__ import annotations

from html import escape

from detector.report.markup import section
from detector.session.reading import SavedSession

# id, what, how it is taken, (file, heading) of the documentation
LINES = (
    ("fps", "FPS", "End to end: frames written over the seconds of the loop, all in. Inference: frames over the busy "
     "seconds of the stage infer, requests at once counted as such.", ("docs/measurement.md", "FPS")),
    ("ledger", "ledger", "Each thread reads the clock around every stage call and every wait; what is left of its wall "
     "time is other. CPU is the thread's own CPU clock.", ("docs/reading.md", "Ledger and threads")),
    ("spans", "timeline, queues", "From the recorded start and end of each call; nothing is sampled. A queue's depth "
     "follows from the calls before and after it.", ("docs/measurement.md", "Spans, waits, other")),
    ("percentiles", "latency, slowest moments", "Of single calls. A percentile without enough samples is left out.",
     ("docs/measurement.md", "Percentiles")),
    ("path", "critical path", "The chain of calls and hand-overs that the wall time of the steady state consists of: "
     "program order, data, bounded queues, buffers given back.", ("docs/reading.md", "Critical path")),
    ("whatif", "what if", "The recorded run played again with one thing changed, cores shared, with the CPU seconds of "
     "every thread of the process. Its own error is printed with it, and what speaks against it.",
     ("docs/reading.md", "What if")),
    ("layers", "layers", "A run of its own under the engine's own profiler; medians. Shares may be read off it, rates "
     "of the whole run may not. FLOPs are 2 x MACs, counted on the graph.",
     ("docs/reading.md", "Instruments and passes")),
    ("roofline", "roofline", "Peaks measured on this machine with the engine's number of threads. Above 100% means "
     "that the peak was measured too low, and is not clamped.", ("docs/reading.md", "Instruments and passes")),
    ("torch", "torch's operators", "Under torch.profiler, five steady frames after three to warm up.",
     ("docs/reading.md", "torch and device")),
    ("device", "host and device", "Kernels and operators of ten batches as torch.profiler (CUPTI) saw them; busy is "
     "the union of all kernels and copies, idle the rest of the window.", ("docs/reading.md", "torch and device")),
    ("sweep", "batches and precisions", "Runs without a profiler, in turn; medians over three rounds.",
     ("docs/reading.md", "Sweep")),
    ("memory", "memory", "Resident set of the process, sampled in a run of its own.", ("docs/reading.md", "Memory")),
    ("energy", "energy", "The processor's and the GPU's own counters, read every 100 ms; idle power taken off; "
     "never estimated.",
     ("docs/reading.md", "Energy")),
    ("python", "Python", "One plain loop under cProfile.", ("docs/reading.md", "Python")),
    ("passes", "passes", "Each pass that disturbs the run is a run of its own, and compared with the plain one.",
     ("docs/reading.md", "Instruments and passes")),
)  # fmt: skip


def how(session: SavedSession) -> str:
    del session  # alike in every report
    rows = "".join(
        f'<dt id="how-{name}">{escape(what)}</dt><dd>{escape(text)} <cite>{escape(file)}, {escape(heading)}</cite></dd>'
        for name, what, text, (file, heading) in LINES
    )
    return section("how", "How each number was taken", f"<dl>{rows}</dl>")
