"""Rows are those of a dataset, an id, a path and a draw; the question's text is no key."""

import hashlib
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.collection.adaptive import PILOT_QUERIES, Adaptive, fill_adaptively
from hierrouter.collection.due import due_levels
from hierrouter.collection.estimate import estimate
from hierrouter.collection.expected import expected_stages
from hierrouter.collection.measures import Measures
from hierrouter.collection.plan import Shard, shard_status
from hierrouter.collection.scheduler import fill_cache
from hierrouter.collection.storing import pool_of, store_answers, with_prices
from hierrouter.collection.tables import Answers, gather, read_table
from hierrouter.collection.transfer import import_
from hierrouter.engines import backend
from hierrouter.engines.batches import prompt_seed
from hierrouter.engines.endpoint import Caller
from hierrouter.engines.generator import NO_OPTIONS, Answer, CallOptions, Failure, Response
from hierrouter.engines.token_counts import TokenCounter
from hierrouter.evaluation.bounds import oracle, split_oracle, split_plan_oracle
from hierrouter.evaluation.outcome import fixed_routes
from hierrouter.pools.files import load_pool, stored_import, stored_pool, with_draws
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec, Pool
from hierrouter.replay.inspection import cache_info, verify_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Tree
from hierrouter.reports.fold_report import report_on_fold
from hierrouter.reports.sentences import message
from hierrouter_cache.errors import IncompleteTree, InputError
from hierrouter_cache.keys import digest
from hierrouter_cache.layout import Layout
from hierrouter_cache.reader import CacheReader
from tests.conftest import Run, Start, calls_made, works
from tests.engines import Scripted, scripted_answer
from tests.hierrouter.collection.examples import POOL, Rows, answers_of, save, single_answers, sums

RUNS = ("0", "1", "2")


def runs(queries: int = 6) -> Rows:
    """Three runs of each sum: the first model is right in the first one, the second in two."""
    rows = []
    for row in single_answers(queries):
        for run in RUNS:
            is_right = run == "0" or (run == "1" and "large" in row["model"])
            response = row["final_answer"] if is_right else f"no idea, {run}"
            tokens_out = 6 + 3 * int(run)
            changes = {"response": response, "score": float(is_right), "tokens_out": tokens_out}
            rows.append({**row, **changes, "draw": run})
    return rows


def ids_by_run(rows: Rows) -> Rows:
    """The same runs, each under an id of its own."""
    without_draw = [{name: value for name, value in row.items() if name != "draw"} for row in rows]
    return [
        {**row, "query_id": f"{row['query_id']}-run{rows[number]['draw']}"}
        for number, row in enumerate(without_draw)
    ]


def opened(rows: Rows, folder: Path, draw: str | None = None) -> Tree:
    """The tree of an imported table, scored as its rows say."""
    import_(save(rows, folder / "runs.parquet"), folder / "cache", draw=draw)
    return OpenTree(cache=folder / "cache", scorer="given").run()


def direct_scores(tree: Tree) -> list[float]:
    """The mean of each model's scores."""
    means: list[float] = tree.direct.score.mean(axis=0).tolist()
    return means


def test_ids_with_one_text_keep_their_own_scores(tmp_path: Path) -> None:
    rows = ids_by_run(runs())
    tree = opened(rows, tmp_path)
    assert len(tree) == 18
    assert direct_scores(tree) == pytest.approx([1 / 3, 2 / 3])
    by_id = dict(zip(tree.query_ids, tree.direct.tokens_out[:, 0].tolist(), strict=True))
    assert (by_id["q0-run0"], by_id["q0-run2"]) == (6, 12)
    # The later hops are those of the same query.
    assert np.array_equal(tree.score[:, 1:3], tree.direct.score)
    assert verify_cache(tmp_path / "cache")


def test_a_text_in_two_datasets_is_two_questions(tmp_path: Path) -> None:
    rows = single_answers()
    others = [
        {**row, "dataset": "more", "score": 1 - row["score"], "response": "else"} for row in rows
    ]
    tree = opened([*rows, *others], tmp_path)
    assert sorted(set(tree.datasets)) == ["more", "sums"]
    of_more = np.array(tree.datasets) == "more"
    assert tree.direct.score[of_more].mean(axis=0).tolist() == [0.5, 0.0]
    assert tree.direct.score[~of_more].mean(axis=0).tolist() == [0.5, 1.0]


