"""Pictures with letters of all languages."""

import io

import pytest

from spanbert_tf.files.figures import fonts_with, save_figure
from spanbert_tf.lazy import import_figure

UNASSIGNED = "\U000e0fff"


def ink_of(text, capsys):
    """The dark pixels of a picture of a text, and what was printed."""
    from matplotlib.image import imread

    figure = import_figure()(figsize=(3, 1))
    figure.text(0.1, 0.3, text, fontsize=20)
    file = io.BytesIO()
    save_figure(figure, file)
    file.seek(0)
    captured = capsys.readouterr()
    assert not captured.err
    return int((imread(file)[..., 0] < 0.5).sum()), captured.out


def test_letters_of_the_default_font_need_no_other(capsys):
    assert fonts_with("aäЯא") == ([], set())
    ink, printed = ink_of("aäЯ", capsys)
    assert ink and not printed


def test_fonts_of_this_machine_are_added_for_letters_that_the_default_lacks(capsys):
    families, missing = fonts_with("aก")
    if missing:
        pytest.skip("this machine has no font with Thai letters")
    assert len(families) == 1
    assert "Resort" not in families[0]
    ink, printed = ink_of("กา", capsys)
    assert ink and not printed


@pytest.mark.filterwarnings("error")
def test_letters_that_no_font_has_are_named_in_a_line(capsys):
    assert fonts_with(UNASSIGNED) == ([], {UNASSIGNED})
    _, printed = ink_of(f"a{UNASSIGNED}", capsys)
    assert printed.startswith("no font of this machine has these letters of the picture: ")
    assert printed.count("\n") == 1
