"""The console that every table and line goes through. Text from outside cannot steer it."""

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
    """Prints texts unchanged: no markup, no emoji, control characters escaped (errors/text.py). A
    text is one line; several lines are a Group. Colours come from styles alone."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Every text passes here, also those inside of tables, groups, and the live line."""
        if isinstance(renderable, str):
            renderable = printable(renderable)
        elif isinstance(renderable, Text):
            renderable = _printable(renderable)
        return super().render(renderable, options)


def _printable(text: Text) -> Text:
    """Return the same text with escapes in it; its styles move along."""
    plain = text.plain
    if printable(plain) == plain:
        return text
    if redact(plain) != plain:  # a secret: what it becomes has no letters of its own to style
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
