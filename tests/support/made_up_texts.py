"""Made-up labelled texts, and their records."""

import numpy as np

from spanbert_tf.tasks.text_classification.files import LabelledText, LabelledTexts
from spanbert_tf.tasks.text_classification.rows import write_labelled_texts

NAMES, ANIMALS = ["ann", "bob", "cat"], ["dog", "owl", "fox"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "has", ".", "?", "a", "##s"]
VOCABULARY += [*NAMES, *ANIMALS]
LABELS = ("contradiction", "entailment", "neutral")


def made_up_pairs(count, seed, *, labels=LABELS, labelled=True):
    """Pairs where the second follows from the first, contradicts it, or says something else."""
    random = np.random.default_rng(seed)
    examples = []
    for number in range(count):
        name, animal, other = (str(random.choice(words)) for words in (NAMES, ANIMALS, ANIMALS))
        first = f"the {name} has the {animal} . " * int(random.integers(1, 4))
        label = labels[int(random.integers(len(labels)))]
        second = {"entailment": f"a {animal}", "neutral": f"the {name} has ?"}.get(label, other)
        examples.append(LabelledText(number + 1, (first, second), label if labelled else None))
    return LabelledTexts("made up", examples, labels, is_pair=True)


def made_up_scores(count, seed):
    """Texts whose score is the number of their animals."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, 6, count).tolist()
    examples = [
        LabelledText(number + 1, (" ".join(["the", *["dog"] * n]),), float(n))
        for number, n in enumerate(counts)
    ]
    return LabelledTexts("made up", examples, ("animals",), is_pair=False, is_regression=True)


def write_texts(texts, output, vocabulary, **options):
    """Records of up to 32 positions."""
    options = {"lowercase": True, "sequence_length": 32, **options}
    return write_labelled_texts(texts, str(output), vocabulary=str(vocabulary), **options)
