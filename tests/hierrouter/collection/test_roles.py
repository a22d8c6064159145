"""Pools with roles: which calls there are, compared with an enumeration by hand."""

import dataclasses
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.collection.collection_plan import CollectionPlan
from hierrouter.collection.due import due_levels
from hierrouter.collection.exporters import read_direct_calls
from hierrouter.collection.progress import Progress
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import identify
from hierrouter.engines.generator import Generator, Response
from hierrouter.engines.listing import pool_table
from hierrouter.pools.files import load_pool, parse_pool, prices_of, stored_pool
from hierrouter.pools.pool import RATE_FIELDS, Endpoint, Generation, ModelSpec, Price, Role
from hierrouter.questions.datasets import load_queries
from hierrouter.replay.inspection import ask_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Tree
from hierrouter_cache.errors import InputError, Interrupted
from hierrouter_cache.keys import call_key, root_context
from hierrouter_cache.layout import Layout
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import Rate
from tests.conftest import SOURCES
from tests.engines import Counting, Scripted
from tests.hierrouter.collection.examples import sums
from tests.servers import Reply, Server, completion, serving

ROLES = """
[pool]
hops = 3
per_tokens = 1
encoder = "hashed-ngrams"
stage_prompts = ["First.", "Next."]
[[models]]
name = "small"
model = "org/small"
base_rate = 1
[[models]]
name = "large"
model = "org/large"
base_rate = 10
[[actions]]
name = "plan@small"
model = "small"
instruction = "Plan."
after = []
[[actions]]
name = "solve@small"
model = "small"
instruction = ""
after = ["start", "plan@small"]
generation = { max_new_tokens = 9 }
[[actions]]
name = "critic@large"
model = "large"
after = ["solve@small"]
at = [2, 3]
rate_in = 2
rate_out = 3
"""
POOL = parse_pool(ROLES, "roles.toml")
# By hand: the routes of this pool, in the order of the nodes. Inner nodes come first.
ROUTES = [
    ("plan@small",),
    ("solve@small",),
    ("plan@small", "solve@small"),
    ("solve@small", "critic@large"),
    ("plan@small", "solve@small", "critic@large"),
]
INSTRUCTIONS = {"plan@small": "Plan.", "solve@small": ""}  # the critic has that of the hop


def prompts_by_hand(question: str) -> Counter[tuple[str, str]]:
    """(model, prompt) of each call of a question, if answers say which action and hop they are."""
    calls = Counter([("small", question), ("large", question)])
    for route in ROUTES:
        texts = [question]
        for hop, action in enumerate(route):
            model = action.partition("@")[2]
            instruction = INSTRUCTIONS.get(action, "Next.")
            if hop == len(route) - 1:
                calls[model, "\n\n".join([*texts, *filter(None, [instruction])])] += 1
            texts.append(f"{action} {hop}")
    return calls


def script(model: str, prompt: str) -> Response:
    """Answer as `prompts_by_hand` says; which action it is can be told by the prompt."""
    parts = prompt.split("\n\n")
    if model == "large":
        return Response(f"critic@large {len(parts) - 2}", len(prompt), 3, "stop")
    name = "plan@small" if parts[-1] == "Plan." else "solve@small"
    hop = len(parts) - 1 - (name == "plan@small")
    return Response(f"{name} {hop}", len(prompt), 3, "stop")


def test_the_layout_is_that_of_the_enumeration() -> None:
    layout = POOL.layout
    names = [action.name for action in POOL.actions]
    paths = [
        tuple(names[action] for action in layout.path(node)) for node in range(1, layout.nodes)
    ]
    assert sorted(paths) == sorted(ROUTES)
    assert POOL.calls == layout.calls == len(ROUTES)
    spec = POOL.tree_spec({name: {"weights": name} for name in ("small", "large")})
    assert spec.callers == ("small", "small", "large")
    has_step = [[bool(step) for step in steps] for steps in spec.steps]
    assert has_step == [[True, True, False], [False, True, True], [False, False, True]]