def test_an_answer_that_one_id_lacks_is_not_that_of_another(tmp_path: Path) -> None:
    rows = [
        row
        for row in ids_by_run(runs())
        if row["query_id"] != "q3-run1" or "large" not in row["model"]
    ]
    with pytest.raises(Exception, match="1 of 18 queries lack"):
        opened(rows, tmp_path)


def test_a_number_and_its_digits_are_one_id(tmp_path: Path) -> None:
    rows = single_answers(2)
    for row in rows:
        row["query_id"] = "7" if row["query_id"] == "q0" else "8"
    rows[0]["query_id"] = 7
    queries = gather(read_table(save(rows, tmp_path / "s.jsonl")), 42).queries
    assert [query.id for query in queries] == ["7", "8"]
    rows[2] = {**rows[2], "query_id": 7}
    with pytest.raises(InputError, match=r"query 7 has two questions.*row 1 and .*row 3"):
        gather(read_table(save(rows, tmp_path / "t.jsonl")), 42)


def test_an_import_is_the_same_for_texts_that_stand_once(tmp_path: Path) -> None:
    """So files that were imported before are known when they are imported again."""
    answers = answers_of(single_answers(), tmp_path)
    assert not any(query.has_own_calls for query in answers.queries)
    answers = answers_of(ids_by_run(runs()), tmp_path)
    assert all(query.has_own_calls for query in answers.queries)
    # Runs of one question are in one fold.
    folds: dict[str, set[str]] = {}
    for query in answers.queries:
        folds.setdefault(query.question, set()).add(query.split)
    assert all(len(splits) == 1 for splits in folds.values())


def as_before(answers: Answers) -> Answers:
    """The answers as imports of earlier versions stored them: by the text of the question."""
    queries = tuple(replace(query, has_own_calls=False) for query in answers.queries)
    return replace(answers, queries=queries)


def test_a_cache_that_merged_them_opens_and_says_so(tmp_path: Path) -> None:
    answers = answers_of(ids_by_run(runs()), tmp_path)
    pool = with_prices(pool_of(answers, None), {})
    store_answers(as_before(answers), pool, tmp_path / "cache")
    tree = OpenTree(cache=tmp_path / "cache", scorer="given").run()
    assert direct_scores(tree) == [1.0, 1.0]
    assert tree.merged.startswith(
        "18 queries have the answers and scores of the first one with their text, "
        "e.g. sums/q0-run0 and sums/q0-run1 and sums/q0-run2: "
    )
    # The same file again keeps them apart, and what was there stays.
    merge = store_answers(answers, pool, tmp_path / "cache")
    assert merge.present == merge.repeated
    tree = OpenTree(cache=tmp_path / "cache", scorer="given").run()
    assert tree.merged == ""
    assert direct_scores(tree) == pytest.approx([1 / 3, 2 / 3])


def test_runs_of_one_id_need_a_rule(tmp_path: Path) -> None:
    file = save(runs(), tmp_path / "runs.jsonl")
    with pytest.raises(InputError) as error:
        import_(file, tmp_path / "cache")
    assert str(error.value) == (
        f"3 answers of lab/tiny 1b to one query, sums/q0: {file}: row 1 and {file}: row 2; give "
        "different runs of it different ids, or say --draw all, --draw first or --draw mean"
    )
    assert not (tmp_path / "cache").exists()


def test_the_first_run_is_that_with_the_lowest_number(tmp_path: Path) -> None:
    rows = [
        {**row, "draw": {"0": 10, "1": 9, "2": None}[row["draw"]]}
        for row in runs()
        if row["draw"] != "2"
    ]
    tree = opened(rows, tmp_path, draw="first")
    assert direct_scores(tree) == [0.0, 1.0]
    assert set(tree.direct.tokens_out.ravel().tolist()) == {9}


