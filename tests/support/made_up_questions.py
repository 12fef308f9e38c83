"""Questions that a tiny model can learn to answer."""

import random

from spanbert_tf.tasks.question_answering.files import Answer, Question, QuestionSet

NAMES = ["ann", "bob", "cid", "dan", "eve", "fay"]
WORDS = [*NAMES, "has", "the", "cat", "dog", "owl", "who", "?", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def made_up_questions(count, seed):
    """`ann has the cat. bob has the owl.` with the question `who has the owl?`."""
    source, contexts, questions = random.Random(seed), [], []
    for number in range(count):
        names, animals = source.sample(NAMES, 2), source.sample(["cat", "dog", "owl"], 2)
        contexts.append(" ".join(f"{n} has the {a}." for n, a in zip(names, animals, strict=True)))
        which = source.randrange(2)
        answer = Answer(names[which], contexts[-1].index(names[which]))
        text = f"who has the {animals[which]}?"
        questions.append(Question(str(number), text, number, (answer,), (answer.text,)))
    return QuestionSet("made up", contexts, questions)
