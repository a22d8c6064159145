"""The texts of answers, and how good an answer looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.isotonic import IsotonicRegression

from hierrouter.engines.encoders import BUILT_IN_ENCODER, Encoder, HashedNgrams, load_encoder
from hierrouter.evaluation.outcome import Booleans, Floats, Integers
from hierrouter.learning.baselines.arms import Answers, Arms, Baseline, Seen
from hierrouter.learning.baselines.classifiers import Expectation, expectation
from hierrouter.questions.answers import agreement_key
from hierrouter.replay.tree import calls_of
from hierrouter_cache.errors import IncompleteTree
from hierrouter_cache.keys import text_digest
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.walk import Forest, Nodes, TreeSpec

# Shorter than the vectors that policies see: 144 routes of 3,000 queries take 442 MB at most.
WIDTH = 256
TEXTS_AT_A_TIME = 65_536


def load_answers(
    root: Path, tree: RouteTree, sets: Sequence[str], pool: str | None = None
) -> dict[str, Answers]:
    """The last answer of each arm of each set, in the order of the tree's queries.

    Raises CacheError: nothing there, damaged, or not the cache of this tree.

    Args:
        tree: all of what was opened, or some of its queries.
        sets: names in `sets.SETS`, at least one; their answers share the vectors of their texts.
        pool: as in `hierrouter.replay.open_tree.OpenTree`.
    """
    reader, spec, forest = calls_of(root, tree, pool)
    last = {name: _last_calls(name, tree, spec, forest) for name in sets}
    calls = np.concatenate([keys for keys, _ in last.values()], axis=1)
    _, first, text = np.unique(reader.answers(calls), return_index=True, return_inverse=True)
    # The encoder of the states, so that all that is compared reads with the same eyes.
    built_in = tree.encoder in ("", BUILT_IN_ENCODER)
    encoder = HashedNgrams(WIDTH) if built_in else load_encoder(tree.encoder)
    vectors, group = _read(reader, calls.ravel()[first], encoder)
    rows = text.reshape(calls.shape)
    found = {}
    for name, (keys, tokens) in last.items():
        row, rows = np.split(rows, [keys.shape[1]], axis=1)
        found[name] = Answers(vectors, row, group[row], tokens, reader.signals(keys).chance)
    return found


def answers_for(
    root: Path,
    tree: RouteTree,
    baselines: Sequence[Baseline],
    sets: Sequence[str],
    pool: str | None = None,
) -> dict[str, Answers] | None:
    """`load_answers` where a baseline reads them, else None."""
    if not any(baseline.reads_answers for baseline in baselines):
        return None
    return load_answers(root, tree, sets, pool)


def _last_calls(
    name: str, tree: RouteTree, spec: TreeSpec, forest: Forest
) -> tuple[NDArray[np.uint64], Integers]:
    """Of each arm of a set: hash of its last call's key, [queries, arms], and tokens."""
    if name == "B":
        leaves = tree.routes.leaves
        return _keys(forest.tree.select((slice(None), leaves))), tree.tokens_out[:, leaves]
    asked = [model for model, _ in spec.direct]
    models = [model for model in tree.direct.models if model in tree.models]
    ours = [tree.direct.models.index(model) for model in models]
    keys = _keys(forest.direct)[:, [asked.index(model) for model in models]]
    return keys, tree.direct.tokens_out[:, ours]


def _keys(nodes: Nodes) -> NDArray[np.uint64]:
    """uint64[queries, columns]: hash of each call's key."""
    if not nodes.present.all():
        raise IncompleteTree(
            f"{np.count_nonzero(~nodes.present)} answers of the tree are not in the cache; open it "
            "again"
        )
    return nodes.key


def _read(
    reader: CacheReader, calls: NDArray[np.uint64], encoder: Encoder
) -> tuple[NDArray[np.float32], Integers]:
    """Vectors of the responses of some calls, float32[calls, width], and which answer the same."""
    vectors = []
    groups: dict[str, int] = {}
    group = np.empty(len(calls), np.int64)
    for start in range(0, len(calls), TEXTS_AT_A_TIME):
        part = slice(start, start + TEXTS_AT_A_TIME)
        found = reader.texts(calls[part])
        texts = [found[call].response for call in calls[part].tolist()]
        vectors.append(encoder.encode(texts))
        # A digest, so that not all texts of a large cache are kept.
        group[part] = [
            groups.setdefault(text_digest(agreement_key(text)), len(groups)) for text in texts
        ]
    return np.concatenate(vectors), group


TREES = 60
COMPONENTS = 24  # of questions and of answers
FITTED_ON = 20_000  # answers at most
MOST_READ = 4  # other answers that were read before, at most, while it is fitted


@dataclass(frozen=True)
class AnswerScorer:
    """What tells a good answer.

    Attributes:
        prior: what the question lets expect of each arm.
        rank: int64[arms], place of each arm by mean quality.
        question: float64[dim, components], projection of a question.
        answer: float64[width, components], projection of an answer.
        model: from the features of `Judge` to quality.
    """

    prior: Expectation
    rank: Integers
    question: Floats
    answer: Floats
    model: ExtraTreesRegressor

    def judge(self, seen: Seen) -> Judge:
        """For these queries."""
        return Judge(self, seen, self.prior.predict(seen.question))


# From queries int64[n], the arm of each, int64[n], whose calls were made, and bool[n, arms], whose
# answers were read, to float64[n]: how good that arm's answer looks, from 0 to 1.
Reads = Callable[[Integers, Integers, Booleans], Floats]