def test_a_mean_has_the_text_of_the_first_run(tmp_path: Path) -> None:
    rows = [{**row, "latency_s": 1.0 + int(row["draw"])} for row in runs()]
    result = import_(save(rows, tmp_path / "runs.csv"), tmp_path / "cache", draw="mean")
    assert (
        "up to 3 runs of one query: score, tokens and seconds are means of them, the text is the "
        "first (--draw mean)"
    ) in result.notes
    tree = OpenTree(cache=tmp_path / "cache", scorer="given").run()
    assert direct_scores(tree) == pytest.approx([1 / 3, 2 / 3])
    assert set(tree.direct.tokens_out.ravel().tolist()) == {9}
    assert set(tree.direct.seconds.ravel().tolist()) == {2.0}
    reader = CacheReader(tmp_path / "cache")
    assert "no idea" not in " ".join(reader.responses().values())
    assert stored_import(reader.latest_plan().pool)["draw"] == "mean"


def test_a_row_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    rows = single_answers()
    result = import_(save([*rows, *rows[:4]], tmp_path / "sums.jsonl"), tmp_path / "cache")
    assert "4 rows repeat another exactly; each counts once" in result.notes
    assert result.merge.added["calls"] == 60
    again = import_(save(rows, tmp_path / "sums.jsonl"), tmp_path / "cache")
    assert again.merge.added.total() == 0


def test_a_run_that_stands_twice_is_refused(tmp_path: Path) -> None:
    rows = runs()
    rows[1]["draw"] = "0"
    with pytest.raises(InputError, match=r"query q0 have the draw 0: .*row 1 and .*row 2"):
        import_(save(rows, tmp_path / "runs.jsonl"), tmp_path / "cache", draw="first")


def chain_runs() -> Rows:
    """Two runs of chains of two hops; of the last query the first run has one hop."""
    rows = []
    for row in single_answers(6):
        for hop in (1, 2):
            for run in (0, 1):
                changes = {"response": f"{run}, {hop}", "score": float(run), "hop": hop}
                rows.append({**row, **changes, "draw": run})
    return [row for row in rows if (row["query_id"], row["hop"], row["draw"]) != ("q5", 2, 0)]


def test_a_chain_goes_on_in_the_run_in_which_it_began(tmp_path: Path) -> None:
    rows = chain_runs()
    single = gather(read_table(save(rows, tmp_path / "chains.jsonl")), 42, "first").by_path
    assert [len(by_path) for by_path in single] == [4, 4, 4, 4, 4, 2]
    assert {answer.response[0] for by_path in single for answer in by_path.values()} == {"0"}
    with pytest.raises(InputError, match=r"not all runs of query q5 have hop 2: .*--draw first"):
        gather(read_table(tmp_path / "chains.jsonl"), 42, "mean")
    for row in rows:
        del row["draw"]
    with pytest.raises(InputError, match=r"hop 2: .*number the runs in a column draw"):
        gather(read_table(save(rows, tmp_path / "bare.jsonl")), 42, "first")


def test_all_runs_are_draws_of_their_calls(tmp_path: Path) -> None:
    result = import_(save(runs(), tmp_path / "runs.jsonl"), tmp_path / "cache", draw="all")
    assert "up to 3 runs of one query: each is a draw of its call (--draw all)" in result.notes
    assert stored_import(CacheReader(tmp_path / "cache").latest_plan().pool)["draw"] == "all"
    tree = OpenTree(cache=tmp_path / "cache", scorer="given").run()
    assert tree.layout.draws == 3
    assert tree.layout.hops == 1
    # Runs 0 and 1 of the second model read the same: one draw, which two of three runs had.
    assert tree.weight[0, 1:].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3, 1 / 3])
    means = [outcome.quality.mean() for outcome in fixed_routes(tree)]
    assert means == pytest.approx([1 / 3, 2 / 3])
    assert verify_cache(tmp_path / "cache")


def test_all_runs_of_chains_are_draws_at_each_hop(tmp_path: Path) -> None:
    rows = chain_runs()
    answers = gather(read_table(save(rows, tmp_path / "chains.jsonl")), 42, "all")
    assert answers.runs is not None
    for row in rows:  # a run whose first hop is not there
        if (row["query_id"], row["hop"], row["draw"]) == ("q4", 1, 1):
            row["draw"] = 7
    with pytest.raises(InputError, match="hop 2 without its earlier hop"):
        gather(read_table(save(rows, tmp_path / "torn.jsonl")), 42, "all")


