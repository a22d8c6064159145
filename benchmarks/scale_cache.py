"""A made-up cache of any size, with something to learn.

In: a number of queries, a folder. Out: a whole cache of 3 models at 2 hops, 12 calls a query (or
of so many models and hops as are asked for), as a collection leaves it: a part for a batch of one
model at one depth, scores, plan, embeddings. Each model is good at some topics, and a second
answer mostly keeps what was right in the first. What a state shows is its topic and whether its
newest answer is right, in much noise. Scores are those of the real scorers, in closed form. Not
covered: a real tokenizer's tokens, texts that mean anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measuring import ROOT
from numpy.typing import NDArray

from hierrouter.collection.plan import store_plan
from hierrouter.engines.encoder_names import BUILT_IN_ENCODER
from hierrouter.engines.encoders import load_encoder
from hierrouter.pools.pool import IMPORTED, Identity, ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.questions.scoring import scorer as scorer_named
from hierrouter.replay.states import TEXTS_PER_FILE
from hierrouter_cache.embeddings import EmbeddingStore
from hierrouter_cache.keys import call_key, next_context, references_key, root_context
from hierrouter_cache.parts import CALLS_SCHEMA, SCORES_SCHEMA
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter

assert ROOT  # importing it makes this copy of the project importable
# How often a model is right about each topic.
SKILL = np.array([[0.9, 0.3, 0.3, 0.2], [0.3, 0.9, 0.4, 0.3], [0.6, 0.5, 0.9, 0.4]])
RATES = (0.001, 0.003, 0.012)
KEPT, SPLITS = 0.95, ("train", "validation", "test")
FOLDS = (0.7, 0.1, 0.2)
BATCH = 2_048  # queries, and rows of a part at most: what `collect` writes
SCORED = 1_000_000  # rows of a part of scores
TOKENS_A_WORD = 1.4
ARRAYS = ("right", "topic", "number")
SCORERS = tuple(scorer_named(name) for name in ("token_f1", "accuracy"))


def pool_of(models: int, hops: int) -> Pool:
    """Models of three kinds and prices; the first hop's calls are the direct ones, too."""
    kinds = ("small", "middle", "large")
    return Pool(
        tuple(
            ModelSpec(
                name := kinds[n % 3] + (f"-{n // 3}" if n >= 3 else ""),
                name,
                backend=IMPORTED,
                rate_in=RATES[n % 3],
                rate_out=RATES[n % 3],
            )
            for n in range(models)
        ),
        hops=hops,
        stage_prompts=("", *["Improve the answer."] * (hops - 1)),
    )


@dataclass(frozen=True)
class Words:
    """A long text, cut between words at no cost."""

    text: str
    start: NDArray[np.int64]

    @classmethod
    def of(cls, count: int, rng: np.random.Generator) -> Words:
        """So many words of 2 to 8 letters."""
        letters = np.array(list("etaoinshrdlucmfw"))
        lengths = rng.integers(2, 9, 4_096)
        known = ["".join(rng.choice(letters, length)) for length in lengths]
        words = [known[number] for number in rng.integers(0, len(known), count)]
        return cls(" ".join(words), np.cumsum([0, *(len(word) + 1 for word in words)]))

    def cut(self, first: NDArray[np.int64], count: NDArray[np.int64]) -> list[str]:
        """The texts of `count` words from `first` on, each int64[n]."""
        ends = zip(self.start[first].tolist(), self.start[first + count].tolist(), strict=True)
        return [self.text[begin : end - 1] for begin, end in ends]


@dataclass(frozen=True)
class Answered:
    """Some contexts with what was said so far, a row each.

    Attributes:
        context: digests.
        references: digests of the right answers.
        prompt: the question and the answers so far.
        right: float64[n], 1 where the newest answer is right, 0.5 at the root.
        topic: int64[n], what the question is about.
        number: int64[n], of the question; also the right answer.
    """

    context: list[str]
    references: list[str]
    prompt: list[str]
    right: NDArray[np.float64]
    topic: NDArray[np.int64]
    number: NDArray[np.int64]

    def without_texts(self) -> Answered:
        """The same for the embeddings, small."""
        return replace(self, references=[], prompt=[])


def joined(parts: Sequence[Answered]) -> Answered:
    """All rows of several, one after the other."""
    return Answered(
        [name for part in parts for name in part.context],
        [name for part in parts for name in part.references],
        [text for part in parts for text in part.prompt],
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS),
    )


