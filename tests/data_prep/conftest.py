import random

import pytest


@pytest.fixture(scope="session")
def letters_vocabulary(tmp_path_factory):
    """A cased vocabulary in which each word has pieces: its letters, and some pairs of letters."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,!?'\"-()<>&;"]
    pieces += [*letters, *(f"##{letter}" for letter in letters)]
    pieces += [f"##{a}{b}" for a in "aeiou" for b in "nrst"]
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n")
    return str(path)


def random_words(source, count):
    return [
        "".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=source.randint(1, 7)))
        for _ in range(count)
    ]


def random_sentence(source, longest=25):
    return " ".join(random_words(source, source.randint(1, longest))).capitalize() + "."


def random_document(source, num_paragraphs):
    """Paragraphs, which are lists of sentences."""
    return [
        [random_sentence(source) for _ in range(source.randint(1, 6))]
        for _ in range(num_paragraphs)
    ]


def to_wikipedia(documents, first_id=0, separator="\n\n"):
    """WikiExtractor's text of documents: title → paragraphs of sentences."""
    text = ""
    for number, (title, paragraphs) in enumerate(documents.items(), start=first_id):
        text += f'<doc id="{number}" url="?curid={number}" title="{title}">\n{title}\n\n'
        text += separator.join(" ".join(paragraph) for paragraph in paragraphs)
        text += "\n\n</doc>\n"
    return text


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Files of WikiExtractor's text: directory, and the paragraphs of each document in order."""
    directory = tmp_path_factory.mktemp("corpus")
    source = random.Random(3)
    documents = []
    for file_number in range(5):
        of_file = {
            f"Title {file_number} {number}": random_document(source, source.randint(1, 20))
            for number in range(source.randint(3, 9))
        }
        of_file[f"Nothing but a title {file_number}"] = []
        (directory / f"wiki_{file_number:02d}").write_text(to_wikipedia(of_file))
        documents += [paragraphs for paragraphs in of_file.values() if paragraphs]
    return directory, documents
