"""The texts of answers, and scores of how good an answer looks."""

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

from hierrouter.engines.encoder_names import BUILT_IN_ENCODER, with_commit
from hierrouter.engines.encoders import Encoder, HashedNgrams, load_encoder
from hierrouter.evaluation.outcome import Booleans, Floats, Integers, is_plain
from hierrouter.learning.baselines.arms import Answers, Arms, Baseline, RouterInputs
from hierrouter.learning.baselines.classifiers import Expectation, fit_expectation
from hierrouter.questions.answers import agreement_key
from hierrouter.replay.tree import calls_of
from hierrouter_cache.errors import IncompleteTree
from hierrouter_cache.keys import text_digest
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.walk import Forest, Nodes, TreeSpec

# Shorter than the vectors that policies read: 144 routes of 3,000 queries take 442 MB at most.
ANSWER_DIM = 256
TEXTS_PER_BATCH = 65_536

FOREST_SIZE = 60  # trees of the regression that scores answers
PROJECTION_COMPONENTS = 24  # of questions and of answers
MAX_TRAINING_ANSWERS = 20_000
MAX_ANSWERS_READ_BEFORE = 4  # other answers read before an answer of the training, at most


def load_answers(
    root: Path, tree: RouteTree, sets: Sequence[str], pool: str | None = None
) -> dict[str, Answers]:
    """Load the last answer of each arm of each set, in the order of the tree's queries.

    Args:
        root: folder of the cache.
        tree: the opened tree, or some of its queries.
        sets: names in `arms.ARM_SETS`, at least one; their answers share the vectors of their
            texts.
        pool: as in `hierrouter.replay.open_tree.OpenTree`.

    Raises:
        CacheError: there is no cache, it is damaged, or it is not the cache of this tree.
    """
    reader, spec, forest = calls_of(root, tree, pool)
    last_calls = {name: _last_calls(name, tree, spec, forest) for name in sets}
    # The calls of all sets side by side, so that each distinct text is read and encoded once.
    calls = np.concatenate([keys for keys, _ in last_calls.values()], axis=1)
    _, first_call, text = np.unique(reader.answers(calls), return_index=True, return_inverse=True)
    # The encoder of the states, so that baselines and router read the same features.
    if tree.encoder in ("", BUILT_IN_ENCODER):
        encoder: Encoder = HashedNgrams(ANSWER_DIM)
    else:
        encoder = load_encoder(with_commit(tree.encoder, tree.encoder_commit))
    vectors, group = _encode_responses(reader, calls.ravel()[first_call], encoder)
    rows = text.reshape(calls.shape)
    answers = {}
    for name, (keys, tokens) in last_calls.items():
        row, rows = np.split(rows, [keys.shape[1]], axis=1)
        confidence = reader.signals(keys).chance
        answers[name] = Answers(vectors, row, group[row], tokens, confidence)
    return answers


def answers_for(
    root: Path,
    tree: RouteTree,
    baselines: Sequence[Baseline],
    sets: Sequence[str],
    pool: str | None = None,
) -> dict[str, Answers] | None:
    """`load_answers` if one of the baselines reads them, else None.

    None, too, if a call has several draws or a query lacks routes: no arm has one answer then.
    """
    if not is_plain(tree) or not any(baseline.reads_answers for baseline in baselines):
        return None
    return load_answers(root, tree, sets, pool)


def _last_calls(
    name: str, tree: RouteTree, spec: TreeSpec, forest: Forest
) -> tuple[NDArray[np.uint64], Integers]:
    """The last call of each arm of a set.

    Returns:
        Hash of its key, uint64[queries, arms], and its tokens, int64[queries, arms].
    """
    if name == "B":
        leaves = tree.layout.leaves
        return _call_keys(forest.tree.select((slice(None), leaves))), tree.tokens_out[:, leaves]
    direct_models = [model for model, _ in spec.direct]
    arms = [model for model in tree.direct.models if model in tree.callers]
    forest_columns = [direct_models.index(model) for model in arms]
    tree_columns = [tree.direct.models.index(model) for model in arms]
    keys = _call_keys(forest.direct)[:, forest_columns]
    return keys, tree.direct.tokens_out[:, tree_columns]


