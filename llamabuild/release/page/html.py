"""HTML as small functions of text; everything from outside is escaped here and nowhere else."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Html = NewType("Html", str)
"""Text that is markup already."""


def text(value: object) -> Html:
    """Escaped text."""
    return Html(escape(str(value)))


def join(parts: Iterable[Html], between: str = "") -> Html:
    """Parts after each other; ``between`` is markup."""
    return Html(between.join(parts))


def tag(name: str, *content: Html, **attributes: object) -> Html:
    """One element; ``class_`` stands for class, underscores for hyphens."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>{''.join(content)}</{name}>")


def code(value: object) -> Html:
    """Something that is typed or printed by a program."""
    return tag("code", text(value))


def section(title: str, *content: Html, identity: str) -> Html:
    """A part of the page under its heading."""
    return tag("section", tag("h2", text(title)), *content, id=identity)


def facts(rows: Iterable[tuple[str, Html]]) -> Html:
    """Names and values, those with an empty value left out."""
    return tag("dl", *(Html(tag("dt", text(name)) + tag("dd", value)) for name, value in rows if value), class_="facts")


def table(head: Sequence[str], rows: Iterable[Sequence[Html]], *, numbers: Sequence[int] = ()) -> Html:
    """A table that scrolls by itself where it is too wide; ``numbers`` are the columns that are aligned right."""

    def cell(name: str, index: int, content: Html) -> Html:
        return tag(name, content, class_="number") if index in numbers else tag(name, content)

    header = tag("tr", *(cell("th", index, text(title)) for index, title in enumerate(head)))
    body = join(tag("tr", *(cell("td", index, part) for index, part in enumerate(row))) for row in rows)
    return tag("div", tag("table", tag("thead", header), tag("tbody", body)), class_="wide")


def size(count: int) -> str:
    """Bytes as a person reads them: powers of ten, three digits."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            return f"{count} B" if unit == "B" else f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"
        value /= 1000
    return ""


def duration(seconds: float) -> str:
    """Seconds as a person reads them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
