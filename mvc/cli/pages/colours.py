"""The colours of pages and pictures, light and dark; all text has a contrast of at least 4.5."""

from __future__ import annotations

LIGHT = {
    "ground": "#f6f7f9", "raised": "#ffffff", "ink": "#1a2230", "quiet": "#596273",
    "line": "#dde1e8", "hover": "#f0f3f8", "accent": "#2456c5", "on-accent": "#ffffff",
    "second": "#c2570c", "good": "#1b7a3d", "warning": "#8f5a00", "bad": "#c22030",
    "same": "#e9ebef", "empty": "#c9ced8",
}  # fmt: skip
"""Names and colours on a light ground."""

DARK = {
    "ground": "#11151c", "raised": "#191f29", "ink": "#e6eaf1", "quiet": "#9aa5b5",
    "line": "#2c3442", "hover": "#212937", "accent": "#7aa8ff", "on-accent": "#0d1420",
    "second": "#f0954a", "good": "#5cc98a", "warning": "#e6b450", "bad": "#ff7b81",
    "same": "#242b37", "empty": "#475163",
}  # fmt: skip
"""The same names on a dark ground."""

LIGHT_RAMP = ("#dbe7f6", "#a3c4ea", "#6495d8", "#5a62bf", "#6f2c91", "#4f0a3c")
"""From a small difference to a large one, ever darker."""

DARK_RAMP = ("#1f3350", "#24567f", "#24828f", "#58b077", "#c9cf53", "#fff3bd")
"""From a small difference to a large one, ever brighter."""


def style_text(colours: dict[str, str], ramp: tuple[str, ...]) -> str:
    """Return colours as custom properties of CSS."""
    pairs = {**colours, "ramp": ", ".join(ramp)}
    return " ".join(f"--{name}: {value};" for name, value in pairs.items())
