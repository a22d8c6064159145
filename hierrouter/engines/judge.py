"""A language model as a judge: a scorer whose values are stored in the cache like any other."""

import re
from collections.abc import Sequence
from functools import cache

from hierrouter.engines import backend
from hierrouter.engines.generator import Engines, Generator, Response
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import ModelSpec
from hierrouter.questions.scoring import Scorer
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.keys import digest

QUESTION_FIELD = "{question}"
ANSWER_FIELD = "{answer}"
REFERENCES_FIELD = "{references}"
JUDGE_PROMPT = f"""Question:
{QUESTION_FIELD}

Answer:
{ANSWER_FIELD}

How good is this answer? End with a line `Score: N`, where N is a number from 0 (wrong, or of no
use) to 10 (right and complete)."""
# "Score: 7", "**Score:** 7.5 / 10"; not a number that goes on, such as a version "1.2.3".
SCORE_PATTERN = re.compile(
    r"score\W{0,5}([0-9]+(?:\.[0-9]+)?)(?![0-9.]*[0-9])(?:\s*/\s*10)?", re.IGNORECASE
)
MAX_SCORE = 10.0


def judge_scorer(file: str, engines: Engines = backend) -> Scorer:
    """Make a scorer that asks a model how good an answer is.

    The scorer's version is a digest of model, prompt and decoding settings: if one of them changes,
    all answers are judged again.

    Args:
        file: a pool file with exactly one model. Its `stage_prompts` may hold the judge's prompt,
            with the fields `{question}`, `{answer}` and optionally `{references}`.
        engines: returns the engine of a backend's name.

    Returns:
        The scorer. It loads the model when it is called for the first time.

    Raises:
        InputError: the file has no model or several, or its prompt lacks a required field.
        WorldError: the model cannot be found.
    """
    pool = load_pool(file)
    if len(pool.models) != 1:
        raise InputError(f"a judge is one model: {file}; it has {len(pool.models)}")
    [spec] = pool.models
    template = pool.stage_prompts[0] or JUDGE_PROMPT
    for name in (QUESTION_FIELD, ANSWER_FIELD):
        if name not in template:
            raise InputError(f"the judge's prompt has no {name}: {file}; put it in stage_prompts")
    identity = engines(spec.backend).identify(spec)
    version = digest([identity, spec.generation.settings, template])[:12]

    @cache
    def load_judge() -> Generator:
        return engines(spec.backend).load(spec)

    def score_responses(
        questions: Sequence[str], responses: Sequence[str], references: Sequence[Sequence[str]] = ()
    ) -> list[float]:
        reference_texts = ["\n".join(answers) for answers in references]
        if not reference_texts:
            reference_texts = [""] * len(questions)
        prompts = []
        rows = zip(questions, responses, reference_texts, strict=True)
        for question, response, reference_text in rows:
            prompt = template.replace(QUESTION_FIELD, question)
            # The response comes last: a field that it contains must not be filled in.
            prompt = prompt.replace(REFERENCES_FIELD, reference_text)
            prompts.append(prompt.replace(ANSWER_FIELD, response))
        return _ask_judge(load_judge(), prompts, spec)

    columns = ["question", "response"]
    if REFERENCES_FIELD in template:
        columns.append("references")
    return Scorer("judge", version, score_responses, tuple(columns), in_batches=True)


def _ask_judge(generator: Generator, prompts: Sequence[str], spec: ModelSpec) -> list[float]:
    """Return the judge's score for each prompt.

    Args:
        generator: the judge.
        prompts: one prompt for each response.
        spec: the judge's entry in its pool file, for error messages.

    Returns:
        A score from 0 to 1 for each prompt.

    Raises:
        WorldError: the judge gave no score for a prompt.
    """
    answers = dict(generator.generate(prompts))
    scores: list[float] = []
    for position in range(len(prompts)):
        answer = answers[position]
        if isinstance(answer, Response):
            text = answer.text
            score = score_in(text)
        else:
            text = answer.detail
            score = None
        if score is None:
            raise WorldError(
                f"the judge {spec.name} gave no score: {text[-80:]!r}; what was scored before "
                "stays; change its prompt, or ask another model"
            )
        scores.append(score)
    return scores


def score_in(text: str) -> float | None:
    """Return the last score stated in a text.

    Args:
        text: the judge's response.

    Returns:
        The score from 0 to 1; None if the text states none, or one above the maximum.
    """
    scores = [float(number) for number in SCORE_PATTERN.findall(text)]
    if not scores or scores[-1] > MAX_SCORE:
        return None
    return scores[-1] / MAX_SCORE