def test_models_alone_are_the_paper_s_pool() -> None:
    pool = load_pool("testbed")
    assert pool.layout is Layout.full(3, 2)
    assert '"roles"' not in pool.to_json({})
    everywhere = "".join(
        f'[[actions]]\nname = "do@{model.name}"\nmodel = "{model.name}"\n' for model in pool.models
    )
    base = ROLES[: ROLES.index("[[actions]]")]
    same = parse_pool(
        base
        + everywhere.replace("calc", "small").split('[[actions]]\nname = "do@text')[0]
        + '[[actions]]\nname = "do@large"\nmodel = "large"\n',
        "p.toml",
    )
    assert same.layout == Layout.full(2, 3)
    identities = {name: {"weights": name} for name in ("small", "large")}
    plain = parse_pool(base, "p.toml")
    assert same.tree_spec(identities).steps == plain.tree_spec(identities).steps


def test_an_action_has_the_price_and_settings_of_its_model_unless_it_has_its_own() -> None:
    prices = POOL.prices()
    assert prices["plan@small"] == prices["small"] == Price(Rate.base(1.0), "pool")
    assert prices["critic@large"].rate == Rate(2.0, 3.0)
    cheaper = prices_of(POOL, {"small": Price(Rate.base(0.5), "--price")}, ())
    assert cheaper["solve@small"].rate == Rate.base(0.5)
    assert cheaper["critic@large"].rate == Rate(2.0, 3.0)
    assert [action.model.generation.max_new_tokens for action in POOL.actions] == [512, 9, 512]


def test_a_stored_plan_has_the_roles() -> None:
    identities = {name: {"weights": name} for name in ("small", "large")}
    assert stored_pool(POOL.to_json(identities), "a plan") == (POOL, identities)


def test_a_part_of_a_pool_is_named_by_its_actions() -> None:
    solver = POOL.sub_pool(["solve@small", "critic@large"], None)
    assert [action.name for action in solver.actions] == ["solve@small", "critic@large"]
    assert solver.hops == 2 and solver.layout.calls == 2
    one = POOL.sub_pool(None, 1)
    assert [model.name for model in one.models] == ["small"]
    assert [action.name for action in POOL.sub_pool(None, None, ["large"]).actions] == [
        "plan@small",
        "solve@small",
    ]
    with pytest.raises(InputError, match="critic@large is not offered after the others: --models"):
        POOL.sub_pool(["critic@large"], None)


def opened(root: Path, **settings: object) -> Tree:
    return OpenTree(cache=root, scorer="token_f1", **settings).run()  # type: ignore[arg-type]


def test_only_the_calls_of_the_layout_are_made(tmp_path: Path) -> None:
    queries = sums(3)
    engine = Scripted(script)
    summary = fill_cache(POOL, queries, tmp_path, engines=engine)
    # The solver without an instruction has the prompt of a direct call, but fewer tokens: twice.
    assert engine.asked == sum((prompts_by_hand(query.question) for query in queries), Counter())
    assert summary.wanted == len(queries) * (len(ROUTES) + 2)
    assert summary.missing == 0
    tree = opened(tmp_path)
    assert tree.models == ("plan@small", "solve@small", "critic@large")
    assert tree.callers == ("small", "small", "large")
    assert tree.layout == POOL.layout
    node = tree.layout.node((0, 1, 2))
    prompt_tokens = len("What is 0 + 0?\n\nplan@small 0\n\nsolve@small 1\n\nNext.")
    assert tree.tokens_in[0, node] == prompt_tokens
    again = Scripted(script)
    fill_cache(POOL, queries, tmp_path, engines=again)
    assert not again.asked