def test_runs_without_texts_are_told_by_their_numbers(tmp_path: Path) -> None:
    rows = [{**row, "response": ""} for row in runs()]
    tree = opened(rows, tmp_path, draw="all")
    assert tree.layout.nodes == 7
    assert tree.score[:, 1:].tolist() == [[1, 0, 0, 1, 1, 0]] * len(tree)


def test_a_draw_that_stands_twice_is_refused(tmp_path: Path) -> None:
    rows = runs()
    with pytest.raises(InputError, match=r"have the draw 0: .*row 1 and .*row 37; number them"):
        import_(save([*rows, rows[0]], tmp_path / "twice.jsonl"), tmp_path / "cache", draw="all")
    assert not (tmp_path / "cache").exists()


def test_a_log_keeps_its_draws_whatever_the_rule(tmp_path: Path) -> None:
    log = [{"query_id": "q0", "question": "1 + 1", "action": "a", "path": "", "response": "2"}]
    with pytest.raises(InputError, match="a log keeps all its draws: --draw first; leave it out"):
        import_(save(log, tmp_path / "log.jsonl"), tmp_path / "cache", draw="first")


def test_paths_with_equal_answers_may_go_on_differently(tmp_path: Path) -> None:
    """The second model answered differently, though both first answers read the same."""
    rows = []
    for row in single_answers(10):
        rows.append({**row, "response": "Let me see.", "path": row["model"]})
        for first in ("lab/tiny 1b", "lab/large 10b"):
            is_right = first == "lab/large 10b"
            response = row["final_answer"] if is_right else "0"
            path = f"{first}>{row['model']}"
            rows.append({**row, "response": response, "score": float(is_right), "path": path})
    tree = opened(rows, tmp_path)
    routes = tree.layout
    after_tiny, after_large = tree.score[:, 3:5], tree.score[:, 5:7]
    assert routes.nodes == 7
    assert (after_tiny.max(), after_large.min()) == (0.0, 1.0)
    assert verify_cache(tmp_path / "cache")


# Draws that a collection makes itself.

WARM = Generation(max_new_tokens=16, temperature=0.7, seed=3)
DRAWN = replace(POOL, models=tuple(replace(model, generation=WARM) for model in POOL.models))
QUERIES = sums(6)
KILLS = 3


def with_two_draws(pool: Pool) -> Pool:
    return with_draws(pool, 2)


def test_a_pool_without_draws_is_stored_as_before() -> None:
    identities = {model.name: {"engine": "scripted"} for model in DRAWN.models}
    assert '"draws"' not in DRAWN.to_json(identities)
    stored, _ = stored_pool(with_two_draws(DRAWN).to_json(identities), "here")
    assert (stored.draws, stored.calls_per_query) == (2, 6 + 36 + 6)
    assert DRAWN.layout.digest == Layout.full(3, 2).digest


def test_a_greedy_model_has_one_draw() -> None:
    models = (DRAWN.models[0], POOL.models[1])
    pool = with_two_draws(replace(DRAWN, models=models))
    assert pool.layout.action.tolist()[1:4] == [0, 0, 1]
    assert pool.layout.draw.tolist()[1:4] == [0, 1, 0]
    spec = pool.tree_spec({model.name: {"engine": "scripted"} for model in models})
    assert [name for name, _ in spec.direct] == ["a", "a", "b"]
    assert spec.first_direct.tolist() == [0, 2]


@pytest.mark.parametrize("draws", [0, -1, 65, 1.5, "many"])
def test_a_number_of_draws_is_refused(draws: object) -> None:
    with pytest.raises(InputError, match=r"draws must be .*--draws"):
        with_draws(DRAWN, draws)  # type: ignore[arg-type]


def test_draws_of_greedy_models_are_refused() -> None:
    with pytest.raises(InputError, match="every model is at temperature 0"):
        with_two_draws(POOL)


def test_too_many_nodes_are_refused() -> None:
    with pytest.raises(InputError, match=r"3 models at 3 hops with 20 draws exceed 10,000"):
        with_draws(replace(DRAWN, hops=3), 20)


