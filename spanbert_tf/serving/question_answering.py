"""`spanbert-tf export` of a question answerer."""

from spanbert_tf.models import SpanBertQuestionAnswerer
from spanbert_tf.presets.loading import load_checked
from spanbert_tf.question_answering.settings import load_settings
from spanbert_tf.serving.answer_questions import AnswerQuestions
from spanbert_tf.serving.exporting import check_new_version, export_module
from spanbert_tf.serving.precision import describe_answers, in_precision


def export_question_answerer(
    preset: str, output: str, *, version: int = 1, top_k: int = 5, precision: str = "float32"
) -> str:
    """Writes `output/version/`, a SavedModel that TF Serving loads.

    Its signatures are methods of `AnswerQuestions`: `serving_default` is `answer`, `token_ids` is
    `logits_of_rows`.

    Args:
        preset: of a `SpanBertQuestionAnswerer`.
        output: the model's directory for TF Serving; its name is the model's.
        version: of the model; the name of the directory.
        top_k: answers for each question.
        precision: `"float32"`, `"bfloat16"` or `"int8"`; prints what another one than float32
            changes in the outputs.

    Returns:
        The path of the SavedModel.

    Raises:
        BadInputError: the preset cannot be used, the version exists, or it cannot be written.
    """
    path = check_new_version(output, version)
    answerer = load_checked(SpanBertQuestionAnswerer, preset)
    if precision != "float32":
        exact, answerer = answerer, in_precision(SpanBertQuestionAnswerer, preset, precision)
        print(f"{precision}: {describe_answers(exact, answerer)}", flush=True)
    module = AnswerQuestions(answerer, load_settings(preset), top_k)
    export_module(module, answerer.preprocessor.tokenizer, path)
    print(f"{path}: questions and contexts in, the {top_k} best answers out", flush=True)
    return path