def test_the_views_of_a_tree_have_the_prices_of_its_actions(tmp_path: Path) -> None:
    fill_cache(POOL, sums(3), tmp_path, engines=Scripted(script))
    tree = opened(tmp_path)
    costs = "SELECT route, draw, total_cost FROM nodes WHERE id = ? AND hop > 0"
    for row, name in enumerate(tree.query_ids):
        found = tree.sql(costs.replace("?", f"'{name}'")).to_pylist()
        assert {line["route"]: line["total_cost"] for line in found} == {
            tree.layout.name(node, tree.models): pytest.approx(tree.cost[row, node])
            for node in range(1, tree.layout.nodes)
        }
    # A row names the model that is called; its action is the last of the route.
    models = {(row["route"], row["model"]) for row in tree.to_arrow().to_pylist()}
    assert {("small", "small"), (">plan@small", "small"), ("solve@small>critic@large", "large")} < (
        models
    )
    priced = OpenTree(cache=tmp_path, prices={"critic@large": 100.0}).run()
    [dear] = priced.sql("SELECT max(cost) AS most FROM nodes WHERE hop = 3").to_pylist()
    leaf = priced.layout.node((0, 1, 2))
    tokens = priced.tokens_in[:, leaf] + priced.tokens_out[:, leaf]
    assert dear["most"] == pytest.approx(100.0 * tokens.max())


def test_direct_calls_of_all_models_are_exported(tmp_path: Path) -> None:
    """The large model is only offered from the second hop on, and called directly as any."""
    fill_cache(POOL, sums(3), tmp_path, engines=Scripted(script))
    calls = read_direct_calls(tmp_path, "token_f1")
    assert calls.names == ("small", "large")
    assert calls.left_out == 0
    tree = opened(tmp_path)
    assert tree.direct.models == calls.names
    assert np.array_equal(calls.score, tree.direct.score)
    assert np.array_equal(calls.cost, tree.direct.cost)
    for selection in ({"models": ["large"]}, {"without": ["small"]}):
        assert read_direct_calls(tmp_path, "token_f1", **selection).names == ("large",)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"plan@small is an action.*: name its model, small"):
        read_direct_calls(tmp_path, "token_f1", models=["plan@small"])


def test_the_calls_that_are_due_are_counted_before(tmp_path: Path) -> None:
    queries = sums(3)
    identities = identify(POOL.all_models, Scripted(script))
    levels = list(due_levels(POOL, POOL.tree_spec(identities), queries, {}))
    most = [sum(stage.most_calls for stage in level.stages) for level in levels]
    # Direct: two models. Then two, two and one action for each question.
    assert most == [6, 6, 6, 3]


SAME = """
[pool]
hops = 3
per_tokens = 1
encoder = "hashed-ngrams"
[[models]]
name = "m"
model = "org/m"
base_rate = 1
"""


@pytest.mark.parametrize(
    ("afters", "most"),
    [
        # One call; `then` follows it although the first action does not lead there.
        ({"short": [], "long": [], "then": ["long"]}, [3, 3, 3]),
        # One call at two places of one hop: only one of these leads on.
        (
            {"plan": [], "draft": [], "short": ["plan"], "long": ["draft"], "then": ["long"]},
            [3, 6, 6, 3],
        ),
        # Both lead on, to different calls.
        (
            {"short": [], "long": [], "then": ["long"], "else": ["short"], "last": ["then"]},
            [3, 3, 6, 3],
        ),
    ],
)
def test_two_actions_of_one_call_lead_where_either_leads(
    tmp_path: Path, afters: dict[str, list[str]], most: list[int]
) -> None:
    """What is said to be due at most is what is made; answers differ by instruction."""
    entries = [
        f'[[actions]]\nname = "{name}"\nmodel = "m"\nafter = {json.dumps(after)}\n'
        f'instruction = "{"same" if name in ("short", "long") else name}"\n'
        for name, after in afters.items()
    ]
    hops = len(most) - 1
    pool = parse_pool(SAME.replace("hops = 3", f"hops = {hops}") + "".join(entries), "p.toml")
    engine = Scripted()
    queries = sums(3)
    spec = pool.tree_spec(identify(pool.all_models, engine))
    levels = list(due_levels(pool, spec, queries, {}))
    assert [sum(stage.most_calls for stage in level.stages) for level in levels] == most
    summary = fill_cache(pool, queries, tmp_path / "all", engines=engine)
    assert (sum(engine.asked.values()), summary.missing) == (sum(most), 0)
    # When the calls of the first hop are there.
    steps = {due.stage.step for due in levels[1].stages}
    roots = [root_context(query.question) for query in queries]
    first_keys = {call_key(step, root) for step in steps for root in roots}
    responses = CacheReader(tmp_path / "all").responses()
    known = {key: text for key, text in responses.items() if key in first_keys}
    rest = list(due_levels(pool, spec, queries, known))
    assert [sum(stage.most_calls for stage in level.stages) for level in rest] == [3, 0, *most[2:]]


