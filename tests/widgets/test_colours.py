"""Colours with different meanings are distinguishable by all users, in both themes.

The simulation of colour blindness is Machado, Oliveira, Fernandes 2009 ("A Physiologically-based
Model for Simulation of Color Vision Deficiency"), complete deficiencies, on linear sRGB. The
difference of two colours is their distance in CIELAB (CIE76): about 2.3 is just noticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from math import dist
from pathlib import Path

import pytest

from runai.hub_service.cli.output.render import STATE_STYLES

ROOT = Path(__file__).parents[2]
PAGE_CSS = (ROOT / "hub_service/api/pages/page.css").read_text(encoding="utf-8")
PANEL_CSS = (ROOT / "widgets/panel.css").read_text(encoding="utf-8")

COLOUR_VISIONS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red (protanopia)": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green (deuteranopia)": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no blue (tritanopia)": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
MIN_DISTANCE = 15.0
"""Six times the just noticeable difference."""
MIN_CONTRAST = 3.0
"""Of the foreground against its background: WCAG 2.2, success criterion 1.4.11."""

ADJACENT = {
    "page: bars": (PAGE_CSS, ("build", "train", "over")),
    "page: devices": (PAGE_CSS, ("build", "train", "other")),
    "page: chart": (PAGE_CSS, ("train", "over")),
    "page: timelines": (PAGE_CSS, ("train", "build", "over", "empty")),
    "panel: bars": (PANEL_CSS, ("sessions", "jobs", "over")),
    "panel: chart": (PANEL_CSS, ("jobs", "over")),
}
"""Adjacent colours with different meanings."""

CARD_COLOURS = ("build", "train", "over", "other", "soft", "bad", "good")
"""Colours on a card of the page."""

Rgb = tuple[float, float, float]


def themes(style: str) -> dict[str, dict[str, str]]:
    """Return the colours by their names, of the light and the dark theme."""
    pairs = re.findall(r"--(?:runai-)?([a-z]+): (#[0-9a-f]{3,6})[; ]", style)
    names = [name for name, _ in pairs]
    second = next(at for at, name in enumerate(names) if name in names[:at])
    return {"light": dict(pairs[:second]), "dark": dict(pairs[second:])}


def linear(colour: str) -> Rgb:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return red, green, blue


def simulate(colour: Rgb, vision: str) -> Rgb:
    red, green, blue = (
        min(1.0, max(0.0, sum(weight * part for weight, part in zip(row, colour, strict=True))))
        for row in COLOUR_VISIONS[vision]
    )
    return red, green, blue


def lab(colour: Rgb) -> Rgb:
    """Convert a linear sRGB colour to CIELAB, D65."""
    red, green, blue = colour
    x = (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047
    y = 0.2126729 * red + 0.7151522 * green + 0.0721750 * blue
    z = (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(colour: str, other: str) -> float:
    light, dark = sorted((luminance(colour), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("style", "names"), ADJACENT.values(), ids=ADJACENT)
def test_adjacent_colours_are_distinguishable_in_both_themes(style, names):
    distances = {
        (theme, vision, *pair): round(
            dist(*(lab(simulate(linear(colours[name]), vision)) for name in pair)), 1
        )
        for theme, colours in themes(style).items()
        for vision in COLOUR_VISIONS
        for pair in combinations(names, 2)
    }

    assert {case: distance for case, distance in distances.items() if distance < MIN_DISTANCE} == {}


PANEL_COLOURS = {"build": "sessions", "train": "jobs", "over": "over", "good": "good", "bad": "bad"}
"""Colours of the pages, and the panel's names for them."""
TERMINAL_COLOURS = {"good": "green", "bad": "red", "over": "yellow", "build": "cyan"}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_panel_has_the_colours_of_the_pages(theme):
    page, panel = themes(PAGE_CSS)[theme], themes(PANEL_CSS)[theme]

    assert {name: panel[PANEL_COLOURS[name]] for name in PANEL_COLOURS} == {
        name: page[name] for name in PANEL_COLOURS
    }


def state_colours(style: str, selector: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return the page's colour of each state in a style sheet."""
    rules = re.findall(r"([^{}]+)\{ color: var\(--(?:runai-)?(\w+)\); \}", style)
    return {
        state: names.get(colour, colour)
        for states, colour in rules
        for state in re.findall(selector, states)
    }


def test_state_colours_are_equal_on_pages_in_notebooks_and_terminals():
    panel_names = {panel: page for page, panel in PANEL_COLOURS.items()}
    page = state_colours(PAGE_CSS, r"\.state-(\w+)", {})

    assert state_colours(PANEL_CSS, r"\.runai-is-(\w+)", panel_names) == page
    assert {state: TERMINAL_COLOURS[colour] for state, colour in page.items()} == STATE_STYLES


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_on_a_card_contrast_with_its_background(theme):
    colours = {"card": "#ffffff"} | themes(PAGE_CSS)[theme]

    assert {
        name for name in CARD_COLOURS if contrast(colours[name], colours["card"]) < MIN_CONTRAST
    } == set()


def test_simulated_deuteranopia_confuses_red_and_olive():
    # A deuteranope confuses pure red with a certain olive; normal vision never does.
    red, olive = linear("#ff0000"), linear("#a39000")

    assert dist(lab(simulate(red, "normal")), lab(simulate(olive, "normal"))) > 80
    assert dist(
        lab(simulate(red, "no green (deuteranopia)")),
        lab(simulate(olive, "no green (deuteranopia)")),
    ) < 0.3 * dist(lab(red), lab(olive))
    for vision in COLOUR_VISIONS:
        assert simulate((1, 1, 1), vision) == pytest.approx((1, 1, 1), abs=1e-3)
