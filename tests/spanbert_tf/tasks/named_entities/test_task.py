"""Named entities as a task: what is true of all tasks."""

import json
import pathlib
import random
import types
from typing import ClassVar

import pytest
from made_up_outcomes import made_up_records
from task_tests import SEQUENCE_LENGTH, SPECIAL, TaskTests, assert_same_answers, run_benchmark

from spanbert_tf.errors import MismatchError
from spanbert_tf.tasks.named_entities.rows import read_entity_lines, write_entities
from spanbert_tf.tasks.named_entities.task import NamedEntities, _columns
from spanbert_tf.tasks.prediction import Predictor, run_prediction

pytestmark = pytest.mark.slow  # whole trainings, exports and predictions

NAMES = {"PER": ["ann", "bob", "eve"], "LOC": ["rome", "oslo", "bern"]}
SECOND = {"PER": "lee", "LOC": "##town"}
WORDS = ["the", "lives", "in", "sees", "and", ".", *NAMES["PER"], *NAMES["LOC"], *SECOND.values()]


def made_up_lines(count, seed):
    """`the ann lee sees rometown .`: half of the names have a second word, or a second piece."""
    source = random.Random(seed)
    for number in range(count):
        text, entities = "", []
        for _ in range(source.randrange(2, 8)):
            label = source.choice([None, None, "PER", "LOC"])
            if label is None:
                text += source.choice(WORDS[:6]) + " "
                continue
            name = source.choice(NAMES[label])
            if source.random() < 0.5:
                second = SECOND[label]
                name += second.removeprefix("##") if "##" in second else f" {second}"
            entities.append({"start": len(text), "end": len(text) + len(name), "label": label})
            text += name + " "
        yield {"id": f"s{number}", "text": text, "entities": entities}


def write_lines(lines, output, vocabulary):
    source = pathlib.Path(f"{output}.jsonl")
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    write_entities(
        read_entity_lines(str(source)),
        str(output),
        vocabulary=vocabulary,
        lowercase=True,
        sequence_length=SEQUENCE_LENGTH,
    )


def test_word_of_white_space_keeps_its_column():
    """A reader that splits at white space would take the label for the word."""
    sentence = {"text": "ann \u00a0 sat", "words": [[0, 3], [4, 5], [6, 9]]}
    lines = _columns({**sentence, "labels": ["B-PER", "O", "O"]}, ["O", "O", "O"]).splitlines()
    assert [line.split() for line in lines] == [
        ["ann", "B-PER", "O"],
        ["_", "O", "O"],
        ["sat", "O", "O"],
    ]


@pytest.mark.parametrize("label", ["S-PER", "PER", "L-PER"])
def test_model_with_labels_of_another_scheme_is_refused(label):
    model = types.SimpleNamespace(labels=["O", "B-PER", label])
    records = made_up_records([], labels=["O", "B-PER", "I-PER"])
    with pytest.raises(MismatchError, match=f"preset: its label '{label}' is neither O nor one"):
        NamedEntities().check_model(model, records, "preset")


def test_records_without_any_type_of_the_model_are_refused(capsys):
    """O is in all records."""
    model = types.SimpleNamespace(labels=["O", "B-PER", "I-PER"])
    others = made_up_records([], labels=["O", "B-GENE", "I-GENE"])
    with pytest.raises(MismatchError, match=r"has none of the labels of preset \(B-PER, I-PER, …"):
        NamedEntities().check_model(model, others, "preset")
    for labels in (["O"], ["O", "B-PER", "I-PER"]):
        NamedEntities().check_model(model, made_up_records([], labels=labels), "preset")
    assert capsys.readouterr().out == ""
    some = made_up_records([], labels=["O", "B-GENE", "I-GENE", "B-PER", "I-PER"])
    NamedEntities().check_model(model, some, "preset")
    assert "preset does not have the labels B-GENE, I-GENE" in capsys.readouterr().out


class TestNamedEntities(TaskTests):
    config_text = "task: named_entities\nprediction: {aggregation_strategy: first}\n"
    vocabulary = SPECIAL + WORDS
    raw_input: ClassVar = {"text": "the ann lee lives in rometown ."}

    def write_records(self, directory, vocabulary):
        for name, count, seed in (("train", 64, 1), ("dev", 24, 2), ("other", 64, 3)):
            write_lines(made_up_lines(count, seed), directory / name, vocabulary)

    def raw_inputs(self, data):
        lines = pathlib.Path(f"{data}.jsonl").read_text().splitlines()
        return [{"text": json.loads(line)["text"]} for line in lines]

    def answers_in_files(self, output):
        lines = (output / "entities.jsonl").read_text().splitlines()
        return [self.answer_of_predictor(json.loads(line)["entities"]) for line in lines]

    def answers_of_export(self, outputs):
        names = {"types": "entity_group", "words": "word", "starts": "start", "ends": "end"}
        names["scores"] = "score"
        return [
            self.answer_of_predictor(
                [
                    {
                        name: value.decode() if isinstance(value, bytes) else value.item()
                        for name, value in zip(names.values(), values, strict=True)
                    }
                    for values in zip(*row, strict=True)
                    if values[0]
                ]
            )
            for row in zip(*(outputs[name] for name in names), strict=True)
        ]

    def answer_of_predictor(self, found):
        answer = {"count": len(found)}
        for number, entity in enumerate(found):
            answer |= {f"{name} of {number}": value for name, value in entity.items()}
        return answer

    def test_half_a_surrogate_pair_moves_no_label(self, finished, material, tmp_path):
        odd = {"text": "the great\ud83d ann lives in rome .", "entities": []}
        made = list(made_up_lines(4, 9))
        write_lines([*made[:2], odd, *made[2:]], tmp_path / "odd", material["vocab.txt"])
        run_prediction(finished[0], str(tmp_path / "odd"), str(tmp_path / "out"))
        found = Predictor(finished[0])(self.raw_inputs(tmp_path / "odd"))
        words = {entity["start"]: entity["word"] for entity in found[2]}
        for start, word in words.items():
            assert word == odd["text"].replace("\ud83d", "?")[start : start + len(word)]
        # What else such a small model takes for names is not the subject here.
        assert words[odd["text"].index("ann")] == "ann"
        assert words[odd["text"].index("rome")] == "rome"
        in_files = self.answers_in_files(tmp_path / "out")
        assert_same_answers(map(self.answer_of_predictor, found), in_files)

    def test_it_is_learned(self, finished):
        assert finished[1]["f1"] > 90  # both types, and names of two words and of two pieces

    @pytest.mark.usefixtures("shipped_classes_alone")
    def test_benchmark_runs_at_a_tiny_size(self, material, capfd):
        run_benchmark(material["train"], material["preset"], capfd)