def _call_keys(nodes: Nodes) -> NDArray[np.uint64]:
    """uint64[queries, columns]: hash of each call's key."""
    if not nodes.present.all():
        raise IncompleteTree(
            f"{np.count_nonzero(~nodes.present)} answers of the tree are not in the cache; open it "
            "again"
        )
    return nodes.key


def _encode_responses(
    reader: CacheReader, calls: NDArray[np.uint64], encoder: Encoder
) -> tuple[NDArray[np.float32], Integers]:
    """Encode the responses of some calls, and group those that answer the same.

    Returns:
        Vectors float32[calls, width], and a group number for each call, int64[calls].
    """
    vectors = []
    group_of_answer: dict[str, int] = {}
    group = np.empty(len(calls), np.int64)
    for start in range(0, len(calls), TEXTS_PER_BATCH):
        batch = slice(start, start + TEXTS_PER_BATCH)
        texts_by_call = reader.texts(calls[batch])
        texts = [texts_by_call[call].visible for call in calls[batch].tolist()]
        vectors.append(encoder.encode(texts))
        for row, text in enumerate(texts, start):
            # A digest, so that the texts of a large cache are not all kept in memory.
            answer = text_digest(agreement_key(text))
            group[row] = group_of_answer.setdefault(answer, len(group_of_answer))
    return np.concatenate(vectors), group


@dataclass(frozen=True)
class AnswerScorer:
    """A regression of the quality of an answer on what can be read of question and answer.

    Attributes:
        prior: expected quality of each arm, by the question alone.
        rank: int64[arms], rank of each arm by mean quality.
        question: float64[dim, components], projection of a question.
        answer: float64[width, components], projection of an answer.
        model: from the features of `FoldScorer` to quality.
    """

    prior: Expectation
    rank: Integers
    question: Floats
    answer: Floats
    model: ExtraTreesRegressor

    def for_queries(self, inputs: RouterInputs) -> FoldScorer:
        """The scorer for the answers to these queries."""
        return FoldScorer(self, inputs, self.prior.predict(inputs.question))


# From queries int64[n], one arm for each, int64[n], whose calls are made, and bool[n, arms], the
# arms whose answers are read, to float64[n]: how good the arm's answer looks, from 0 to 1.
ScoreAnswers = Callable[[Integers, Integers, Booleans], Floats]
# From the queries of a fold to a function that scores the answers to them.
AnswerReader = Callable[[RouterInputs], ScoreAnswers]


@dataclass(frozen=True)
class FoldScorer:
    """A scorer of the answers to some queries.

    Attributes:
        scorer: the regression.
        inputs: with the answers of all arms, of which only those that are read are used.
        prior: float64[queries, arms], expected quality by the question alone.
    """

    scorer: AnswerScorer
    inputs: RouterInputs
    prior: Floats

    def score(self, query: Integers, arm: Integers, read: Booleans) -> Floats:
        """Expected quality of one arm's answer to each query, see `ScoreAnswers`."""
        if not len(query):
            return np.zeros(0)
        predicted = self.scorer.model.predict(self.features(query, arm, read))
        return np.asarray(predicted, np.float64)

    def features(self, query: Integers, arm: Integers, read: Booleans) -> Floats:
        """float64[n, features]: the inputs of the regression; arguments as of `score`."""
        answers = require_answers(self.inputs)
        prior = self.prior[query]
        others, agreeing = _other_answers(answers, query, arm, read)
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
        question = self.inputs.question[query] @ self.scorer.question
        answer = answers.vectors[answers.row[query, arm]] @ self.scorer.answer
        return np.column_stack([*columns, question, answer])


def fit_confidence(train: Arms, rng: np.random.Generator) -> AnswerReader:
    """Score an answer by how often its arm was right when its model was as confident.

    Isotonic regression of an arm's quality on the probability of its answer, arm by arm; without a
    probability, the mean quality of the arm's answers without one.
    """
    confidence = require_answers(train.seen).sure
    regressions: list[IsotonicRegression | None] = []
    mean = train.quality.mean(axis=0)
    for arm in range(train.seen.arms):
        rows = np.flatnonzero(~np.isnan(confidence[:, arm]))
        regression = None
        if len(rows):
            regression = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
            regression.fit(confidence[rows, arm], train.quality[rows, arm])
        regressions.append(regression)
        if 0 < len(rows) < len(train):
            mean[arm] = np.delete(train.quality[:, arm], rows).mean()

    def score(inputs: RouterInputs, query: Integers, arm: Integers, read: Booleans) -> Floats:
        scores: Floats = mean[arm]
        confidence = require_answers(inputs).sure[query, arm]
        for number in np.unique(arm):
            rows = np.flatnonzero((arm == number) & ~np.isnan(confidence))
            regression = regressions[number]
            if regression is not None and len(rows):
                scores[rows] = regression.predict(confidence[rows])
        return scores

    return lambda inputs: partial(score, inputs)


