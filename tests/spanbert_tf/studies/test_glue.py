"""`glue`: results of runs, the papers' averages, submissions."""

import hashlib
import json
import os
import zipfile

import pytest

from spanbert_tf.cli import main
from spanbert_tf.studies.glue import (
    average_of_columns,
    average_of_tasks,
    find_results,
    paper_scores,
)
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS, submission_file, submission_text


@pytest.mark.parametrize(
    ("system", "average"),
    [("Google BERT", 80.4), ("Our BERT", 81.1), ("Our BERT-1seq", 81.7), ("SpanBERT", 82.8)],
)
def test_averages_of_table_5_are_the_papers(system, average):
    assert round(average_of_tasks(paper_scores()[system]), 1) == average


def test_averages_want_all_tasks():
    scores = dict(paper_scores()["SpanBERT"])
    # SegaBERT's columns, by hand: MNLI-m, -mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE.
    values = (88.1, 87.7, 71.9, 94.3, 94.8, 64.3, 89.1, 90.9, 79.0)
    assert average_of_columns(scores) == pytest.approx(sum(values) / 9)
    del scores["wnli"]
    assert average_of_tasks(scores) is None and average_of_columns(scores) is not None
    del scores["mnli_mm"]
    assert average_of_columns(scores) is None


def glue(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["glue", *map(str, arguments)])
    return stop.value.code


def write_run(runs, dataset, scores):
    run = runs / dataset
    (run / "preset").mkdir(parents=True)
    (run / "config.yaml").write_text(f"task: text_classification\ndata:\n  dataset: {dataset}\n")
    (run / "scores.json").write_text(json.dumps(scores))
    # What lies in a preset is not looked at.
    (run / "preset" / "scores.json").write_text("broken")


def write_predictions(runs, dataset):
    facts = GLUE_TASKS[dataset]
    labels = [(facts.labels or (1.25,))[0]] * facts.test_rows
    directory = runs / "predictions" / dataset
    directory.mkdir(parents=True)
    path = directory / submission_file(dataset)
    path.write_text(submission_text(dataset, labels))
    return path


@pytest.fixture
def runs(tmp_path):
    runs = tmp_path / "runs"
    write_run(runs, "rte", {"accuracy": 71.5})
    write_run(runs, "mrpc", {"f1": 90.5, "accuracy": 86.0, "score": 88.25})
    evaluation = {"dataset": "mnli_mm", "scores": {"accuracy": 83.5}}
    (runs / "mm").mkdir()
    (runs / "mm" / "evaluation.json").write_text(json.dumps(evaluation))
    for dataset in ("rte", "wnli", "stsb"):
        write_predictions(runs, dataset)
    return runs


def test_tables_name_what_is_missing(runs, capfd):
    assert glue(runs) == 0
    printed = capfd.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("│ these runs"))
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == ["these runs (dev)", "-", "-", "90.5/86.0", "-", "-", "-/83.5", "-", "71.5",
                     "-", "-"]  # fmt: skip
    assert "no scores of CoLA, SST-2, STS-B, QQP, MNLI-m, QNLI, WNLI" in printed


def write_evaluation(directory, dataset, score, **facts):
    directory.mkdir(parents=True)
    content = {"dataset": dataset, "scores": {"accuracy": score}, **facts}
    (directory / "evaluation.json").write_text(json.dumps(content))


def test_a_part_that_is_not_the_development_set_does_not_count(runs, capfd):
    write_evaluation(runs / "train", "rte", 99.0, rows=2490, preset="x")
    write_evaluation(runs / "dev", "rte", 71.75, rows=277, preset="x")
    assert find_results(str(runs))["rte"].scores["accuracy"] == 71.75
    path = runs / "train" / "evaluation.json"
    expected = f"{path}: does not count: 2,490 texts, and the development set of RTE has 277\n"
    assert capfd.readouterr().out == expected


def test_a_run_that_was_scored_on_a_part_does_not_count(runs, capfd):
    for name, score, rows in (("part", 99.0, 50), ("whole", 72.0, 277)):
        write_run(runs / name, "rte", {"accuracy": score})
        inputs = {"--data": "x", "--validation-data": "y", "validation_rows": rows}
        (runs / name / "rte" / "inputs.json").write_text(json.dumps(inputs))
    assert find_results(str(runs))["rte"].scores["accuracy"] == 72.0
    path = runs / "part" / "rte" / "scores.json"
    expected = f"{path}: does not count: 50 texts, and the development set of RTE has 277\n"
    assert capfd.readouterr().out == expected
    (runs / "part" / "rte" / "inputs.json").write_text("[")
    assert glue(runs) == 2
    assert "part/rte/inputs.json: " in capfd.readouterr().err


