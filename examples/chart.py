"""Line charts over time as SVG, without a plotting library."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 150, 60, 34, 26
COLOURS = ("#0072b2", "#e69f00", "#009e73")  # safe for colour-blind readers (Okabe and Ito)

Line = Sequence[tuple[float, float]]
"""Points: seconds, and a share from 0 to 1."""


def chart(title: str, panels: Mapping[str, Mapping[str, Line]]) -> str:
    """Return an SVG picture: one panel per name, with its lines by name."""
    longest = max(
        (x for lines in panels.values() for line in lines.values() for x, _ in line), default=1
    )
    parts = [f'<text x="{LEFT}" y="20" class="title">{escape(title)}</text>']
    for number, (name, lines) in enumerate(panels.items()):
        top = 30 + TOP + number * (HEIGHT + TOP + BOTTOM)
        parts += _panel(name, lines, top, longest)
    height = 30 + len(panels) * (HEIGHT + TOP + BOTTOM)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}"'
        f' role="img" aria-label="{escape(title)}">'
        "<style>text{font:12px system-ui,sans-serif;fill:#333}.title{font-size:15px}"
        "polyline{fill:none;stroke-width:2}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>'
    )


def _panel(name: str, lines: Mapping[str, Line], top: float, longest: float) -> list[str]:
    parts = [f'<text x="{LEFT}" y="{top - 10}">{escape(name)}</text>']
    for share in (0, 0.5, 1):
        y = top + HEIGHT * (1 - share)
        parts.append(f'<path d="M{LEFT} {y}h{WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{share:.0%}</text>')
    for colour, line in zip(COLOURS, lines.values(), strict=False):
        points = " ".join(
            f"{LEFT + WIDTH * x / longest:.1f},{top + HEIGHT * (1 - min(1, y)):.1f}"
            for x, y in line
        )
        parts.append(f'<polyline points="{points}" stroke="{colour}"/>')
    x = LEFT + WIDTH
    for colour, label in reversed(list(zip(COLOURS, lines, strict=False))):
        parts.append(
            f'<text x="{x}" y="{top - 10}" text-anchor="end" style="fill:{colour}">'
            f"{escape(label)}</text>"
        )
        x -= 7 * len(label) + 20
    parts.append(
        f'<text x="{LEFT + WIDTH}" y="{top + HEIGHT + 18}" text-anchor="end">{longest:.0f} s</text>'
    )
    return parts
