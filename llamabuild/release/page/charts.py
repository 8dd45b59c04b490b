"""The page's charts: bars, and the graph of what needs what, as inline SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.release.page.html import Html, join, tag, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_CHAR = 7.3
"""Width of a character of the graph's font at 12 px, in px."""
_NODE_HEIGHT, _ROW, _GAP, _PAD = 24, 62, 18, 8


def bars(rows: Sequence[tuple[str, float]], *, label: str, show: Callable[[float], str]) -> Html:
    """Horizontal bars, one a row, the longest as wide as there is room: text stays text at every width."""
    longest = max((value for _, value in rows), default=0) or 1
    parts = [
        join(
            [
                tag("span", text(name)),
                tag(
                    "svg",
                    tag("rect", class_="back", width="100%", height="100%", rx=3),
                    tag("rect", class_="value", width=f"{100 * value / longest:.2f}%", height="100%", rx=3),
                    aria_hidden="true",
                ),
                tag("span", text(show(value))),
            ]
        )
        for name, value in rows
    ]
    return tag("div", *parts, class_="bars", role="group", aria_label=label)


@dataclass(frozen=True)
class Node:
    """A file in the graph."""

    name: str
    kind: str
    """A class of the style sheet: program, plugin, library, vendor, driver, missing."""

    @property
    def width(self) -> float:
        """In px."""
        return len(self.name) * _CHAR + 2 * _PAD


def reduced(edges: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The edges that no longer way stands for: what is needed through something else is not drawn twice."""
    after: dict[str, set[str]] = {}
    for source, target in edges:
        after.setdefault(source, set()).add(target)

    def reached(start: str, *, without: str) -> set[str]:
        seen: set[str] = set()
        waiting = [name for name in after.get(start, ()) if name != without]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += after.get(name, ())
        return seen

    return tuple((source, target) for source, target in edges if target not in reached(source, without=target))


def layers(nodes: Sequence[Node], edges: Sequence[tuple[str, str]]) -> tuple[tuple[Node, ...], ...]:
    """Nodes in rows: each below everything that needs it; within a row near those.

    An edge that closes a circle is not followed, so that a circle ends too.
    """
    by_name = {node.name: node for node in nodes}
    users: dict[str, list[str]] = {name: [] for name in by_name}
    for source, target in edges:
        if source in by_name and target in by_name and source != target:
            users[target].append(source)
    depth: dict[str, int] = {}

    def place(name: str, above: frozenset[str]) -> int:
        if name not in depth:
            over = [place(user, above | {name}) for user in users[name] if user not in above]
            depth[name] = 1 + max(over) if over else 0
        return depth[name]

    for name in by_name:
        place(name, frozenset({name}))
    rows: list[list[Node]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, level in depth.items():
        rows[level].append(by_name[name])
    across: dict[str, float] = {}
    for row in rows:
        row.sort(key=lambda node: (_middle(users[node.name], across), node.name))
        across |= {node.name: (place + 0.5) / len(row) for place, node in enumerate(row)}
    return tuple(map(tuple, rows))


def _middle(users: Sequence[str], across: Mapping[str, float]) -> float:
    known = [across[user] for user in users if user in across]
    return sum(known) / len(known) if known else 0.5


def graph(nodes: Sequence[Node], edges: Sequence[tuple[str, str]]) -> Html:
    """What needs what, from top to bottom. It keeps its size and scrolls where the page is narrower."""
    drawn_edges = reduced(edges)
    rows = layers(nodes, drawn_edges)
    wide = max((sum(node.width + _GAP for node in row) for row in rows), default=_GAP) - _GAP
    boxes: dict[str, tuple[float, float]] = {}
    drawn: list[Html] = []
    for level, row in enumerate(rows):
        left = (wide - sum(node.width + _GAP for node in row) + _GAP) / 2
        for node in row:
            boxes[node.name] = (left + node.width / 2, level * _ROW)
            drawn.append(_box(node, left, level * _ROW))
            left += node.width + _GAP
    tall = max(0, len(rows) - 1) * _ROW + _NODE_HEIGHT
    return tag(
        "div",
        tag(
            "svg",
            *(
                _curve(boxes[source], boxes[target])
                for source, target in drawn_edges
                if {source, target} <= boxes.keys()
            ),
            *drawn,
            viewBox=f"-1 -1 {wide + 2:.0f} {tall + 2}",
            width=f"{wide + 2:.0f}",
            height=tall + 2,
            role="img",
            aria_label="Which file needs which; the same as a table below",
        ),
        class_="graph wide",
        tabindex=0,
        role="group",
    )


def _box(node: Node, left: float, top: float) -> Html:
    return tag(
        "g",
        tag("title", text(f"{node.name}: {node.kind}")),
        tag(
            "rect",
            class_=node.kind,
            x=f"{left:.0f}",
            y=f"{top:.0f}",
            width=f"{node.width:.0f}",
            height=_NODE_HEIGHT,
            rx=5,
        ),
        tag("text", text(node.name), x=f"{left + _PAD:.0f}", y=f"{top + 16:.0f}"),
    )


def _curve(source: tuple[float, float], target: tuple[float, float]) -> Html:
    x1, y1 = source[0], source[1] + _NODE_HEIGHT
    x2, y2 = target
    bend = max(18.0, (y2 - y1) / 2)
    return tag("path", d=f"M{x1:.0f} {y1:.0f} C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}")
