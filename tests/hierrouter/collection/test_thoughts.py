"""What of an answer with a thought the next call and Q read: all of it, or what follows it."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import identify
from hierrouter.engines.generator import Response, visible_text
from hierrouter.learning.config import Objective, training_config
from hierrouter.learning.training import train
from hierrouter.pools.files import load_pool, parse_pool, pool_names, stored_pool
from hierrouter.pools.pool import DROP_THOUGHTS, Pool
from hierrouter.replay.inspection import ask_cache, data_notes, verify_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import load_texts
from hierrouter.reports.explain import as_object, as_text, explain_queries
from hierrouter.runs.bundle import bundle_of, save_bundle
from hierrouter.runs.checkpoint import save_checkpoint
from hierrouter.serving.router import Router
from hierrouter_cache.errors import IncompleteTree, InputError
from hierrouter_cache.keys import next_context
from hierrouter_cache.parts import LATER_COLUMNS, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import append_part, make_cache
from tests.engines import Scripted
from tests.hierrouter.collection.examples import POOL, sums

QUERIES = sums(6)
THOUGHT = "<think>\nAt first 9, then 12?\n</think>\n\n"
PLAN = "§plan§ 13 §end§ "  # the thought of a model with tags of its own
KEEP = replace(
    POOL, models=(*POOL.models[:2], replace(POOL.models[2], thought_tags=(("§plan§", "§end§"),)))
)
DROP = replace(KEEP, thoughts=DROP_THOUGHTS)
# Computed before pools had the setting.
STEPS_OF_HOP_2 = (
    "b2a949802a81342c02212ad8a7484196",
    "c224d85e5f6fc7c582475d7f01eadcfe",
    "321522eadbe57ee93dc89677769bad84",
)
PLAN_SHA = "798111d12fe68628f3e79c2dff12d1a2b48bf30ec664672d95833cf5b72f7ab3"


def thinking() -> Scripted:
    """Models a, which thinks in known tags, b, which does not, and c, which has its own tags."""

    def answer(model: str, prompt: str) -> Response:
        before = {"a": THOUGHT, "b": "", "c": PLAN}[model]
        number = int(prompt.split()[2])
        return Response(f"{before}The answer is {2 * number}.", len(prompt), 40, "stop")

    return Scripted(answer)


def fill(root: Path, pool: Pool) -> Scripted:
    engines = thinking()
    fill_cache(pool, QUERIES, root, engines=engines)
    return engines


def second_prompts(engines: Scripted) -> set[str]:
    """The prompts of the second hop for the first question."""
    return {
        prompt
        for _, prompt in engines.asked
        if prompt.startswith("What is 0 + 0?") and prompt.endswith("Solve.")
    }


def test_without_the_setting_the_next_call_reads_the_thought(tmp_path: Path) -> None:
    asked = second_prompts(fill(tmp_path, KEEP))
    answers = {"The answer is 0.", f"{THOUGHT}The answer is 0.", f"{PLAN}The answer is 0."}
    assert asked == {f"What is 0 + 0?\n\n{answer}\n\nSolve." for answer in answers}
    assert ask_cache(tmp_path, "SELECT count(visible) AS n FROM nodes").to_pylist() == [{"n": 0}]


def test_dropped_thoughts_are_read_by_no_call(tmp_path: Path) -> None:
    """Equal answers then are one context, whatever was thought before them."""
    assert second_prompts(fill(tmp_path, DROP)) == {"What is 0 + 0?\n\nThe answer is 0.\n\nSolve."}
    rows = ask_cache(tmp_path, "SELECT model, response, visible, call FROM nodes").to_pylist()
    assert {row["visible"] is None for row in rows if row["model"] == "b"} == {True}
    assert {row["visible"] is None for row in rows if row["model"] != "b"} == {False}
    assert all(row["response"].endswith(row["visible"] or row["response"]) for row in rows)
    calls = CacheReader(tmp_path).sql("SELECT * FROM calls").to_pylist()
    for call in calls:
        visible = call["visible"] or call["response"]
        assert call["outcome"] == next_context(call["context"], visible)
    assert verify_cache(tmp_path)[1].endswith("every key is that of the row's content")


def test_f1_reads_what_the_next_call_reads(tmp_path: Path) -> None:
    fill(tmp_path / "keep", KEEP)
    fill(tmp_path / "drop", DROP)
    keep = OpenTree(cache=tmp_path / "keep").run()
    drop = OpenTree(cache=tmp_path / "drop").run()
    first = slice(1, 4)
    assert keep.score[0, first].tolist() == pytest.approx([2 / 12, 0.4, 2 / 8])
    assert drop.score[0, first].tolist() == pytest.approx([0.4] * 3)
    assert verify_cache(tmp_path / "drop", rescore=True)[-1].startswith("108 scores")


def test_scorers_of_answers_read_no_thought_in_a_model_s_own_tags(tmp_path: Path) -> None:
    """Tags alone change no call: an old cache is read anew, under another version of the scorer."""
    fill(tmp_path, replace(KEEP, models=POOL.models))
    as_before = OpenTree(cache=tmp_path, scorer="numeric").run()
    assert fill(tmp_path, KEEP).asked.total() == 0
    tree = OpenTree(cache=tmp_path, scorer="numeric").run()
    assert tree.score[:, 1:].tolist() == [[1.0] * 12] * 6
    assert as_before.score[:, 1:].tolist() == [[1.0] * 12] * 6  # the cue wins over the thought
    rows = ask_cache(
        tmp_path,
        "SELECT read, version, n.model FROM scores s JOIN nodes n USING (call, route) "
        "WHERE scorer = 'numeric'",
    ).to_pylist()
    assert {"-tags-" in row["version"] for row in rows} == {True, False}

    def cut(model: str, prompt: str) -> Response:
        number = int(prompt.split()[2])
        return Response(f"§plan§ so it is {2 * number}", len(prompt), 9, "length")

    fill_cache(KEEP, QUERIES, tmp_path / "cut", engines=Scripted(cut))
    tree = OpenTree(cache=tmp_path / "cut", scorer="numeric").run()
    assert tree.direct.score.tolist() == [[1.0, 1.0, 0.0]] * 6
    assert tree.direct.accuracy.tolist() == tree.direct.score.tolist()
    f1 = OpenTree(cache=tmp_path / "cut").run()
    assert (f1.direct.score > 0).all()  # the paper's scorer reads all
    [query] = explain_queries(tree.root, tree, [0], 0.1)
    kinds = [node.read.kind for node in query.nodes[:3] if node.read]
    assert kinds == ["number", "number", "none"]


def test_a_setting_that_was_not_collected_is_named(tmp_path: Path) -> None:
    fill(tmp_path, KEEP)
    file = tmp_path / "pool.toml"
    models = "".join(
        f'[[models]]\nname = "{name}"\nmodel = "org/{name}"\nbase_rate = 1\n' for name in "abc"
    )
    prompts = 'stage_prompts = ["Plan.", "Solve."]'
    file.write_text(f'[pool]\n{prompts}\nthoughts = "drop"\n{models}')
    with pytest.raises(IncompleteTree, match="thoughts: drop, collected was keep"):
        OpenTree(cache=tmp_path, pool=str(file)).run()


def test_states_show_what_the_next_call_reads(tmp_path: Path) -> None:
    """With drop all first answers are one state, and they agree."""
    for pool in (KEEP, DROP):
        fill(tmp_path / pool.thoughts, pool)
        tree = OpenTree(cache=tmp_path / pool.thoughts, state="query+answer+agreement").run()
        first = tree.embedding[0, 1:4]
        _, answer, numbers = tree.parts
        assert (first[0] == first[1]).all() == False  # noqa: E712 - the models differ
        width = tree.parts[0].width + answer.width
        texts = first[:, :width]
        assert (texts[0] == texts[1]).all() == (pool.thoughts == DROP_THOUGHTS)
        assert numbers.width > 0


def test_keys_and_plans_without_the_setting_are_those_from_before_it() -> None:
    identities = identify(POOL.all_models, Scripted())
    assert POOL.tree_spec(identities).steps[1] == STEPS_OF_HOP_2
    text = POOL.to_json(identities)
    assert hashlib.sha256(text.encode()).hexdigest() == PLAN_SHA
    assert stored_pool(text, "a plan") == (POOL, identities)
    # Tags alone change no call: what is stored stays valid, and is read anew.
    assert KEEP.tree_spec(identities) == POOL.tree_spec(identities)
    dropped = DROP.tree_spec(identities)
    assert not {*dropped.steps[0], *dropped.steps[1]} & {*POOL.tree_spec(identities).steps[1]}
    assert stored_pool(DROP.to_json(identities), "a plan") == (DROP, identities)


def test_a_cache_from_before_the_setting_opens_and_is_asked_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "new", POOL)
    old = tmp_path / "old"
    make_cache(old)
    for part in list_parts(tmp_path / "new"):
        table = pq.read_table(part.path)
        later = [name for name in LATER_COLUMNS.get(part.kind, {}) if name in table.column_names]
        append_part(old, part.kind, table.drop_columns(later), "0" * 8)
    new_tree = OpenTree(cache=tmp_path / "new").run()
    assert OpenTree(cache=old).run().fingerprint == new_tree.fingerprint
    assert fill(old, POOL).asked.total() == 0
    verify_cache(old, rescore=True)


def test_shipped_pools_keep_thoughts() -> None:
    assert {load_pool(name).thoughts for name in pool_names()} == {"keep"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('thought_tags = ["<plan>", "</plan>"]', "thought_tags must be like"),
        ('thought_tags = [["<plan>"]]', "thought_tags must be like"),
        ('thought_tags = [["<plan>", " "]]', "thought_tags must be like"),
        ('thought_tags = "<plan>"', "thought_tags must be like"),
        ("thought_tags = [[1, 2]]", "thought_tags must be like"),
        ('thoughts = "drop"', "unknown key thoughts"),
    ],
)
def test_tags_that_are_no_pairs_are_refused(line: str, message: str) -> None:
    text = f'[pool]\nhops = 1\n[[models]]\nname = "m"\nmodel = "org/m-3b"\n{line}\n'
    with pytest.raises(InputError, match=message):
        parse_pool(text, "pool.toml")


@pytest.mark.parametrize(
    ("response", "visible"),
    [
        (f"{THOUGHT}17", "17"),
        ("no tag</think>17", "17"),  # the chat template opened the thought
        ("<think>never finished", ""),
        ("<think>only a thought</think>", ""),
        ("17 without a thought", "17 without a thought"),
        ("  17 as it is \n", "  17 as it is \n"),
    ],
)
def test_what_is_visible_of_a_response(response: str, visible: str) -> None:
    assert visible_text(DROP, "a", response) == visible
    assert visible_text(KEEP, "a", response) == response


def test_reports_and_explanations_say_what_was_read(tmp_path: Path) -> None:
    notes = {}
    for pool in (KEEP, DROP):
        fill(tmp_path / pool.thoughts, pool)
        tree = OpenTree(cache=tmp_path / pool.thoughts).run()
        notes[pool.thoughts] = [note for note in data_notes(tree) if "hought" in note]
        [query] = explain_queries(tree.root, tree, [0], 0.1)
        first = as_object(query)["nodes"][0]
        assert first["answer"] == f"{THOUGHT}The answer is 0."
        assert first.get("visible") == ("The answer is 0." if pool == DROP else None)
        assert "visible" not in as_object(query)["nodes"][1]
        is_said = "(a thought of 39 characters is dropped) [number 0] The answer is 0." in as_text(
            query, 120
        )
        assert is_said == (pool == DROP)
    # Only tags that are known without the pool are counted.
    assert notes["keep"][0].startswith("Answers with a thought: 100% of a. They are kept")
    assert notes["drop"][0].startswith("Thoughts are dropped")


def test_a_pool_without_thoughts_has_no_note(tmp_path: Path) -> None:
    fill_cache(POOL, QUERIES, tmp_path, engines=Scripted())
    assert [note for note in data_notes(OpenTree(cache=tmp_path).run()) if "hought" in note] == []


@pytest.mark.parametrize("pool", [KEEP, DROP], ids=["keep", "drop"])
def test_a_live_router_reads_and_shows_what_it_learned_with(tmp_path: Path, pool: Pool) -> None:
    fill(tmp_path / "cache", pool)
    tree = OpenTree(cache=tmp_path / "cache", state="query+answer+agreement").run()
    run = tmp_path / "run"
    trained = train(tree, Objective(0.1), training_config("default", "exact", 3), seed=1)
    save_checkpoint(trained, run)
    save_bundle(bundle_of(tree.root, tree), run)
    engines = thinking()
    with Router(run, engines=engines) as router:
        questions = [text.question for text in load_texts(tree.root, tree)]
        results = [router.route(question) for question in questions]
        ends = trained.endings(tree).argmax(axis=1)
        routes = [tree.layout.name(end, tree.models) for end in ends]
        assert [result.route for result in results] == routes
        for question, result in zip(questions, results, strict=True):
            first = result.hops[0]
            visible = visible_text(pool, first.model, first.response.text)
            assert (result.hops[1].model, f"{question}\n\n{visible}\n\nSolve.") in engines.asked
            step = first.as_object()
            assert step["response"] == first.response.text
            assert step.get("visible", first.response.text) == visible
    other = replace(pool, thoughts="keep" if pool == DROP else DROP_THOUGHTS)
    with pytest.raises(InputError, match=f'the policy learned with thoughts = "{pool.thoughts}"'):
        Router(run, other, engines)
