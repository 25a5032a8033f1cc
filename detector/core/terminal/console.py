"""The console that prints all tables and lines. Untrusted text cannot control the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.text import Span, Text

from detector.core.errors.secrets import redact
from detector.core.errors.text import printable

if TYPE_CHECKING:
    from rich.console import ConsoleOptions
    from rich.segment import Segment


class SafeConsole(Console):
    """Prints texts literally: no markup, no emoji, control characters escaped (errors/text.py). Use
    a Group to print several lines, since line breaks in a text are escaped."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Escape a text. Rich also calls this for texts inside tables, groups and live lines."""
        if isinstance(renderable, str):
            renderable = printable(renderable)
        elif isinstance(renderable, Text):
            renderable = _escape(renderable)
        return super().render(renderable, options)


def _escape(text: Text) -> Text:
    """Return the text with control characters escaped, and its styles moved accordingly."""
    plain = text.plain
    if printable(plain) == plain:
        return text
    if redact(plain) != plain:  # drop the styles: redaction moves text by unknown amounts
        return Text(printable(plain), style=text.style, justify=text.justify, end=text.end)
    places = list(accumulate((len(printable(letter)) for letter in plain), initial=0))
    last = len(plain)
    return Text(
        printable(plain),
        style=text.style,
        justify=text.justify,
        overflow=text.overflow,
        no_wrap=text.no_wrap,
        end=text.end,
        spans=[
            Span(places[min(span.start, last)], places[min(span.end, last)], span.style)
            for span in text.spans
        ],
    )
