"""The page's charts: bars, and the graph of what needs what, as inline SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamabuild.release.page.html import Html, join, tag, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_CHAR = 7.3
"""Width of a character of the graph's font at 12 px, in px."""
_NODE_HEIGHT, _ROW, _GAP, _PAD = 24, 34, 56, 8


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


def layers(nodes: Sequence[Node], edges: Sequence[tuple[str, str]]) -> tuple[tuple[Node, ...], ...]:
    """Nodes in columns: each to the right of everything that needs it; within a column near those.

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
    columns: list[list[Node]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, level in depth.items():
        columns[level].append(by_name[name])
    height: dict[str, float] = {}
    for column in columns:
        column.sort(key=lambda node: (_middle(users[node.name], height), node.name))
        height |= {node.name: row / max(1, len(column) - 1) for row, node in enumerate(column)}
    return tuple(map(tuple, columns))


def _middle(users: Sequence[str], height: Mapping[str, float]) -> float:
    known = [height[user] for user in users if user in height]
    return sum(known) / len(known) if known else 0.0


def graph(nodes: Sequence[Node], edges: Sequence[tuple[str, str]]) -> Html:
    """What needs what, from left to right. It keeps its size and scrolls where the page is narrower."""
    columns = layers(nodes, edges)
    tall = max((len(column) for column in columns), default=0) * _ROW
    boxes: dict[str, tuple[float, float, float]] = {}
    drawn: list[Html] = []
    left = 0.0
    for column in columns:
        width = max(node.width for node in column)
        top = (tall - len(column) * _ROW) / 2
        for row, node in enumerate(column):
            y = top + row * _ROW + (_ROW - _NODE_HEIGHT) / 2
            boxes[node.name] = (left, y, width)
            drawn.append(
                tag(
                    "g",
                    tag("title", text(f"{node.name}: {node.kind}")),
                    tag("rect", class_=node.kind, x=f"{left:.0f}", y=f"{y:.0f}", width=f"{width:.0f}", height=24, rx=5),
                    tag("text", text(node.name), x=f"{left + _PAD:.0f}", y=f"{y + 16:.0f}"),
                )
            )
        left += width + _GAP
    curves = [_curve(boxes[source], boxes[target]) for source, target in edges if {source, target} <= boxes.keys()]
    total = max(1.0, left - _GAP) + 2
    return tag(
        "div",
        tag(
            "svg",
            *curves,
            *drawn,
            viewBox=f"-1 -1 {total:.0f} {tall + 2}",
            width=f"{total:.0f}",
            height=tall + 2,
            role="img",
            aria_label="Which file needs which; the same as a table below",
        ),
        class_="graph wide",
        tabindex=0,
        role="group",
    )


def _curve(source: tuple[float, float, float], target: tuple[float, float, float]) -> Html:
    x1, y1 = source[0] + source[2], source[1] + _NODE_HEIGHT / 2
    x2, y2 = target[0], target[1] + _NODE_HEIGHT / 2
    bend = max(24.0, abs(x2 - x1) / 2)
    return tag("path", d=f"M{x1:.0f} {y1:.0f} C{x1 + bend:.0f} {y1:.0f} {x2 - bend:.0f} {y2:.0f} {x2:.0f} {y2:.0f}")
