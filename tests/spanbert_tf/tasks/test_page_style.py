"""Reports as everyone sees them: colour-blind, in the dark, without a mouse, without a network."""

import itertools
import os
import re

import numpy as np
import pytest

from spanbert_tf.tasks import report

FOLDER = os.path.dirname(report.__file__)
PAGE, MARKS = (os.path.join(FOLDER, name) for name in ("page.html", "marks.html"))
KINDS = ("both", "gold", "model", "overlap")  # right, missed, wrong, the two of them overlapping
# Machado, Oliveira and Fernandes (2009), table 1: severity 1.0, of linear RGB.
SEEN = {
    "all colours": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = TO_XYZ @ np.ones(3)


@pytest.fixture(scope="module")
def style():
    with open(MARKS, encoding="utf-8") as file:
        return re.search("<style>(.*)</style>", file.read(), re.DOTALL)[1]


@pytest.fixture(params=["light", "dark"])
def colours(style, request):
    """Name → linear RGB of the colours of a scheme."""
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    found = re.findall(r"--([\w-]+): #(\w+)", {"light": light, "dark": dark}[request.param])
    return {name: linear(digits) for name, digits in found}


def linear(digits):
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    values = np.array([int(digits[n : n + 2], 16) for n in (0, 2, 4)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b* of linear RGB."""
    t = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    x, y, z = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("of", ["", "-line"])
def test_right_missed_and_wrong_differ_in_colour_for_everyone(colours, seen, of):
    found = [lab(SEEN[seen] @ colours[f"{name}{of}"]) for name in ("right", "missed", "wrong")]
    for one, other in itertools.combinations(found, 2):
        assert np.linalg.norm(one - other) > 10  # 2.3 is what people just notice


def test_right_is_green(colours):
    for name in ("right", "right-line"):
        red, green, blue = colours[name]
        assert green > red and green > blue


@pytest.mark.parametrize("behind", ["page", "right", "missed", "wrong", "neutral"])
def test_text_can_be_read_on_every_mark(colours, behind):
    """A contrast of 4.5, as WCAG 2.1 wants it at level AA."""
    lights = sorted(TO_XYZ[1] @ colours[name] for name in ("text", behind))
    assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5


def test_marks_differ_in_their_lines(style):
    """In print, in grey, and on screens of few colours."""
    lines = []
    for kind in KINDS:
        rule = re.search(
            rf"^mark\.{kind}, \.mark\.{kind} \{{(.*?)\}}", style, re.DOTALL | re.MULTILINE
        )[1]
        found = re.findall(r"(border-bottom|outline): \d+px (\w+)", rule)
        assert found, kind
        lines.append(tuple(sorted(found)))
    assert len(set(lines)) == len(KINDS)


def test_a_text_in_a_notebook_has_the_marks_of_a_report():
    parts = report.marked_parts("Ann <b>", [(0, 3, "PER")], [(4, 7, "<i>")], ("no", "wrong", "ok"))
    found = report.marked_html([parts])
    with open(MARKS, encoding="utf-8") as file:
        assert file.read().rstrip() in found
    assert found.rstrip().endswith(
        '<p dir="auto"><mark class="gold" data-note="PER no">Ann</mark> '
        '<mark class="model" data-note="&lt;i&gt; wrong">&lt;b&gt;</mark></p>'
    )


def test_filters_are_reached_by_keys_and_nothing_is_fetched():
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    controls = re.findall(r"<(input|button|select|a|summary)\b([^>]*)>", page)
    assert [name for name, _ in controls].count("input") == 3
    assert not any("tabindex" in attributes for _, attributes in controls)
    assert ":focus-visible" in page and "onclick" not in page
    for name in ("http", "src=", "@import", "url(", "fetch("):
        assert name not in page