def test_a_server_gets_the_settings_of_each_action(tmp_path: Path) -> None:
    def reply(prompt: str, before: int) -> Reply:
        return Reply(completion(script("small", prompt).text))

    with serving(Server(reply)) as server:
        endpoint = Endpoint(base_url=server.url, deployment="here")
        models = tuple(
            replace(model, backend="openai", model="served", endpoint=endpoint)
            for model in POOL.models
        )
        pool = replace(POOL, models=models)
        planner, solver, critic = pool.roles
        solver = replace(solver, effort="low", extra_body='{"cache_prompt": false}')
        pool = replace(pool, roles=(planner, solver, critic))
        queries = sums(4)
        summary = fill_cache(pool, queries, tmp_path)
        assert summary.missing == 0
        # The direct call and the solver's first call have the same prompt, but not the same step.
        # Both models are one at this server, so their direct calls are the same call.
        first = [
            request
            for request in server.requests
            if request["messages"][0]["content"] == queries[0].question
        ]
        assert sorted((row["max_tokens"], row.get("reasoning_effort")) for row in first) == [
            (9, "low"),
            (512, None),
        ]
        assert {request.get("cache_prompt") for request in server.requests} == {None, False}
        count = len(server.requests)
        assert count == len(queries) * (len(ROUTES) + 1)
        fill_cache(pool, queries, tmp_path)
        assert len(server.requests) == count
    keys = pool.tree_spec(identify(pool.all_models))
    less = replace(pool, roles=(planner, replace(solver, effort="high"), critic))
    others = less.tree_spec(identify(pool.all_models))
    assert [own == other for own, other in zip(keys.steps[0], others.steps[0], strict=True)] == [
        True,
        False,
        True,
    ]


def test_the_shipped_tool_may_be_an_action_of_two_roles(tmp_path: Path) -> None:
    testbed = load_pool("testbed")
    text = """
[pool]
hops = 2
per_tokens = 1
encoder = "hashed-ngrams"
[[models]]
name = "calc"
model = "testbed:calc"
base_rate = 0.03
dtype = "float32"
generation = { max_new_tokens = 16 }
[[actions]]
name = "tool"
model = "calc"
[[actions]]
name = "short"
model = "calc"
generation = { max_new_tokens = 2 }
after = []
"""
    pool = parse_pool(text, "tool.toml")
    assert testbed.models[0].model == pool.models[0].model
    loads = Loads()
    queries = load_queries(["arith"], 2, 2, Path())
    fill_cache(pool, queries, tmp_path, engines=loads)
    assert loads.loaded == ["calc"]  # weights are shared
    tree = opened(tmp_path)
    assert tree.layout.calls == 4
    short = tree.layout.node((1,))
    assert (tree.tokens_out[:, short] <= 2).all()
    assert (tree.tokens_out[:, tree.layout.node((0,))] > 2).any()