def test_a_cache_goes_on_with_draws_and_calls_nothing_twice(tmp_path: Path) -> None:
    engines = Scripted()
    first = fill_cache(DRAWN, QUERIES, tmp_path, engines=engines)
    before = OpenTree(cache=tmp_path).run()
    pool = with_two_draws(DRAWN)
    summary = fill_cache(pool, QUERIES, tmp_path, engines=engines)
    assert set(engines.asked.values()) == {1}
    assert (first.calls, summary.calls) == (6 * 15, 6 * (48 - 15))
    assert fill_cache(pool, QUERIES, tmp_path, engines=engines).calls == 0

    tree = OpenTree(cache=tmp_path).run()
    assert tree.layout == pool.layout
    assert tree.weight is not None
    assert np.all(tree.weight[:, 1:] == 0.5)
    one = OpenTree(cache=tmp_path, draws=1).run()
    assert one.fingerprint == before.fingerprint
    assert one.layout.is_full
    assert one.weight is None
    with pytest.raises(InputError, match="draws must be 1 to 2, as collected, got 3"):
        OpenTree(cache=tmp_path, draws=3).run()


def test_the_report_says_what_to_run_where_each_call_has_one_draw(tmp_path: Path) -> None:
    """Beside the headline, once; not at temperature 0, of several draws or of an import."""
    words = "Luck cannot be told from skill with one draw of each call"

    def said(root: Path, draws: int | None = None) -> list[str]:
        tree = OpenTree(cache=root, draws=draws).run()
        report = report_on_fold(tree, 0.0, None, None, {}, split="all")
        assert not [note for note in report.notes if "Luck" in note]
        return message(report).split(words)[1:]

    root = tmp_path / "two words"
    engines = Scripted()
    mixed = replace(DRAWN, models=(DRAWN.models[0], *POOL.models[1:]))
    fill_cache(mixed, QUERIES, root, engines=engines)
    assert OpenTree(cache=root).run().sampled == (True, False, False)
    [sentence] = said(root)
    assert sentence.endswith(f"`hierrouter collect --cache '{root}' --draws 2` tells them apart.")
    fill_cache(with_two_draws(mixed), QUERIES, root, engines=engines)
    assert said(root) == []
    assert said(root, 1)[0].endswith("leave --draws 1 out to open all 2.")
    assert OpenTree(cache=root).run().sampled == (True, False, False)
    fill_cache(POOL, QUERIES, tmp_path / "cold", engines=engines)
    assert said(tmp_path / "cold") == []
    import_(save(single_answers(), tmp_path / "sums.jsonl"), tmp_path / "imported")
    assert OpenTree(cache=tmp_path / "imported").run().sampled is None
    assert said(tmp_path / "imported") == []


def test_direct_calls_are_means_over_draws(tmp_path: Path) -> None:
    def script(model: str, prompt: str) -> Response:
        return Response(f"{model} {len(prompt)}", 10, 4 if "draw" in model else 1, "stop")

    fill_cache(with_two_draws(DRAWN), QUERIES, tmp_path, engines=Scripted(script))
    tree = OpenTree(cache=tmp_path).run()
    assert tree.direct.models == ("a", "b", "c")
    assert np.all(tree.direct.tokens_out == 2.5)
    assert np.all(tree.direct.cost == 12.5)
    assert tree.to_arrow().num_rows == 6 * (42 + 3)
    assert len(tree.texts[0].answers) == tree.layout.nodes
    saved = OpenTree(cache=tmp_path).run()  # of the saved tree
    assert np.array_equal(saved.direct.cost, tree.direct.cost)
    assert saved.weight is not None
    assert tree.weight is not None
    assert np.array_equal(saved.weight, tree.weight)


def test_equal_texts_of_two_draws_go_on_as_one(tmp_path: Path) -> None:
    def script(model: str, prompt: str) -> Response:
        return Response(model[0], 10, 1, "stop")  # both draws are equal

    engines = Scripted(script)
    summary = fill_cache(with_two_draws(DRAWN), QUERIES, tmp_path, engines=engines)
    assert summary.calls == 6 * (6 + 3 * 6 + 6)
    assert cache_info(tmp_path)["missing_nodes"] == 0
    assert verify_cache(tmp_path)


