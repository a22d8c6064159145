"""The pool that a cache is opened with, and the scores of the cache's responses."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter.engines import identify, identities_of_actions
from hierrouter.engines.dialects import MEMORY
from hierrouter.engines.identity import named_folder, saved_identity, served_identity
from hierrouter.engines.judge import ASKED_AGAIN, FAULTS, no_score_error
from hierrouter.pools.files import load_pool, require_size, stored_pool
from hierrouter.pools.pool import OPENAI, Endpoint, Identity, ModelSpec, Pool
from hierrouter.questions.programs import is_code
from hierrouter.questions.query import stored_choices
from hierrouter.questions.reading import Reading
from hierrouter.questions.scoring import ACCURACY, TEST_SCORER, Scorer, ScorerInput, judge_all
from hierrouter_cache.errors import CacheError, CacheLocked, IncompleteTree, InputError, Interrupted
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.parts import SCORES_SCHEMA
from hierrouter_cache.reader import CacheReader, StoredCall
from hierrouter_cache.walk import Forest, Scores, TreeSpec, stored_scores
from hierrouter_cache.writer import PartWriter, writable

SOURCE_FIELDS = ("model", "revision", "dtype", "backend")  # fields of a model that identify it
# Other entries of an identity whose change makes the model another one.
IDENTITY_ENTRIES = ("weights", "deployment", "answers_as", "tokenizer")

# Calls that are scored before their values are stored: at first, and at most. In between, parts are
# as large as the scorer can fill in a number of seconds.
FIRST_SCORED_PART = 256
LARGEST_SCORED_PART = 131_072
SECONDS_PER_SCORED_PART = 5.0
CALLS_PER_READ = 1 << 20  # whose texts are in memory at once; each read goes through all parts

OnScored = Callable[[int, int], None]
CallWithQuery = tuple[StoredCall, Mapping[str, Any]]  # a call and the row of its query


@dataclass(frozen=True)
class OpenedPool:
    """The pool that a cache is opened with.

    Attributes:
        pool: the models to open.
        identities: what each model resolves to, by name, and each action that is not answered as
            its model is.
        stored: the pool of the plan.
        changed: the models that differ from those that were collected, in words; "" if none does.
    """

    pool: Pool
    identities: Mapping[str, Identity]
    stored: Pool
    changed: str

    @property
    def spec(self) -> TreeSpec:
        """The pool as content keys."""
        return self.pool.tree_spec(self.identities)


def open_pool(
    plan: str,
    name: str | None = None,
    models: Sequence[str] | None = None,
    hops: int | None = None,
    without: Sequence[str] = (),
    draws: int | None = None,
) -> OpenedPool:
    """Select the plan's pool or another one, or a part of it.

    Args:
        plan: the pool of a plan, as JSON.
        name: a pool's name or TOML file; None is the plan's pool.
        models: names of some models, in action order; None is all of them.
        hops: at most those of the pool; None is all of them.
        without: names of models and reference models to leave out.
        draws: at most as many of each call as were collected; None is all of them.

    Raises:
        InputError: an unknown pool, model or number of hops or draws, a folder that is no model,
            or a pool that is too large with the draws of the plan.
        WorldError: a model that the plan does not have and that cannot be found.
    """
    stored, stored_identities = load_planned_pool(plan)
    complete_pool = stored if name is None else load_pool(name)
    least = stored.least_draws
    if stored.as_stored:
        draws = stored.draws  # those of a log are found with its routes
    elif draws is None:
        if complete_pool.draws > 1:
            least = complete_pool.least_draws
        draws = complete_pool.draws if complete_pool.draws > 1 else stored.draws
    elif not 1 <= draws <= stored.draws:
        raise InputError(f"draws must be 1 to {stored.draws}, as collected, got {draws}: --draws")
    if least is not None and least >= draws:
        least = None
    smaller = complete_pool.sub_pool(models, hops, without)
    pool = replace(smaller, draws=draws, least_draws=least)
    require_size(pool, name or "the last plan")
    identities = stored_identities
    if name is not None:
        identities = _identities(pool, stored, stored_identities)
    model_identities = [identities[model.name] for model in pool.models]
    context_free = any(identity.get("context_free") == "yes" for identity in model_identities)
    changes = _describe_changes(stored, stored_identities, pool, identities)
    return OpenedPool(replace(pool, context_free=context_free), identities, stored, changes)


def load_planned_pool(plan: str) -> tuple[Pool, dict[str, Identity]]:
    """Load the pool of a cache's plan.

    Args:
        plan: the pool of a plan, as JSON.

    Returns:
        The pool, and what its models resolved to, by name.

    Raises:
        CacheError: the plan has no pool that can be read.
    """
    try:
        return stored_pool(plan, "the last plan")
    except InputError as error:
        raise CacheError(
            f"the last plan holds no pool that this version reads: {error}; find the part with "
            "`hierrouter verify`, and collect again"
        ) from error


def _identities(
    pool: Pool, stored: Pool, stored_identities: Mapping[str, Identity]
) -> dict[str, Identity]:
    """Resolve the models and actions of a pool; only models that are new need their engine."""
    stored_models = {model.name: model for model in stored.all_models}
    MEMORY.recall(stored_identities.values())
    identities = {
        model.name: _identity_without_engine(
            model, stored_models.get(model.name), stored_identities
        )
        for model in pool.all_models
    }
    from_engines = identify(model for model in pool.all_models if identities[model.name] is None)
    known = {name: identity or from_engines[name] for name, identity in identities.items()}

    def identify_served(model: ModelSpec) -> Identity | None:
        return _identity_without_engine(model, stored_models.get(model.name), stored_identities)

    return {**known, **identities_of_actions(pool, known, identify_served)}


def _identity_without_engine(
    model: ModelSpec, stored_model: ModelSpec | None, stored_identities: Mapping[str, Identity]
) -> Identity | None:
    """Resolve a model without its engine.

    Args:
        model: the model to resolve.
        stored_model: the plan's model of this name.
        stored_identities: what the plan's models resolved to, by name.

    Returns:
        The identity; None if the engine is needed.
    """
    if model.backend == OPENAI:
        endpoint = model.endpoint or Endpoint()
        # A pool without a server was collected from one that the command line named.
        if not endpoint.base_url and stored_model and stored_model.endpoint:
            endpoint = replace(endpoint, base_url=stored_model.endpoint.base_url)
        identity = served_identity(replace(model, endpoint=endpoint))
        stored_identity = stored_identities.get(model.name, {})
        # Plans of older versions do not say that a server was asked for neutral sampling. Their
        # responses are opened; `collect` asks for new ones.
        is_older = {**stored_identity, "sampling": identity["sampling"]} == identity
        return stored_identity if is_older else identity
    if stored_model and _is_same_source(model, stored_model):
        return stored_identities[model.name]
    # A model of another name may have the same weights.
    content = saved_identity(model)
    for identity in stored_identities.values():
        if _lasting_entries(identity) == content:
            return identity
    return None


def _is_same_source(model: ModelSpec, stored_model: ModelSpec) -> bool:
    """Whether a model is the stored one except for its price, and not a folder on this machine.

    Such a model need not be reachable. The files of a folder may have changed, so it is resolved
    again.
    """
    if any(getattr(model, name) != getattr(stored_model, name) for name in SOURCE_FIELDS):
        return False
    folder = named_folder(model)
    return folder is None or not folder.is_dir()


def _lasting_entries(identity: Identity) -> Identity:
    """The entries that an upgrade of the engine or another kind of device does not change."""
    passing = ("engine", "device", "sampling")
    return {name: text for name, text in identity.items() if name not in passing}


def _describe_changes(
    stored: Pool,
    stored_identities: Mapping[str, Identity],
    pool: Pool,
    identities: Mapping[str, Identity],
) -> str:
    """Describe how a pool differs from the one that the cache was collected with.

    Args:
        stored: the pool of the plan.
        stored_identities: what its models resolved to, by name.
        pool: the pool to open.
        identities: what the models of `pool` resolve to, by name.

    Returns:
        The changes in words; "" if there are none.
    """
    stored_models = {model.name: model for model in stored.all_models}
    notes = []
    for model in pool.all_models:
        name = model.name
        if name not in stored_models:
            notes.append(f"{name} is new")
            continue
        stored_model = stored_models[name]
        stored_settings = asdict(stored_model.generation)
        settings = model.generation.settings
        changes = [key for key in settings if stored_settings[key] != settings[key]]
        for key in SOURCE_FIELDS:
            if getattr(stored_model, key) != getattr(model, key):
                changes.append(key)
        for key in IDENTITY_ENTRIES:
            if identities[name].get(key) != stored_identities[name].get(key):
                changes.append(key)
        if changes:
            notes.append(f"{name}: {', '.join(changes)} changed")
    if pool.thoughts != stored.thoughts:
        notes.append(f"thoughts: {pool.thoughts}, collected was {stored.thoughts}")
    levels = range(min(pool.hops, stored.hops))
    if any(pool.instruction(level) != stored.instruction(level) for level in levels):
        notes.append("stage_prompts changed")
    stored_roles = {role.name: role for role in stored.roles}
    for role in pool.roles:
        if role.name not in stored_roles:
            notes.append(f"action {role.name} is new")
        elif (role.instruction, role.settings) != (
            stored_roles[role.name].instruction,
            stored_roles[role.name].settings,
        ):
            notes.append(f"action {role.name} changed")
    if pool.hops > stored.hops:
        notes.append(f"{pool.hops} hops, collected were {stored.hops}")
    return "; ".join(notes)


def score_forest(
    reader: CacheReader,
    forest: Forest,
    scorer: Scorer,
    on_scored: OnScored = lambda done, total: None,
) -> Scores:
    """Score every call of some trees; values that are not stored yet are computed and stored.

    Args:
        reader: an open cache.
        forest: the calls.
        scorer: gives each response its value.
        on_scored: progress callback, called with (done, total).

    Returns:
        The values; NaN only for missing calls, and for those that a judge has given no score.

    Raises:
        InputError: a user's scorer fails or returns no number in [0, 1].
    """
    if scorer.judge:
        return judge_forest(reader, forest, scorer, on_scored).scores
    stored = stored_scores(reader, forest, scorer.key)
    unscored_tree = forest.tree.present & np.isnan(stored.tree)
    unscored_direct = forest.direct.present & np.isnan(stored.direct)
    if not (unscored_tree.any() or unscored_direct.any()):
        return stored
    keys, query = _calls_where(forest, unscored_tree, unscored_direct)
    values = _compute_scores(reader, forest, keys, query, scorer, on_scored)
    in_tree = np.count_nonzero(unscored_tree)
    tree = stored.tree.copy()
    tree[unscored_tree] = values[:in_tree]
    direct = stored.direct.copy()
    direct[unscored_direct] = values[in_tree:]
    return Scores(tree, direct)


@dataclass(frozen=True)
class JudgedForest:
    """The verdicts of a judge on the calls of some trees.

    Attributes:
        scores: the values; NaN for missing calls, and for those without a verdict.
        answers: number of distinct answers.
        faults: number of distinct answers without a verdict, by key of `judge.FAULTS`.
        example: what the judge said instead of a verdict.
    """

    scores: Scores
    answers: int
    faults: Counter[str]
    example: str

    @property
    def is_final(self) -> bool:
        """Whether asking again would change nothing."""
        return not (self.faults.keys() & {*ASKED_AGAIN, "unasked"})

    def sentence(self, judge: str) -> str:
        """Say how many answers have no verdict, and why; "" if all have one."""
        if not self.faults:
            return ""
        reasons = ", ".join(f"{count:,} {FAULTS[name]}" for name, count in self.faults.items())
        return (
            f"{self.faults.total():,} of {self.answers:,} answers are not judged by {judge} "
            f"({reasons})"
        )


def judge_forest(
    reader: CacheReader,
    forest: Forest,
    scorer: Scorer,
    on_scored: OnScored = lambda done, total: None,
    max_spend: float | None = None,
) -> JudgedForest:
    """Judge every call of some trees; verdicts that are not stored yet are asked for and stored.

    Args:
        reader: an open cache.
        forest: the calls.
        scorer: has a judge.
        on_scored: progress callback, called with (done, total).
        max_spend: see `ModelJudge.verdicts`.

    Raises:
        Interrupted: the user has stopped it; the verdicts that came are kept.
        CacheError: the cache cannot be written, or a collection is at work there.
        WorldError: the judge cannot be reached; likewise.
    """
    assert scorer.judge is not None
    stored = stored_scores(reader, forest, scorer.key)
    tree = stored.tree.copy()
    direct = stored.direct.copy()
    keys, query = _calls_where(forest, forest.tree.present, forest.direct.present)
    is_call = keys != 0  # the root is none
    answers = len(np.unique(np.stack([keys, forest.references[query]], axis=1)[is_call], axis=0))
    unscored_tree = forest.tree.present & np.isnan(stored.tree)
    unscored_direct = forest.direct.present & np.isnan(stored.direct)
    keys, query = _calls_where(forest, unscored_tree, unscored_direct)
    faults: Counter[str] = Counter()
    example = ""
    values: list[float] = []
    distinct, first, position = _distinct_calls(forest, keys, query)
    for part in _parts_to_score(reader, forest, distinct[:, 0], query[first], with_prompt=False):
        inputs = [_scorer_input(call, row) for call, row in part]
        verdicts = scorer.judge.verdicts(reader, inputs, on_scored, max_spend)
        scored = []
        for (call, row), verdict in zip(part, verdicts, strict=True):
            if verdict.value is None:
                values.append(np.nan)
                faults[verdict.fault] += 1
                example = example or verdict.detail
            else:
                values.append(verdict.value)
                scored.append(_score_row(scorer, call, row, verdict.value, None))
        _store_scores(reader.root, scored)
    if values:
        expanded = np.array(values)[position]
        in_tree = np.count_nonzero(unscored_tree)
        tree[unscored_tree] = expanded[:in_tree]
        direct[unscored_direct] = expanded[in_tree:]
    return JudgedForest(Scores(tree, direct), answers, faults, example)


def _calls_where(
    forest: Forest, tree: NDArray[np.bool_], direct: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return uint64[n] and int64[n], the keys of these calls and the positions of their queries.

    Args:
        forest: the calls.
        tree: bool[queries, nodes], which ones of the trees.
        direct: bool[queries, K], which ones of the direct calls.
    """
    keys = np.concatenate([forest.tree.key[tree], forest.direct.key[direct]])
    query = np.concatenate([np.nonzero(tree)[0], np.nonzero(direct)[0]])
    return keys, query