class Loads(Counting):
    """The transformers engine; it notes which models are loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def load(self, spec: ModelSpec) -> Generator:
        self.loaded.append(spec.name)
        return super().load(spec)


BAD = [
    (
        'model = "large"\nafter',
        'model = ["large", "small"]\nafter',
        "model must be the name of one",
    ),
    ('model = "large"\nafter', 'model = "larger"\nafter', "unknown model larger: r.toml, action"),
    ('after = ["solve@small"]', 'after = ["slove@small"]', "unknown action slove@small in after"),
    ("at = [2, 3]", "at = [1]", "action critic@large is never offered: r.toml; at and after"),
    ("at = [2, 3]", "at = [0]", r"at must be numbers of hops from 1, got \[0\]: r.toml, action"),
    ('name = "solve@small"', 'name = "plan@small"', "duplicate action plan@small: r.toml"),
    ('name = "solve@small"', 'name = "large"', "action has the name of another model: r.toml"),
    ('instruction = "Plan."', 'instruction = "Pl\\u0007an."', "instruction must have no control"),
    ("after = []", "after = []\nat = [2]", "action plan@small is never offered: r.toml"),
    ("after = []", "befor = []", "unknown key befor: r.toml, action plan@small; did you mean"),
    ("rate_in = 2\n", "", "give base_rate alone, or both rate_in and rate_out: r.toml, action"),
    ('[[actions]]\nname = "plan@small"', '[[actions]]\nname = "stop"', "action name is taken"),
    ("at = [2, 3]", 'extra_body = { model = "x" }', "extra_body must not have model, which"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD)
def test_a_pool_of_bad_roles_is_refused_in_one_line(old: str, new: str, message: str) -> None:
    assert old in ROLES
    with pytest.raises(InputError, match=message) as caught:
        parse_pool(ROLES.replace(old, new), "r.toml")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_routes_begin_at_the_first_hop_and_are_not_too_many() -> None:
    base = ROLES[: ROLES.index("[[actions]]")]
    later = base + '[[actions]]\nname = "x"\nmodel = "small"\nat = [2]\n'
    with pytest.raises(InputError, match=r"no action is offered at hop 1: r.toml"):
        parse_pool(later, "r.toml")
    many = base.replace("hops = 3", "hops = 5") + "".join(
        f'[[actions]]\nname = "a{number}"\nmodel = "small"\ninstruction = "{number}"\n'
        for number in range(16)
    )
    with pytest.raises(
        InputError, match=r"1,118,480 nodes per query: r.toml; 16 actions at 5 hops"
    ):
        parse_pool(many, "r.toml")


def test_the_pool_of_the_page_has_the_routes_that_it_names() -> None:
    page = (SOURCES / "docs" / "pools.md").read_text()
    section = page[page.index("## Roles") : page.index("## What becomes of thoughts?")]
    pool = parse_pool(section.split("```toml")[1].split("```")[0], "page.toml")
    names = [action.name for action in pool.actions]
    layout = pool.layout
    routes = {layout.name(node, names) for node in range(1, layout.nodes)}
    sentence = section[section.index("This tree has six calls") :].split("The direct")[0]
    assert set(re.findall(r"`([^`]+)`", sentence)) == routes
    assert layout.calls == 6
    keys = {
        key
        for row in re.findall(r"^\| (.*?) \|", section, re.M)
        for key in re.findall(r"`(\w+)`", row)
    }
    fields = {field.name for field in dataclasses.fields(Role)}
    assert keys <= fields and fields - keys <= set(RATE_FIELDS)


def test_the_table_of_a_pool_shows_its_actions() -> None:
    table = pool_table("roles", POOL, instructions=True)
    assert table.title.startswith("roles: 2 models, 3 actions, 3 hops")
    rows = {line.cells[0]: line.cells for line in table.rows}
    assert rows["solve@small"][2:4] == ("1", 9)
    assert rows["critic@large"][2:4] == ("2/3", 512)
    assert "plan@small: after start" in table.note
    assert "critic@large: at hop 2, 3 after solve@small" in table.note
    assert "plan@small: Plan." in table.note


def test_a_collection_is_billed_at_the_price_of_each_action(tmp_path: Path) -> None:
    queries = sums(3)
    with serving(Server(lambda prompt, before: Reply(completion("x", 10, 5)))) as server:
        endpoint = Endpoint(base_url=server.url, deployment="here")
        models = tuple(
            replace(model, backend="openai", model="served", endpoint=endpoint)
            for model in POOL.models
        )
        costs: list[float] = []
        progress = Progress(on_calls=lambda calls, tokens, cost: costs.append(cost))
        fill_cache(replace(POOL, models=models), queries, tmp_path, progress)
    # Of a question: a direct call, a plan and two solves at 1; the critic at 2 in and 3 out. Its
    # answers are all x, so the routes of two hops share their contexts.
    own = 15 * 3 * 4 + 3 * 2 * (2 * 10 + 3 * 5)
    assert sum(costs) == pytest.approx(own)
    # So are the calls in the cache, for `--max-spend`, and the rows of the view `spend`.
    served = replace(POOL, models=models)
    assert CollectionPlan(served, queries, tmp_path).spent == pytest.approx(own)
    [spent] = ask_cache(tmp_path, "SELECT sum(cost) AS cost FROM spend").to_pylist()
    assert spent["cost"] == pytest.approx(own)
    cheaper = replace(served, roles=(*served.roles[:2], replace(served.roles[2], rate_out=2)))
    assert CollectionPlan(cheaper, queries, tmp_path).spent == pytest.approx(own - 3 * 2 * 5)


def test_a_limit_of_spending_counts_the_prices_of_actions(tmp_path: Path) -> None:
    queries = sums(4)
    with serving(Server(lambda prompt, before: Reply(completion("x", 10, 5)))) as server:
        endpoint = Endpoint(base_url=server.url, deployment="here", concurrency=1)
        models = tuple(
            replace(model, backend="openai", model="served", endpoint=endpoint)
            for model in POOL.models
        )
        planner, solver, critic = POOL.roles
        dear = replace(critic, rate_in=100, rate_out=100)
        pool = replace(POOL, models=models, roles=(planner, solver, dear), draws=1)
        limit = 1600.0  # without the critic all calls cost 240, each of its calls costs 1,500
        plan = CollectionPlan(pool, queries, tmp_path, max_spend=limit)
        for _ in range(2):  # the second one finds it in the cache
            with pytest.raises(Interrupted, match="the limit is reached: --max-spend 1600"):
                plan.run(Progress(), lambda line: None)
        assert limit <= plan.spent < limit + 1500 + 240
        assert plan.estimate().spent_before == plan.spent
        done = replace(plan, max_spend=1e6).run(Progress(), lambda line: None)
    assert done.missing == 0
    assert plan.spent == pytest.approx(240 + 8 * 1500)


def test_a_pilot_tells_how_many_calls_each_action_will_make(tmp_path: Path) -> None:
    """An action counts only where it is offered, though its prompts are not known yet."""
    queries = sums(12)

    def reply(prompt: str, before: int) -> Reply:
        model = "large" if prompt.endswith("Next.") else "small"
        return Reply(completion(script(model, prompt).text))

    with serving(Server(reply)) as server:
        endpoint = Endpoint(base_url=server.url, deployment="here")
        models = tuple(
            replace(
                model,
                backend="openai",
                model="served",
                endpoint=endpoint,
                generation=Generation(max_new_tokens=100 + number),
            )
            for number, model in enumerate(POOL.models)
        )
        pool = replace(POOL, models=models)
        fill_cache(pool, queries[:5], tmp_path)
        plan = CollectionPlan(pool, queries, tmp_path)
        calls = {stage.label: stage.calls for stage in plan.estimate().calls.stages}
        done = plan.run(Progress(), lambda line: None)
    further = len(queries) - 5
    assert calls == pytest.approx(
        {
            "direct small": further,
            "direct large": further,
            "hop 1 plan@small": further,
            "hop 1 solve@small": further,
            "hop 2 solve@small": further,
            "hop 2 critic@large": further,
            "hop 3 critic@large": further,
        },
        rel=0.02,
    )
    assert done.calls == further * len(calls)