def table_of(columns: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """The first columns of a schema; all further ones are null."""
    absent = [None] * len(columns[0])
    return pa.table([*columns, *[absent] * (len(schema) - len(columns))], schema=schema)


class Maker:
    """Writes one cache, a batch of questions after the other."""

    def __init__(
        self,
        root: Path,
        rng: np.random.Generator,
        pool: Pool,
        identities: Mapping[str, Identity] | None = None,
    ) -> None:
        self.root, self.rng, self.pool = root, rng, pool
        self.identities = identities or {
            name: {"made": "up", "name": name} for name in (model.name for model in pool.models)
        }
        self.spec = pool.tree_spec(self.identities)
        self.writer = PartWriter(root)
        self.words = Words.of(1 << 18, rng)
        self.queries: list[Query] = []
        self.states: list[Answered] = []

    def batch(self, count: int) -> None:
        """So many questions with all their calls and scores."""
        here = self._ask(count)
        scores: list[pa.Table] = []
        for steps in self.spec.steps:
            self.states.append(here.without_texts())
            parts = [self._call(here, action, step, scores) for action, step in enumerate(steps)]
            here = joined(parts)
        scored = pa.concat_tables(scores)
        for start in range(0, len(scored), SCORED):
            self.writer.append("scores", scored.slice(start, SCORED))

    def _ask(self, count: int) -> Answered:
        number = len(self.queries) + np.arange(count)
        topic = self.rng.integers(0, SKILL.shape[1], count)
        fold = self.rng.choice(SPLITS, count, p=FOLDS)
        rows = zip(number.tolist(), topic.tolist(), fold.tolist(), self._texts(count), strict=True)
        asked = [
            Query(str(n), f"topic{about}", f"{n} {text}", (str(n),), split)
            for n, about, split, text in rows
        ]
        self.queries += asked
        texts = [query.question for query in asked]
        roots = [root_context(text) for text in texts]
        references = [references_key(query.answers) for query in asked]
        return Answered(roots, references, texts, np.full(count, 0.5), topic, number)

    def _texts(self, count: int) -> list[str]:
        """Of 20 to 59 words."""
        return self.words.cut(*self._spans(count, 20, 60))

    def _spans(self, count: int, least: int, most: int) -> tuple[NDArray[np.int64], ...]:
        first = self.rng.integers(0, len(self.words.start) - most, count)
        return first, self.rng.integers(least, most, count)

    def _call(self, asked: Answered, action: int, step: str, scores: list[pa.Table]) -> Answered:
        """The answers of one model to these contexts, committed; their scores go to `scores`."""
        n = len(asked.context)
        chance = np.where(asked.right == 1, KEPT, SKILL[action % 3, asked.topic])
        right = self.rng.random(n) < chance
        first, count = self._spans(n, 1, 40)
        stated = (asked.number + ~right).tolist()  # one off where it is wrong
        bodies = self.words.cut(first, count)
        said = [f"{body} #### {number}" for body, number in zip(bodies, stated, strict=True)]
        keys = [call_key(step, context) for context in asked.context]
        outcome = [next_context(*pair) for pair in zip(asked.context, said, strict=True)]
        shown = np.array([text.count(" ") for text in asked.prompt])
        tokens = [(TOKENS_A_WORD * words).astype(np.int32) for words in (shown, count + 2)]
        texts = [keys, [step] * n, asked.context, outcome, [self.spec.models[action]] * n]
        columns = [*texts, asked.prompt, said, *tokens, ["stop"] * n, np.full(n, 0.01)]
        table = table_of(columns, CALLS_SCHEMA)
        for start in range(0, n, BATCH):
            self.writer.append("calls", table.slice(start, BATCH))
        precision = 1 / (count + 1)
        f1 = np.where(right, 2 * precision / (precision + 1), 0)
        scores += self._scored(keys, asked, said, (f1, right.astype(np.float64)))
        following = [f"{a}\n\n{b}" for a, b in zip(asked.prompt, said, strict=True)]
        return replace(asked, context=outcome, prompt=following, right=right.astype(np.float64))

    def _scored(
        self,
        keys: list[str],
        asked: Answered,
        said: list[str],
        values: tuple[NDArray[np.float64], NDArray[np.float64]],
    ) -> Iterator[pa.Table]:
        """Rows of both scores; those of the first call are compared with the scorers'."""
        answers = self.queries[asked.number[0]].answers
        for scorer, found in zip(SCORERS, values, strict=True):
            assert scorer(said[0], answers, ()) == found[0]
            columns = [keys, asked.references, [scorer.key] * len(keys), found]
            yield table_of(columns, SCORES_SCHEMA)

    def finish(self, description: str = "", width: int = 0) -> None:
        """The plan and the embeddings.

        Args:
            description: of the encoder; "" is the built-in one.
            width: length of a vector.
        """
        store_plan(self.writer, None, self.pool, self.identities, self.queries)
        if not description:
            encoder = load_encoder(BUILT_IN_ENCODER)
            description = encoder.description
            width = encoder.encode(["any"]).shape[1]
        store = EmbeddingStore(CacheReader(self.root), description)
        states = joined(self.states)
        axes = np.linalg.qr(self.rng.standard_normal((width, SKILL.shape[1] + 1)))[0].T.astype(
            np.float32
        )
        sign = (states.right - 0.5).astype(np.float32)
        for start in range(0, len(states.context), TEXTS_PER_FILE):
            rows = slice(start, start + TEXTS_PER_FILE)
            seen = axes[states.topic[rows]] + sign[rows, None] * axes[-1]
            vectors = self.rng.standard_normal(seen.shape, dtype=np.float32)
            vectors *= np.float32(1 / np.sqrt(width))
            vectors += seen
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            store.append(states.context[rows], vectors)


def make_cache(root: Path, queries: int, models: int = 3, hops: int = 2, seed: int = 0) -> None:
    """A cache of so many queries at `root`, which is empty or does not exist."""
    maker = Maker(root, np.random.default_rng(seed), pool_of(models, hops))
    for first in range(0, queries, BATCH):
        maker.batch(min(BATCH, queries - first))
    maker.finish()