def measure_forest(
    reader: CacheReader,
    forest: Forest,
    scorer: Scorer,
    run_code: bool,
    on_scored: OnScored = lambda done, total: None,
) -> Scores:
    """Score every call of some trees, programs by their tests if `scorer` is `accuracy`.

    Verdicts on programs that are in the cache are read, whether programs are run or not.

    Args:
        reader: an open cache.
        forest: the calls.
        scorer: gives each response its value.
        run_code: whether to run the programs in responses that have no verdict yet.
        on_scored: progress callback, called with (done, total).

    Returns:
        The values. All calls of a query are NaN if it asks for a program and one of them has no
        verdict; other ones only if they are missing.

    Raises:
        InputError: a user's scorer fails or returns no number in [0, 1].
        WorldError: programs are to be run and cannot be confined on this machine.
    """
    if scorer.name != ACCURACY:
        return score_forest(reader, forest, scorer, on_scored)
    rows = reader.queries(forest.keys, ("answers", "tests")).to_pylist()
    is_tested = np.array([bool(row["tests"]) for row in rows], np.bool_)
    is_program = is_tested | np.array([_are_programs(row["answers"]) for row in rows], np.bool_)
    if not is_program.any():
        return score_forest(reader, forest, scorer, on_scored)
    tree = np.full(forest.tree.key.shape, np.nan)
    direct = np.full(forest.direct.key.shape, np.nan)
    others = np.flatnonzero(~is_program)
    scores = score_forest(reader, forest.select(others), scorer, on_scored)
    tree[others] = scores.tree
    direct[others] = scores.direct
    tested = np.flatnonzero(is_tested)
    programs = forest.select(tested)
    test_scorer = replace(TEST_SCORER, thought_tags=scorer.thought_tags)
    if run_code:
        scores = score_forest(reader, programs, test_scorer, on_scored)
    else:
        scores = stored_scores(reader, programs, test_scorer.key)
    is_unknown = _are_unknown(scores, programs)
    tree[tested] = np.where(is_unknown[:, None], np.nan, scores.tree)
    direct[tested] = np.where(is_unknown[:, None], np.nan, scores.direct)
    return Scores(tree, direct)


