"""A page that shows each question with its passage, the gold answers and the model's."""

import html
import itertools
from collections.abc import Sequence

from spanbert_tf.question_answering.answers import AnsweredQuestion

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; overflow-wrap: break-word }}
article {{ border-top: 1px solid #ccc; padding: .8rem 0 }}
h2 {{ font-size: 1rem; margin: 0 }}
.score {{ float: right; font-variant-numeric: tabular-nums }}
.gold {{ background: #bfe3c3 }} .model {{ background: #f6c7b6 }} .both {{ background: #cfd8f7 }}
details p {{ white-space: pre-wrap }}
nav label {{ margin-right: 1.2rem }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}. <mark class="gold">Gold answers</mark>, <mark class="model">the model's answer</mark>,
<mark class="both">both</mark>.</p>
<nav>
<label><input type="radio" name="show" value="all" checked> all ({total:,})</label>
<label><input type="radio" name="show" value="inexact"> no exact match ({inexact:,})</label>
<label><input type="radio" name="show" value="wrong"> F1 of 0 ({wrong:,})</label>
<label>with the words <input type="search"></label>
</nav>
{articles}
<script>
const kinds = document.querySelectorAll("[name=show]");
const words = document.querySelector("[type=search]");
function show() {{
  const kind = document.querySelector("[name=show]:checked").value;
  for (const article of document.querySelectorAll("article")) {{
    const fits = kind === "all" || article.dataset.kinds.split(" ").includes(kind);
    const found = article.textContent.toLowerCase().includes(words.value.toLowerCase());
    article.hidden = !(fits && found);
  }}
}}
kinds.forEach(kind => kind.addEventListener("change", show));
words.addEventListener("input", show);
</script>
</body></html>
"""
_ARTICLE = """<article data-kinds="{kinds}">
<span class="score">F1 {f1:.0f}</span><h2>{question}</h2>
<div>gold: {golds}; model: <b>{answer}</b> ({probability:.0%})</div>
<details{opened}><summary>passage</summary><p>{passage}</p></details>
</article>"""


def report_page(
    title: str,
    questions: Sequence[dict],
    contexts: Sequence[str],
    answered: Sequence[AnsweredQuestion],
    answers: Sequence[str],
    scores: Sequence[dict[str, float]],
) -> str:
    """The page as HTML that needs nothing else.

    Args:
        title: of the page.
        questions: lines of `questions.jsonl`.
        contexts: passages.
        answered: in the order of the questions.
        answers: the text that counts, empty for no answer.
        scores: `exact_match` and `f1` of each question, in percent.
    """
    kinds = [_kinds(score) for score in scores]
    articles = [
        _article(question, contexts[question["context_index"]], item, answer, score, kind)
        for question, item, answer, score, kind in zip(
            questions, answered, answers, scores, kinds, strict=True
        )
    ]
    f1 = sum(score["f1"] for score in scores) / len(scores)
    exact = sum(score["exact_match"] for score in scores) / len(scores)
    return _PAGE.format(
        title=html.escape(title),
        summary=f"{len(scores):,} questions: exact match {exact:.2f}, F1 {f1:.2f}",
        total=len(scores),
        inexact=sum("inexact" in kind for kind in kinds),
        wrong=sum("wrong" in kind for kind in kinds),
        articles="\n".join(articles),
    )


def _kinds(score: dict[str, float]) -> list[str]:
    return ["inexact"] * (score["exact_match"] == 0) + ["wrong"] * (score["f1"] == 0)


def _article(
    question: dict,
    context: str,
    item: AnsweredQuestion,
    answer: str,
    score: dict[str, float],
    kinds: list[str],
) -> str:
    best = item.candidates[0]
    chosen = [(best.start, best.end)] if answer else []
    golds = ", ".join(dict.fromkeys(question["gold_texts"])) or "(no answer)"
    return _ARTICLE.format(
        kinds=" ".join(kinds),
        f1=score["f1"],
        question=html.escape(question["question"]),
        golds=html.escape(golds),
        answer=html.escape(answer or "(no answer)"),
        probability=best.probability,
        opened=" open" if kinds else "",
        passage=_marked(context, question["gold_spans"], chosen),
    )


def _marked(context: str, golds: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]]) -> str:
    """The passage with its answers in `<mark>`s."""
    borders = {0, len(context)}
    for spans in (golds, chosen):
        borders.update(border for span in spans for border in span)
    edges = sorted(borders)
    parts = []
    for start, end in itertools.pairwise(edges):
        in_gold, in_chosen = (
            any(first <= start < last for first, last in spans) for spans in (golds, chosen)
        )
        text = html.escape(context[start:end])
        names = {(True, True): "both", (True, False): "gold", (False, True): "model"}
        name = names.get((in_gold, in_chosen))
        parts.append(f'<mark class="{name}">{text}</mark>' if name else text)
    return "".join(parts)