@dataclass(frozen=True)
class Judge:
    """A scorer of the answers to some queries.

    Attributes:
        seen: with the answers of all arms, of which it looks only at those it is asked about.
        prior: float64[queries, arms], quality that the question alone lets expect.
    """

    scorer: AnswerScorer
    seen: Seen
    prior: Floats

    def score(self, query: Integers, arm: Integers, read: Booleans) -> Floats:
        """Expected quality of one arm's answer to each query; see `Reads`."""
        if not len(query):
            return np.zeros(0)
        predicted = self.scorer.model.predict(self.features(query, arm, read))
        return np.asarray(predicted, np.float64)

    def features(self, query: Integers, arm: Integers, read: Booleans) -> Floats:
        """float64[n, features], see `score`."""
        seen, answers, prior = self.seen, read_answers(self.seen), self.prior[query]
        others, agreeing = _others(answers, query, arm, read)
        columns = [
            self.prior[query, arm],
            prior.mean(axis=1),
            prior.max(axis=1),
            self.scorer.rank[arm],
            np.log1p(answers.tokens[query, arm]),
            np.nan_to_num(answers.sure[query, arm], nan=-1.0),
            others.sum(axis=1),
            agreeing.sum(axis=1),
        ]
        asked = seen.question[query] @ self.scorer.question
        said = answers.vectors[answers.row[query, arm]] @ self.scorer.answer
        return np.column_stack([*columns, asked, said])


def fit_confidence(train: Arms, rng: np.random.Generator) -> Callable[[Seen], Reads]:
    """How often an arm was right when its model was as sure of its answer.

    Isotonic regression of an arm's quality on the probability of its answer, arm by arm; where the
    engine did not tell, the mean quality of such answers.
    """
    sure = read_answers(train.seen).sure
    fitted: list[IsotonicRegression | None] = []
    mean = train.quality.mean(axis=0)
    for arm in range(train.seen.arms):
        rows = np.flatnonzero(~np.isnan(sure[:, arm]))
        one = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip") if len(rows) else None
        fitted.append(one and one.fit(sure[rows, arm], train.quality[rows, arm]))
        if 0 < len(rows) < len(train):
            mean[arm] = np.delete(train.quality[:, arm], rows).mean()

    def score(seen: Seen, query: Integers, arm: Integers, read: Booleans) -> Floats:
        found: Floats = mean[arm]
        told = read_answers(seen).sure[query, arm]
        for number in np.unique(arm):
            rows = np.flatnonzero((arm == number) & ~np.isnan(told))
            if (regression := fitted[number]) is not None and len(rows):
                found[rows] = regression.predict(told[rows])
        return found

    return lambda seen: partial(score, seen)


def fit_agreement(train: Arms, rng: np.random.Generator) -> Callable[[Seen], Reads]:
    """Which share of the other answers that were read says the same, 0 where none was."""

    def score(seen: Seen, query: Integers, arm: Integers, read: Booleans) -> Floats:
        others, agreeing = _others(read_answers(seen), query, arm, read)
        return agreeing.sum(axis=1) / np.maximum(others.sum(axis=1), 1)

    return lambda seen: partial(score, seen)


def fit_judge(train: Arms, rng: np.random.Generator) -> Callable[[Seen], Reads]:
    """`fit_scorer`, ready for any queries."""
    scorer = fit_scorer(train, rng)
    return lambda seen: scorer.judge(seen).score


def fit_scorer(train: Arms, rng: np.random.Generator) -> AnswerScorer:
    """Learn from the answers of a fold.

    What the question lets expect of an arm is, for each query, learned from the others: else the
    scorer would trust it too much.
    """
    seen, answers = train.seen, read_answers(train.seen)
    prior = expectation(seen.question, train.quality, rng)
    query, arm = _drawn(len(train), seen.arms, rng)
    scorer = AnswerScorer(
        prior=prior,
        rank=np.argsort(np.argsort(train.quality.mean(axis=0), kind="stable")),
        question=_projection(seen.question),
        answer=_projection(answers.vectors[answers.row[query, arm]]),
        model=ExtraTreesRegressor(
            TREES, min_samples_leaf=5, max_features=0.5, random_state=int(rng.integers(2**31))
        ),
    )
    read = _read_before(arm, seen.arms, rng)
    features = Judge(scorer, seen, prior.held_out).features(query, arm, read)
    scorer.model.fit(features, train.quality[query, arm])
    return scorer


def _others(
    answers: Answers, query: Integers, arm: Integers, read: Booleans
) -> tuple[Booleans, Booleans]:
    """bool[n, arms] twice: the other answers that were read, and those that say the same."""
    others = read & (np.arange(read.shape[1]) != arm[:, None])
    return others, others & (answers.group[query] == answers.group[query, arm][:, None])


def read_answers(seen: Seen) -> Answers:
    """The answers; whoever asks for them has said that it reads them."""
    assert seen.answers is not None, "a router that reads answers was given none"
    return seen.answers


def _drawn(queries: int, arms: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Query and arm of each answer to learn from: all, or so many by chance."""
    places = np.arange(queries * arms)
    if len(places) > FITTED_ON:
        places = np.sort(rng.choice(places, FITTED_ON, replace=False))
    return places // arms, places % arms


def _read_before(arm: Integers, arms: int, rng: np.random.Generator) -> Booleans:
    """bool[n, arms]: whose answers were read; none to a few, as it will be when it is used."""
    order = np.argsort(rng.random((len(arm), arms)), axis=1)
    most = min(MOST_READ, arms - 1)
    return order < rng.integers(0, most + 1, len(arm))[:, None]


def _projection(vectors: NDArray[np.float32]) -> Floats:
    """float64[width, components]: the directions in which these vectors are longest."""
    width = vectors.shape[1]
    if not width:
        return np.zeros((0, 0))
    wide = vectors.astype(np.float64)
    first = max(0, width - COMPONENTS)
    return np.asarray(eigh(wide.T @ wide, subset_by_index=[first, width - 1])[1])