def _are_unknown(scores: Scores, forest: Forest) -> NDArray[np.bool_]:
    """bool[queries]: a call that is there has no value."""
    in_tree = np.isnan(scores.tree) & forest.tree.present
    in_direct = np.isnan(scores.direct) & forest.direct.present
    counts = np.count_nonzero(np.concatenate([in_tree, in_direct], axis=1), axis=1)
    return counts > 0


def _are_programs(references: Sequence[str]) -> bool:
    return bool(references) and all(map(is_code, references))


@dataclass(frozen=True)
class Quality:
    """Q of the calls of some trees.

    Attributes:
        forest: the queries of which Q is known.
        rows: int64[n], their positions among those that were asked for.
        scores: of the forest.
        unjudged: how many answers have no verdict of a judge, and why; "" if all have one.
        is_final: whether asking the judge again would change nothing.
    """

    forest: Forest
    rows: NDArray[np.int64]
    scores: Scores
    unjudged: str = ""
    is_final: bool = True


def quality_of_forest(
    reader: CacheReader,
    forest: Forest,
    scorer: Scorer,
    run_code: bool,
    on_scored: OnScored = lambda done, total: None,
    allow_incomplete: bool = False,
    max_spend: float | None = None,
) -> Quality:
    """Score every call as `measure_forest`, and refuse queries without a value: Q is needed of all.

    Args:
        reader: an open cache.
        forest: the calls.
        scorer: gives each response its value.
        run_code: whether to run the programs in responses that have no verdict yet.
        on_scored: progress callback, called with (done, total).
        allow_incomplete: leave out the queries with an answer that a judge has not judged.
        max_spend: of a judge, see `ModelJudge.verdicts`.

    Raises:
        InputError: a query asks for a program that no test has judged.
        IncompleteTree: a judge has not judged all answers.
        Interrupted: `max_spend` is reached before all answers are judged.
        WorldError: a judge has judged no answer at all.
    """
    rows = np.arange(len(forest.keys))
    if scorer.judge:
        judged = judge_forest(reader, forest, scorer, on_scored, max_spend)
        known = rows[~_are_unknown(judged.scores, forest)]
        sentence = judged.sentence(scorer.judge.name)
        if sentence and not (allow_incomplete and len(known)):
            _refuse_unjudged(judged, sentence, scorer, len(rows) - len(known), max_spend)
        scores = Scores(judged.scores.tree[known], judged.scores.direct[known])
        return Quality(forest.select(known), known, scores, sentence, judged.is_final)
    scores = measure_forest(reader, forest, scorer, run_code, on_scored)
    is_unknown = _are_unknown(scores, forest)
    if is_unknown.any():
        keys = forest.select(np.flatnonzero(is_unknown)).keys
        queries = reader.queries(keys, ("dataset", "tests")).to_pylist()
        names = ", ".join(dict.fromkeys(query["dataset"] for query in queries))
        remedy = "run them: --run-code"
        if not all(query["tests"] for query in queries):
            remedy = (
                "these have no tests: collect with --datasets once more, no call is repeated, then "
                "--run-code"
            )
        raise InputError(
            f"answers of {names} are programs, so their accuracy is not known: --scorer "
            f"{scorer.name}; {remedy}, or take other --datasets or another scorer"
        )
    return Quality(forest, rows, scores)


