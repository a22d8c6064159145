"""A model that judges answers, as a scorer whose values are kept in the cache like others."""

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

QUESTION, ANSWER, REFERENCES = "{question}", "{answer}", "{references}"
PROMPT = f"""Question:
{QUESTION}

Answer:
{ANSWER}

How good is this answer? End with a line `Score: N`, where N is a number from 0 (wrong, or of no
use) to 10 (right and complete)."""
SAID = re.compile(r"score\W{0,5}([0-9]+(?:\.[0-9]+)?)(?![0-9.]*[0-9])(?:\s*/\s*10)?", re.IGNORECASE)
BEST = 10.0


def judge_scorer(file: str, engines: Engines = backend) -> Scorer:
    """The scorer that asks the one model of a pool file how good an answer is.

    Its `stage_prompts` may hold a prompt of one's own, with `{question}`, `{answer}` and perhaps
    `{references}`. The version is that of model, prompt and decoding settings: change one of them,
    and all is judged anew. Raises InputError: the file has not one model, or its prompt lacks a
    part; WorldError: the model cannot be found.
    """
    pool = load_pool(file)
    if len(pool.models) != 1:
        raise InputError(f"a judge is one model: {file}; it has {len(pool.models)}")
    [spec] = pool.models
    prompt = pool.stage_prompts[0] or PROMPT
    for part in (QUESTION, ANSWER):
        if part not in prompt:
            raise InputError(f"the judge's prompt has no {part}: {file}; put it in stage_prompts")
    identity = engines(spec.backend).identify(spec)
    version = digest([identity, spec.generation.settings, prompt])[:12]

    @cache
    def loaded() -> Generator:
        return engines(spec.backend).load(spec)

    def values(
        questions: Sequence[str], responses: Sequence[str], references: Sequence[Sequence[str]] = ()
    ) -> list[float]:
        known = ["\n".join(each) for each in references] or [""] * len(questions)
        prompts = [
            prompt.replace(QUESTION, question).replace(REFERENCES, right).replace(ANSWER, response)
            for question, response, right in zip(questions, responses, known, strict=True)
        ]
        return _judged(loaded(), prompts, spec)

    reads = ("question", "response", *(["references"] if REFERENCES in prompt else []))
    return Scorer("judge", version, values, reads, in_batches=True)


def _judged(generator: Generator, prompts: Sequence[str], spec: ModelSpec) -> list[float]:
    """The scores; raises WorldError: for a prompt there is none."""
    said = dict(generator.generate(prompts))
    found: list[float] = []
    for place in range(len(prompts)):
        answer = said[place]
        text = answer.text if isinstance(answer, Response) else answer.detail
        score = score_in(text) if isinstance(answer, Response) else None
        if score is None:
            raise WorldError(
                f"the judge {spec.name} gave no score: {text[-80:]!r}; what was scored before "
                "stays; change its prompt, or ask another model"
            )
        found.append(score)
    return found


def score_in(text: str) -> float | None:
    """The last score that a text states, from 0 to 1; None where it states none that can be."""
    stated = [float(number) for number in SAID.findall(text)]
    return stated[-1] / BEST if stated and stated[-1] <= BEST else None