def test_nothing_is_chosen_on_the_mismatched_set(tmp_path, capfd):
    runs = tmp_path / "runs"
    for name, score in (("a", 84.0), ("b", 84.5), ("c", 80.0)):
        write_run(runs / name, "mnli", {"accuracy": score})
        (runs / name / "mnli" / "preset" / "golden.json").write_text(name)
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in "abc"}
    for name, score in (("a", 85.0), ("c", 86.0)):
        facts = {"rows": 9832, "preset": "preset", "golden_sha256": digests[name]}
        write_evaluation(runs / f"mm_{name}", "mnli_mm", score, **facts)
    assert "mnli_mm" not in find_results(str(runs))
    printed = capfd.readouterr().out
    said = "MNLI-mm: no result (of {}) is known to be of the model of " + str(runs / "b" / "mnli")
    assert printed.startswith(said.format(2))
    (runs / "mm_c" / "evaluation.json").unlink()  # one alone is of another model as well
    assert "mnli_mm" not in find_results(str(runs))
    assert capfd.readouterr().out.startswith(said.format(1))
    (runs / "b" / "mnli" / "preset" / "golden.json").rename(runs / "golden.json")
    assert find_results(str(runs))["mnli_mm"].scores["accuracy"] == 85.0  # it may be of this one
    (runs / "golden.json").rename(runs / "b" / "mnli" / "preset" / "golden.json")
    (runs / "b").rename(runs / "moved")  # weights, not paths, tell whose scores they are
    facts = {"rows": 9832, "preset": "preset", "golden_sha256": digests["b"]}
    write_evaluation(runs / "mm_b", "mnli_mm", 83.0, **facts)
    assert find_results(str(runs))["mnli_mm"].scores["accuracy"] == 83.0
    assert capfd.readouterr().out == ""


def test_submission_holds_what_is_there(runs, tmp_path, capfd):
    path = tmp_path / "glue.zip"
    assert glue(runs, "--submission", path) == 0
    assert "without CoLA, SST-2, MRPC, QQP, MNLI-m, MNLI-mm, QNLI, AX" in capfd.readouterr().out
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["STS-B.tsv", "RTE.tsv", "WNLI.tsv"]
        for name, rows in (("STS-B.tsv", 1379), ("RTE.tsv", 3000), ("WNLI.tsv", 146)):
            lines = archive.read(name).decode().splitlines()
            assert lines[0] == "index\tprediction" and len(lines) == rows + 1
    before = path.read_bytes()
    assert glue(runs, "--submission", path) == 2
    assert glue(runs, "--submission", path, "--overwrite") == 0
    assert path.read_bytes() == before  # the same predictions, the same bytes
    path.write_text("mine")
    assert glue(runs, "--submission", path, "--overwrite") == 2
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:-1], "RTE.tsv: holds 2,999 predictions, GLUE's test set of RTE has"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "RTE.tsv: line 2: "),
        (lambda lines: [*lines[:5], "4\tyes", *lines[6:]], "RTE.tsv: line 6: "),
        (lambda lines: lines[1:], "RTE.tsv: line 1: is not"),
    ],
)
def test_predictions_that_glue_would_refuse_are_refused(change, message, runs, tmp_path, capfd):
    path = runs / "predictions" / "rte" / "RTE.tsv"
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))
    assert glue(runs, "--submission", tmp_path / "glue.zip") == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "glue.zip").exists()


def test_two_predictions_of_a_test_set_are_refused(runs, capfd):
    write_predictions(runs / "again", "rte")
    assert glue(runs) == 2
    assert "is there, too; remove one of them" in capfd.readouterr().err


def test_linked_runs_count_and_each_once(runs, tmp_path, capfd):
    write_run(tmp_path / "disk", "cola", {"matthews": 61.5})
    write_predictions(tmp_path / "disk", "cola")
    (runs / "cola").symlink_to(tmp_path / "disk")
    (runs / "latest").symlink_to(tmp_path / "disk")
    assert glue(runs, "--submission", tmp_path / "glue.zip") == 0
    printed = capfd.readouterr().out
    assert "│ these runs (dev)       │ 61.5 │" in printed
    assert f"CoLA: {runs}/cola/cola\n" in printed
    assert "without SST-2," in printed


def test_folder_without_glue_is_refused(tmp_path, capfd):
    assert glue(tmp_path) == 2
    assert "holds no scores of GLUE" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("evaluation.json", '{"dataset": {"a": 1.0}}', "evaluation.json: dataset: "),
        ("evaluation.json", '{"dataset": "rte", "scores": {}, "rows": "x"}', "json: rows: "),
        ("inputs.json", '{"validation_rows": "x"}', "inputs.json: validation_rows: "),
        ("config.yaml", "data: {dataset: [x]}", "holds no scores of GLUE"),
    ],
)
def test_files_of_other_types_are_one_line(name, text, said, tmp_path, capfd):
    write_run(tmp_path / "runs", "rte", {"accuracy": 50.0})
    (tmp_path / "runs" / "rte" / name).write_text(text)
    assert glue(tmp_path / "runs") == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["config.yaml", "scores.json", "preset/golden.json"])
def test_pipes_in_runs_are_not_waited_for(name, tmp_path, capfd):
    write_run(tmp_path / "runs", "rte", {"accuracy": 50.0})
    path = tmp_path / "runs" / "rte" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert glue(tmp_path / "runs") == (0 if "golden" in name else 2)
    err = capfd.readouterr().err
    assert "golden" in name or ("no regular file" in err and err.count("\n") == 1)