def _refuse_unjudged(
    judged: JudgedForest, sentence: str, scorer: Scorer, queries: int, max_spend: float | None
) -> NoReturn:
    """Raise the error for answers without a verdict; see `quality_of_forest`."""
    assert scorer.judge is not None
    if max_spend is not None and judged.faults["unasked"]:
        raise Interrupted(
            f"the limit is reached: --max-spend {max_spend:g}: {sentence}; all verdicts are kept, "
            "the same command with more goes on"
        )
    if judged.faults.total() == judged.answers:
        raise no_score_error(scorer.judge.name, judged.example)
    those = f"their {queries:,} queries" if queries > 1 else "their query"
    remedies = [f"--allow-incomplete leaves {those} out"]
    if judged.faults.keys() & set(ASKED_AGAIN):
        remedies.append("the same command asks again for those that failed")
    if judged.faults["cut"]:
        remedies.append("more max_new_tokens lets it finish, and it judges all again")
    raise IncompleteTree(f"{sentence}; {', '.join(remedies)}")


def rescored_note(reader: CacheReader, scorers: Sequence[Scorer]) -> str:
    """Say which scores of a cache are of other versions of some scorers, so that none is read.

    Args:
        reader: an open cache, before responses are scored.
        scorers: that are asked for.

    Returns:
        A sentence without a full stop; "" if there are none.
    """
    stored = reader.columns("SELECT DISTINCT scorer FROM scores_rows")["scorer"].tolist()
    names = {scorer.key: scorer.name for scorer in scorers}
    pairs = []
    for key, name in names.items():
        others = sorted(other for other in stored if other.partition("@")[0] == name)
        if others and key not in others:
            pairs.append(f"{key} (the cache had {', '.join(others)})")
    if not pairs:
        return ""
    return (
        f"responses are scored again, by {' and '.join(pairs)}: other versions read them otherwise"
    )