def fit_agreement(train: Arms, rng: np.random.Generator) -> AnswerReader:
    """Score an answer by the share of the other read answers that equal it; 0 without others."""

    def score(inputs: RouterInputs, query: Integers, arm: Integers, read: Booleans) -> Floats:
        others, agreeing = _other_answers(require_answers(inputs), query, arm, read)
        return agreeing.sum(axis=1) / np.maximum(others.sum(axis=1), 1)

    return lambda inputs: partial(score, inputs)


def fit_forest(train: Arms, rng: np.random.Generator) -> AnswerReader:
    """Score an answer by the regression of `fit_scorer`."""
    scorer = fit_scorer(train, rng)
    return lambda inputs: scorer.for_queries(inputs).score


def fit_scorer(train: Arms, rng: np.random.Generator) -> AnswerScorer:
    """Learn to score answers from those of a fold.

    The prior of each query is learned from the other queries: otherwise the regression would trust
    it too much.
    """
    inputs = train.seen
    answers = require_answers(inputs)
    prior = fit_expectation(inputs.question, train.quality, rng)
    query, arm = _sample_answers(len(train), inputs.arms, rng)
    scorer = AnswerScorer(
        prior=prior,
        rank=np.argsort(np.argsort(train.quality.mean(axis=0), kind="stable")),
        question=_main_directions(inputs.question),
        answer=_main_directions(answers.vectors[answers.row[query, arm]]),
        model=ExtraTreesRegressor(
            FOREST_SIZE, min_samples_leaf=5, max_features=0.5, random_state=int(rng.integers(2**31))
        ),
    )
    read = _sample_read_arms(arm, inputs.arms, rng)
    features = FoldScorer(scorer, inputs, prior.held_out).features(query, arm, read)
    scorer.model.fit(features, train.quality[query, arm])
    return scorer


def _other_answers(
    answers: Answers, query: Integers, arm: Integers, read: Booleans
) -> tuple[Booleans, Booleans]:
    """bool[n, arms] twice: the other answers that are read, and those equal to the arm's."""
    others = read & (np.arange(read.shape[1]) != arm[:, None])
    return others, others & (answers.group[query] == answers.group[query, arm][:, None])


def require_answers(inputs: RouterInputs) -> Answers:
    """The answers, which a router with `reads_answers` always has."""
    assert inputs.answers is not None, "a router that reads answers was given none"
    return inputs.answers


def _sample_answers(queries: int, arms: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Query and arm of each answer to learn from: all, or a random sample of them."""
    answers = np.arange(queries * arms)
    if len(answers) > MAX_TRAINING_ANSWERS:
        answers = np.sort(rng.choice(answers, MAX_TRAINING_ANSWERS, replace=False))
    return answers // arms, answers % arms


def _sample_read_arms(arm: Integers, arms: int, rng: np.random.Generator) -> Booleans:
    """bool[n, arms]: random arms whose answers were read before, none to a few, as in use."""
    order = np.argsort(rng.random((len(arm), arms)), axis=1)
    most = min(MAX_ANSWERS_READ_BEFORE, arms - 1)
    return order < rng.integers(0, most + 1, len(arm))[:, None]


def _main_directions(vectors: NDArray[np.float32]) -> Floats:
    """float64[width, components]: the directions in which these vectors are longest."""
    width = vectors.shape[1]
    if not width:
        return np.zeros((0, 0))
    doubles = vectors.astype(np.float64)
    first = max(0, width - PROJECTION_COMPONENTS)
    _, directions = eigh(doubles.T @ doubles, subset_by_index=[first, width - 1])
    return np.asarray(directions)
