"""`fit` of a question answerer on texts: where answers stand in rows, against plain Python."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertTokenizer,
)

LETTERS = [*"abcdefghijklmnopqrstuvwxyz"]
WORDS = ["the", "cat", "sat", "on", "mat", "who", "dog", "zoe", "?", ".", ","]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
VOCABULARY += [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
LENGTH = 16

QUESTION = "who sat?"  # three tokens: ten of the passage are in a row
ROWS = [  # passage, answer, the character where it begins
    ("the cat sat on the mat.", "cat", 4),
    ("the cat sat on the mat.", "the mat", 15),
    ("the cat sat on the mat.", "the", 15),  # by text alone it is at 0
    ("Zoë, Zoë sat on the mät.", "mät", 20),
    ("Zoë, Zoë sat on the mät.", "Zoë", 5),
    ("  \u4e2d \U0001f600 the cat , sat", "the cat ,", 6),
    ("the cats sat", "cats", 4),  # `cat` and `##s`
    ("the cats sat", "ats", 5),  # tokens that it covers in part are its own
    ("the cat sat", "", 0),
    ("the cat sat", "dog", 4),
    ("the cat sat", "Cat", 4),
    ("the cat sat", "cat", 5),  # by its character it is not there
    ("the cat sat", "cat", 400),
    ("the cat sat", "cat", -1),
    ("the cat sat", " ", 3),
    ("", "cat", 0),
    ("on on on on on on on on on the cat", "the", 27),
    ("on on on on on on on on on the cat", "the cat", 27),  # its end is cut off
    ("on on on on on on on on on on on the cat", "cat", 37),
]


def tokens_of(text):
    """First character and the one behind of each token, for texts of known words and letters."""
    found = []
    for word in re.finditer(r"\w+|[^\w\s]", text):
        first, word_end = word.span()
        known = word.group().lower().replace("ë", "e").replace("ä", "a")
        while first < word_end:
            rest = known[first - word.start() :]
            is_whole = first == word.start()
            ends = [size for size in range(len(rest), 0, -1) if is_whole and rest[:size] in WORDS]
            size = ends[0] if ends else 1 if rest[0] in LETTERS else len(rest)
            found.append((first, first + size))
            first += size
    return found


def expected_positions(passage, answer, start, question_first):
    end = start + len(answer)
    is_there = answer and start >= 0 and passage[start:end] == answer
    covered = [
        number
        for number, (first, behind) in enumerate(tokens_of(passage))
        if first < end and start < behind
    ]
    if not is_there or not covered or covered[-1] >= LENGTH - 3 - 3:
        return 0, 0
    shift = 5 if question_first else 1
    return covered[0] + shift, covered[-1] + shift


def make_preprocessor(**options):
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    return SpanBertQuestionAnswererPreprocessor(tokenizer, sequence_length=LENGTH, **options)


OPTIONS = [{}, {"question_first": True}, {"question_first": True, "segment_aware": True}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("with_starts", [True, False])
def test_positions_of_answers(options, with_starts):
    passages, answers, starts = map(list, zip(*ROWS, strict=True))
    if not with_starts:
        starts = [passage.find(answer) for passage, answer, _ in ROWS]
    question_first = bool(options)
    expected = [
        expected_positions(*row, question_first)
        for row in zip(passages, answers, starts, strict=True)
    ]
    assert 4 < sum(start > 0 for start, _ in expected) < len(ROWS) - 4
    preprocessor = make_preprocessor(**options)
    x = ([QUESTION] * len(ROWS), passages)
    y = (answers, starts) if with_starts else answers
    found_in = [preprocessor(x=x, y=y)]
    if with_starts:
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(len(ROWS))
        found_in += dataset.map(preprocessor)
    without_answers = preprocessor(x=x)
    for features, positions in found_in:
        found = zip(
            positions["start_positions"].numpy().tolist(),
            positions["end_positions"].numpy().tolist(),
            strict=True,
        )
        assert list(found) == expected
        # The rows are those without answers, as the model will read them.
        for name, values in without_answers.items():
            np.testing.assert_array_equal(features[name], values)


def test_positions_are_handed_through_and_weights_too():
    preprocessor = make_preprocessor()
    positions = {"start_positions": np.array([3]), "end_positions": np.array([4])}
    _, y, weights = preprocessor(
        x=([QUESTION], ["the cat sat"]), y=positions, sample_weight=np.array([0.5])
    )
    assert {name: values.numpy().tolist() for name, values in y.items()} == {
        "start_positions": [3],
        "end_positions": [4],
    }
    assert weights.numpy().tolist() == [0.5]


def test_what_is_no_answer_is_refused():
    with pytest.raises(ValueError, match=r"answers as strings, a tuple \(answers, starts\)"):
        make_preprocessor()(x=([QUESTION], ["the cat sat"]), y=[4])


@pytest.fixture
def answerer():
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(
        len(VOCABULARY), 2, 4, 32, 37, dropout=0.0, max_sequence_length=LENGTH
    )
    return SpanBertQuestionAnswerer(backbone, make_preprocessor())


@pytest.mark.slow
@pytest.mark.parametrize("with_starts", [True, False])
def test_fit_on_texts_learns_them(answerer, with_starts):
    passages = ["the cat sat on the mat", "Zoë sat on the cat", "the dog sat"]
    answers, starts = ["the mat", "Zoë", ""], [15, 0, 0]
    answerer.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    losses = []  # means over the steps so far
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: losses.append(logs["loss"])
    )
    # One epoch of many steps: each epoch would optimize the graph of the preprocessor again.
    answerer.fit(
        x=([QUESTION] * 3 * 40, passages * 40),
        y=(answers * 40, starts * 40) if with_starts else answers * 40,
        batch_size=3,
        verbose=0,
        callbacks=[record],
    )
    assert losses[0] > 1.5
    assert 40 * losses[39] - 39 * losses[38] < 0.1  # the last step's
    logits = answerer(answerer.preprocessor(x=([QUESTION] * 3, passages)), training=False)
    for end, expected in (("start", [5, 1, 0]), ("end", [6, 1, 0])):
        assert np.argmax(logits[f"{end}_logits"], axis=1).tolist() == expected


@pytest.mark.slow
def test_the_example_of_the_class(answerer, tmp_path):
    """The block of code in the docstring, with a preset of that name."""
    answerer.is_head_trained = True
    preset = str(tmp_path / "preset")
    answerer.save_to_preset(preset)
    for documented, names in (
        (SpanBertQuestionAnswerer, {"run/preset": preset}),
        (SpanBertQuestionAnswererPreprocessor, {"records/vocab.txt": str(tmp_path / "vocab.txt")}),
    ):
        (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
        code = re.search(r"```python\n(.*?)```", documented.__doc__, re.DOTALL).group(1)
        for name, path in names.items():
            assert name in code
            code = code.replace(name, path)
        space = {}
        exec("import spanbert_tf.models\n" + re.sub(r"(?m)^ {4}", "", code), space)
    assert space["y"]["start_positions"].numpy().tolist() == [2]