def _compute_scores(
    reader: CacheReader,
    forest: Forest,
    keys: NDArray[np.uint64],
    query: NDArray[np.int64],
    scorer: Scorer,
    on_scored: OnScored,
) -> NDArray[np.float64]:
    """Compute and store the values of some calls.

    Args:
        reader: an open cache.
        forest: the trees of the calls.
        keys: uint64[n], the calls.
        query: int64[n], positions of their queries.
        scorer: gives each response its value.
        on_scored: progress callback, called with (done, total).

    Returns:
        float64[n].

    Raises:
        InputError: as `score_forest`.
    """
    distinct, first, position = _distinct_calls(forest, keys, query)
    values: list[float] = []
    part_size = FIRST_SCORED_PART
    reads_prompt = not {"context", "model"}.isdisjoint(scorer.reads)
    with_prompt = reads_prompt or bool(scorer.thought_tags)
    for pending in _parts_to_score(reader, forest, distinct[:, 0], query[first], with_prompt):
        while pending:
            part = pending[:part_size]
            pending = pending[part_size:]
            started = perf_counter()
            values += _score_part(reader.root, scorer, part)
            on_scored(len(values), len(distinct))
            # A slow scorer's work is stored every few seconds, a fast one's in large parts.
            rate = len(part) / max(perf_counter() - started, 1e-3)
            part_size = min(LARGEST_SCORED_PART, max(1, round(rate * SECONDS_PER_SCORED_PART)))
    return np.array(values)[position]


