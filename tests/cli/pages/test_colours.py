"""Colours can be told apart by people who see little contrast, in both themes."""

from mvc.cli.pages.report import DARK, DARK_RAMP, LIGHT, LIGHT_RAMP


def _luminance(colour):
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one, other):
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out():
    for colours in [LIGHT, DARK]:
        for ground in ("ground", "raised", "hover"):
            for text in ("ink", "quiet", "good", "warning", "bad", "accent"):
                assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for ground in ("accent", "bad"):
            assert _contrast(colours["on-accent"], colours[ground]) >= 4.5
        assert _contrast(colours["ink"], colours["empty"]) >= 4.5


def test_a_ramp_goes_one_way():
    for ramp, way in [(LIGHT_RAMP, -1), (DARK_RAMP, 1)]:
        shades = [_luminance(colour) * way for colour in ramp]
        assert shades == sorted(shades)
