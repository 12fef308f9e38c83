"""What `inspect` shows of records of questions."""

from spanbert_tf.console import DataConsole
from spanbert_tf.tasks.inspection import inspect_records
from spanbert_tf.tasks.question_answering.files import Answer, Question, QuestionSet
from spanbert_tf.tasks.question_answering.rows import QuestionOptions, write_questions

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ann", "##a", "has", "the", "cat"]
VOCABULARY += ["who", "?", "."]


def write_records(tmp_path, questions):
    """Records about two contexts of the same text."""
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    output = str(tmp_path / "records")
    write_questions(
        QuestionSet("made up", ["Anna has the cat."] * 2, questions),
        output,
        vocabulary=str(tmp_path / "vocab.txt"),
        lowercase=True,
        options=QuestionOptions(sequence_length=32, has_unanswerable=True),
    )
    return output


def test_counts_and_readable_rows(tmp_path):
    answer = Answer("Anna", 0)
    questions = [
        Question("first", "Who has the cat?", 0, (answer,), (answer.text,)),
        Question("second", "Who?", 1, (), (), True),
    ]
    output = write_records(tmp_path, questions)
    console = DataConsole(record=True, width=200)
    inspect_records(output, "spanbert_base", num_examples=2, console=console)
    shown = console.export_text()
    assert "questions: 2" in shown and "windows: 2" in shown
    first, second = shown.split("first: Who has the cat?")[1].split("second: Who?")
    assert "gold answers: Anna\n" in first
    assert "[CLS] »anna« has the cat . [SEP] who has the cat ? [SEP]" in first
    assert "gold answers: none\n" in second
    assert "[CLS] anna has the cat . [SEP] who ? [SEP]" in second


def test_names_of_emojis_stay_what_the_text_has(tmp_path, capfd):
    output = write_records(tmp_path, [Question("1", "Who? :cat: [red]", 0, (), (), True)])
    inspect_records(output, "spanbert_base", num_examples=1)
    assert "1: Who? :cat: [red]\n" in capfd.readouterr().out