def _distinct_calls(
    forest: Forest, keys: NDArray[np.uint64], query: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the calls that several nodes share once for each set of reference answers.

    Args:
        forest: the trees of the calls.
        keys: uint64[n], the calls.
        query: int64[n], positions of their queries.

    Returns:
        uint64[m, 2], call and references; int64[m], the first position of each in `keys`; and
        int64[n], the row of each call.
    """
    call_references = np.stack([keys, forest.references[query]], axis=1)
    distinct, first, position = np.unique(
        call_references, axis=0, return_index=True, return_inverse=True
    )
    return distinct, first, position.ravel()


def _parts_to_score(
    reader: CacheReader,
    forest: Forest,
    calls: NDArray[np.uint64],
    query: NDArray[np.int64],
    with_prompt: bool,
) -> Iterator[list[CallWithQuery]]:
    """Yield calls with their queries, as many at once as memory holds.

    Args:
        reader: an open cache.
        forest: the trees of the calls.
        calls: uint64[m], the calls.
        query: int64[m], positions of their queries.
        with_prompt: whether to read the prompts, too.
    """
    columns = ("answers", "choices", "question", '"references"', "tests", "answer_type")
    for start in range(0, len(calls), CALLS_PER_READ):
        batch = slice(start, start + CALLS_PER_READ)
        stored_calls = reader.texts(calls[batch], with_prompt)
        rows = reader.queries([forest.keys[row] for row in query[batch]], columns).to_pylist()
        yield [(stored_calls[call], row) for call, row in zip(calls[batch], rows, strict=True)]


def _scorer_input(call: StoredCall, row: Mapping[str, Any]) -> ScorerInput:
    """All that a scorer can read about a call."""
    return ScorerInput(
        response=call.visible,
        references=tuple(row["answers"]),
        question=row["question"],
        context=call.prompt,
        choices=stored_choices(row["choices"]),
        model=call.model,
        tests=tuple(row["tests"] or ()),
        answer_type=row["answer_type"] or "",
    )


def _score_part(root: Path, scorer: Scorer, part: Sequence[CallWithQuery]) -> list[float]:
    """Compute the values of some calls and store them if possible.

    Args:
        root: the cache.
        scorer: gives each response its value.
        part: the calls.
    """
    judged = judge_all(scorer, [_scorer_input(call, row) for call, row in part])
    _store_scores(
        root,
        [
            _score_row(scorer, call, row, value, reading)
            for (call, row), (value, reading) in zip(part, judged, strict=True)
        ],
    )
    return [value for value, _ in judged]


def _score_row(
    scorer: Scorer, call: StoredCall, row: Mapping[str, Any], value: float, reading: Reading | None
) -> dict[str, Any]:
    """Return the row of `scores` of a value."""
    return {
        "call": call.key,
        "references": row["references"],
        "scorer": scorer.key,
        "value": value,
        **_reading_columns(reading, call),
    }


def _store_scores(root: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store scores, but not while a collection runs, nor in a cache that cannot be written to."""
    if rows and writable(root):
        with contextlib.suppress(CacheLocked), collector_lock(root):
            PartWriter(root).append("scores", pa.Table.from_pylist(rows, schema=SCORES_SCHEMA))


def _reading_columns(reading: Reading | None, call: StoredCall) -> dict[str, Any]:
    """The columns of a score that say what was read; empty if the scorer reads no answer."""
    if reading is None:
        return {}
    reading = reading.moved(call.visible_start)
    return {"read_type": reading.kind, "read_start": reading.start, "read_end": reading.end}