def test_no_oracle_without_luck_looks_at_an_answer_twice(tmp_path: Path) -> None:
    """After equal first answers the second calls are the same: a coin that no rule foresees."""

    def coin(model: str, prompt: str) -> Response:
        if "plan of" not in prompt:
            return Response(f"plan of {model[0]}", 5, 2, "stop")
        result = 2 * int(prompt.split(" + ")[0].split()[-1])
        is_right = hashlib.sha256(f"{model} {prompt}".encode()).digest()[0] % 2
        return Response(str(result if is_right else -1), 5, 2, "stop")

    model = ModelSpec("coin", "org/coin", base_rate=1.0, generation=Generation(temperature=0.7))
    models = tuple(replace(model, name=name, model=f"org/{name}") for name in "abc")
    pool = Pool(models, 2, ("Plan.", "Solve."), encoder="hashed-ngrams", draws=2)
    fill_cache(pool, sums(300), tmp_path, engines=Scripted(coin))
    for _ in range(2):  # read from its parts, then from the saved tree
        tree = OpenTree(cache=tmp_path, scorer="numeric").run()
        assert tree.same_call is not None
        assert tree.score[:, tree.layout.leaves].mean() == pytest.approx(0.5, abs=0.03)
        for bound in (split_oracle(tree, 0.0), split_plan_oracle(tree, 0.0)):
            assert bound is not None
            assert bound.quality.mean() == pytest.approx(0.5, abs=0.08)
        assert oracle(tree, 0.0).quality.mean() > 0.9


def test_a_missing_draw_makes_a_query_incomplete(tmp_path: Path) -> None:
    def script(model: str, prompt: str) -> Answer:
        if model == "b, draw 1" and "What is 2 + 2?" in prompt:
            return Failure("filtered", "no")
        return scripted_answer(model, prompt)

    summary = fill_cache(with_two_draws(DRAWN), QUERIES, tmp_path, engines=Scripted(script))
    assert summary.incomplete == 1
    assert summary.missing == cache_info(tmp_path)["missing_nodes"] + 1
    with pytest.raises(IncompleteTree, match="of b in 1"):
        OpenTree(cache=tmp_path).run()
    assert len(OpenTree(cache=tmp_path, allow_incomplete=True).run()) == 5
    assert len(OpenTree(cache=tmp_path, draws=1).run()) == 6


def test_shards_have_all_draws(tmp_path: Path) -> None:
    pool = with_two_draws(DRAWN)
    engines = Scripted()
    for index in (1, 2):
        fill_cache(pool, QUERIES, tmp_path, engines=engines, shard=Shard(index, 2))
    status = shard_status(tmp_path, 2)
    assert (len(status.complete), status.present, status.expected) == (2, 6 * 48, 6 * 48)
    assert set(engines.asked.values()) == {1}


def test_local_models_draw_other_texts(tmp_path: Path) -> None:
    """A real model; draw 0 is what is drawn without draws."""
    spec = load_pool("testbed").models[0]
    warm = replace(spec, generation=Generation(max_new_tokens=16, temperature=2.0))
    model = backend("transformers").load(warm)
    prompts = ["compute 12 + 13", "compute 7 * 8"]
    plain = dict(model.generate(prompts))
    drawn = dict(model.generate([*prompts, *prompts], draws=[0, 0, 1, 1]))
    assert {0: drawn[0], 1: drawn[1]} == plain
    assert [drawn[2], drawn[3]] != [drawn[0], drawn[1]]


def test_served_models_get_another_seed_for_each_draw() -> None:
    endpoint = Endpoint("http://127.0.0.1:1/v1")
    spec = replace(DRAWN.models[0], backend="openai", endpoint=endpoint)
    caller = Caller(spec, endpoint)
    bodies = [
        caller.request_body("q", CallOptions(draw=draw), caller.dialect) for draw in (0, 1, 2)
    ]
    assert len({body["seed"] for body in bodies}) == 3
    assert bodies[0] == caller.request_body("q", NO_OPTIONS, caller.dialect)
    refusing = replace(caller.dialect, refused=frozenset({"seed"}))
    assert "seed" not in caller.request_body("q", CallOptions(draw=1), refusing)


