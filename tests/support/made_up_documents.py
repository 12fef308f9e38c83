"""Made-up documents whose coreference can be learned: names, pronouns and things."""

import random

NAMES = {"Ann": "She", "Bob": "He", "Eve": "She", "Tom": "He"}
THINGS = ["cat", "dog", "owl"]
VOCABULARY = [
    *("ann", "bob", "eve", "tom", "she", "he", "cat", "dog", "owl", "the", "a", "it"),
    *("has", "saw", "likes", "it", "sleep", "##s", "here", ".", ","),
]
VOCABULARY = list(dict.fromkeys(VOCABULARY))


def document(source, number, num_sentences):
    """Words, first words of sentences and clusters of a document."""
    words, starts, clusters = [], [], {}
    for _ in range(num_sentences):
        starts.append(len(words))
        name = source.choice(list(NAMES))
        is_pronoun = name in clusters and source.random() < 0.3
        clusters.setdefault(name, []).append((len(words), len(words)))
        words.append(NAMES[name] if is_pronoun else name)
        words.append(source.choice(["has", "saw", "likes"]))
        thing = source.choice(THINGS)
        clusters.setdefault(thing, []).append((len(words), len(words) + 1))
        words += ["the", thing, "."]
    kept = [spans for spans in clusters.values() if len(spans) > 1]
    return f"nw/made/{number:03}", words, starts, kept


def documents(count, seed, sizes=(2, 9)):
    source = random.Random(seed)
    return [document(source, number, source.randint(*sizes)) for number in range(count)]


def as_conll(name, words, starts, clusters, speaker="-"):
    """The document as a file of 12 columns, padded with spaces."""
    opened, closed = [""] * len(words), [""] * len(words)
    for number, spans in enumerate(clusters):
        for start, end in spans:
            opened[start] += f"|({number}" if start != end else f"|({number})"
            closed[end] += f"|{number})" if start != end else ""
    lines = [f"#begin document ({name}); part 000"]
    for number, word in enumerate(words):
        if number in starts[1:]:
            lines.append("")
        cell = (opened[number] + closed[number]).strip("|") or "-"
        columns = [name, "0", number, word, "-", "*", "-", "-", "-", speaker, "*", cell]
        lines.append("   ".join(map(str, columns)))
    return "\n".join([*lines, "", "#end document", ""])


def write_conll(path, made):
    path.write_text("".join(as_conll(*one) for one in made))
