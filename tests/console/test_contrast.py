"""The colours of the console: text is readable (WCAG AA) in light and dark, wherever the style puts it."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

STYLE = (files("a2a_fabric.console") / "static" / "style.css").read_text("utf-8")
BLOCKS = {"light": r":root \{(.*?)\n\}", "dark": r':root\[data-theme="dark"\] \{\n(.*?)\n\}'}
TEXTS = ("text", "muted", "faint", "accent-text", "bad", "good", "warn")
GROUNDS = ("bg", "panel", "hover", "code")
PAIRS = [*((text, ground) for text in TEXTS for ground in GROUNDS),
         ("good", "good-soft"), ("bad", "bad-soft"), ("warn", "warn-soft"), ("busy", "busy-soft"),
         ("muted", "press"), ("accent-text", "accent-soft"), ("text", "bad-soft"), ("on-accent", "accent"),
         ("on-bad", "bad"), ("faint", "accent-soft"), ("muted", "accent-soft"),
         ("key", "code"), ("string", "code"), ("number", "code")]  # fmt: skip
AA = 4.5


def read_colours(theme: str) -> dict[str, str]:
    block = re.search(BLOCKS[theme], STYLE, re.DOTALL)
    assert block is not None
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block[1]))


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", BLOCKS)
def test_text_has_the_contrast_of_aa(theme: str) -> None:
    colours = read_colours(theme)
    weak = {}
    for text, ground in PAIRS:
        light, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
        if (ratio := (light + 0.05) / (dark + 0.05)) < AA:
            weak[text, ground] = round(ratio, 2)
    assert weak == {}


def test_both_ways_to_the_dark_theme_have_the_same_colours() -> None:
    """A media query and an attribute cannot share a block."""
    system = re.search(r"prefers-color-scheme: dark\) \{ :root[^{]*\{(.*?)\n\} \}", STYLE, re.DOTALL)
    assert system is not None
    assert dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", system[1])) == read_colours("dark")