def test_no_draw_has_the_seed_of_another_draw_of_a_neighbouring_seed() -> None:
    """One model under two names, with seeds 0 and 1: what the actions draw is independent."""
    endpoint = Endpoint("http://127.0.0.1:1/v1")
    seeds = []
    for seed in (0, 1, 2):
        generation = Generation(temperature=0.7, seed=seed)
        spec = replace(DRAWN.models[0], backend="openai", endpoint=endpoint, generation=generation)
        caller = Caller(spec, endpoint)
        for draw in (0, 1, 2):
            body = caller.request_body("q", CallOptions(draw=draw), caller.dialect)
            seeds.append(body["seed"])
    assert len(set(seeds)) == 9
    digits = digest(["draw", DRAWN.models[0].model, 1, "q"])  # as before there were draws
    assert seeds[3] == int(digits[:7], 16)
    local = [prompt_seed("w", seed, "q", draw) for seed in (0, 1, 2) for draw in (0, 1, 2)]
    assert len(set(local)) == 9
    assert local[3] == int(digest(["draw", "w", 1, "q"])[:15], 16)


def warm_pool(folder: Path, hops: int, temperature: float = 0.7) -> Path:
    """A pool file with the models of the testbed at a temperature above 0."""
    models = "".join(
        f'[[models]]\nname = "{model.name}"\nmodel = "{model.model}"\nbase_rate = 1.0\n'
        f"generation = {{ max_new_tokens = 16, temperature = {temperature} }}\n"
        for model in load_pool("testbed").models
    )
    file = folder / "warm.toml"
    file.write_text(
        f'[pool]\nhops = {hops}\nper_tokens = 1000\nencoder = "hashed-ngrams"\n{models}'
    )
    return file


def test_kills_lose_and_repeat_no_draw(tmp_path: Path, hierrouter: Run, start: Start) -> None:
    file = warm_pool(tmp_path, hops=2)
    arguments = ("collect", "--datasets", "arith", "--limit", 40, "--pool", file, "--draws", 2)

    def committed(root: Path) -> dict[str, str]:
        if not list(root.glob("parts/calls-*")):
            return {}
        return CacheReader(root).responses()

    root = tmp_path / "killed"
    kept: dict[str, str] = {}
    for _ in range(KILLS):
        process = start(*arguments, "--cache", root, cwd=tmp_path)
        before = set(root.glob("parts/calls-*"))
        while set(root.glob("parts/calls-*")) == before and process.poll() is None:
            time.sleep(0.005)  # until a part more has been committed
        process.send_signal(signal.SIGKILL)
        process.result()
        now = committed(root)
        assert kept.items() < now.items()
        kept = now
    last = works(hierrouter(*arguments, "--cache", root, cwd=tmp_path))
    all_calls = committed(root)
    assert kept.items() < all_calls.items()
    made, reused = calls_made(last.stderr)
    assert (made, reused) == (len(all_calls) - len(kept), len(kept))
    assert CacheReader(root).number("SELECT count(*) FROM calls_rows") == len(all_calls)
    assert OpenTree(cache=root).run().layout.draws == 2


def test_a_dry_run_counts_the_draws_of_direct_calls(tmp_path: Path) -> None:
    greedy = (*DRAWN.models[:2], POOL.models[2])
    pool = with_two_draws(replace(DRAWN, models=greedy))
    found = estimate(pool, QUERIES, tmp_path / "cache", engines=Scripted())
    assert (found.nodes, found.direct) == (6 * (5 + 25), 6 * 5)
    assert found.nodes + found.direct == len(QUERIES) * pool.calls_per_query
    assert fill_cache(pool, QUERIES, tmp_path, engines=Scripted()).wanted == 6 * (30 + 5)


def test_rows_of_a_table_tell_draws_apart(tmp_path: Path) -> None:
    greedy = (*DRAWN.models[:2], POOL.models[2])
    fill_cache(with_two_draws(replace(DRAWN, models=greedy)), QUERIES, tmp_path, engines=Scripted())
    tree = OpenTree(cache=tmp_path).run()
    rows = tree.to_arrow(alpha=0.1).to_pylist()
    of_query = [row for row in rows if row["query"] == tree.query_ids[2]]
    nodes = [row for row in of_query if not row["direct"]]
    assert [row["node"] for row in nodes] == list(range(1, tree.layout.nodes))
    for row in nodes:
        assert row["draw"] == tree.layout.draw[row["node"]]
        assert row["response"] == tree.texts[2].answers[row["node"]]
        assert row["quality"] == tree.score[2, row["node"]]
    weights: Counter[str] = Counter()
    for row in nodes:
        weights[row["route"]] += row["weight"]
    assert set(weights.values()) == {1.0}
    direct = [(row["model"], row["draw"], bool(row["response"])) for row in of_query[len(nodes) :]]
    assert direct == [("a", None, False), ("b", None, False), ("c", 0, True)]
    once = OpenTree(cache=tmp_path, draws=1).run().to_arrow()
    assert "node" not in once.column_names
    assert set(once["draw"].to_pylist()) == {0}
    assert once["response"].null_count == 0


def test_views_tell_draws_and_count_no_query_twice(tmp_path: Path) -> None:
    fill_cache(with_two_draws(DRAWN), QUERIES, tmp_path, engines=Scripted())
    tree = OpenTree(cache=tmp_path).run()
    draws = tree.sql("SELECT hop, draw, count(*) AS n FROM nodes GROUP BY ALL ORDER BY ALL")
    assert draws["n"].to_pylist() == [18, 18, 18, 18, 108, 108]
    routes = tree.sql("SELECT * FROM routes WHERE hop = 2 AND scorer = 'token_f1'").to_pylist()
    assert len(routes) == 9
    assert {row["queries"] for row in routes} == {6}
    first_route = routes[0]["route"]
    nodes = [
        node
        for node in range(1, tree.layout.nodes)
        if tree.layout.name(node, tree.models) == first_route
    ]
    assert len(nodes) == 4
    assert routes[0]["total_cost"] == pytest.approx(tree.cost[:, nodes].mean())


def test_adaptive_collections_make_all_draws_of_a_call_or_none(tmp_path: Path) -> None:
    """One model is right, so that the other two are left out."""

    def script(model: str, prompt: str) -> Response:
        number = int(prompt.split()[2])
        is_right = model.startswith("a")
        return Response(str(2 * number) if is_right else f"no, {model}", 10, 5, "stop")

    pool = with_two_draws(replace(DRAWN, hops=1))
    queries = sums(150)
    engines = Scripted(script)
    fill_adaptively(pool, queries, tmp_path, Adaptive((0.01,)), engines=engines)
    assert set(engines.asked.values()) == {1}
    tree = OpenTree(cache=tmp_path).run()
    assert tree.layout == pool.layout
    assert len(tree) == 100 + PILOT_QUERIES
    assert tree.pruned is not None
    assert tree.pruned.weight is not None
    first, second = tree.pruned.weight[:, 1:7:2], tree.pruned.weight[:, 2:7:2]
    assert np.array_equal(first, second)
    assert {0.0, 0.5} == set(np.unique(first))
    again = fill_adaptively(pool, queries, tmp_path, Adaptive((0.01,)), engines=engines)
    assert again.calls == 0


def test_further_draws_are_expected_to_be_like_the_first(tmp_path: Path) -> None:
    pool = replace(DRAWN, hops=1)
    identities = {model.name: Scripted().identify(model) for model in pool.models}
    fill_cache(pool, QUERIES, tmp_path, engines=Scripted())
    reader = CacheReader(tmp_path)
    drawn = with_two_draws(pool)
    levels = list(due_levels(drawn, drawn.tree_spec(identities), QUERIES, reader.responses()))
    assert [[len(due.calls) for due in level.stages] for level in levels] == [[0, 6] * 3] * 2
    stage = levels[1].stages[1]
    sample = Measures(reader).sample(stage.stage.first_step, 0, "sums")
    assert sample is not None
    datasets = {query.question: "sums" for query in QUERIES}
    counters = {model.name: TokenCounter(model) for model in drawn.models}
    stages = expected_stages(levels, datasets, reader, Measures(reader), counters, drawn.rates())
    for expected in stages:
        assert expected.tokens_out is not None
        assert expected.tokens_out.likely == 6 * len(expected.due.calls)
