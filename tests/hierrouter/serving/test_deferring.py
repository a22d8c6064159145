"""A live router hands over what it doubts: the questions that a report hands over, no others."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import numpy as np
import pytest

from hierrouter.learning.config import Objective, training_config
from hierrouter.learning.deferral import calibrate
from hierrouter.learning.training import train
from hierrouter.pools.files import load_pool
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Tree, load_texts
from hierrouter.runs.bundle import bundle_of, save_bundle
from hierrouter.runs.checkpoint import router_at, save_checkpoint
from hierrouter.serving.logs import LogShape, read_log
from hierrouter.serving.router import RouteOptions, Router
from hierrouter_cache.errors import InputError
from tests.cli.conftest import Place
from tests.conftest import Run
from tests.hierrouter.serving.serving import Double, ask, figures_of, lines_of, served, user
from tests.servers import Reply, Server, serving

ALPHA = 0.1
POOL = """[pool]
hops = 2
per_tokens = 1
encoder = "hashed-ngrams"
stage_prompts = ["", ""]
"""
ENTRY = """[[{group}]]
name = "{name}"
model = "testbed:{name}"
base_rate = {rate}
dtype = "float32"
generation = {{ max_new_tokens = 16 }}
"""


@pytest.fixture(scope="module")
def workspace(
    tmp_path_factory: pytest.TempPathFactory, testbed_cache: Path, hierrouter: Run
) -> Place:
    """Routers over two of the testbed's models; the third is the pool's reference model."""
    workspace = Place(tmp_path_factory.mktemp("deferring"), hierrouter)
    shutil.copytree(testbed_cache, workspace / "caches" / "default")
    groups = {"calc": ("models", 0.03), "text": ("models", 0.02), "facts": ("references", 0.03)}
    entries = (ENTRY.format(name=name, group=of[0], rate=of[1]) for name, of in groups.items())
    (workspace / "pool.toml").write_text(POOL + "".join(entries))
    tree = tree_in(workspace)
    for algo, epochs in (("exact", 8), ("value", None)):
        trained = train(tree, Objective(ALPHA), training_config("default", algo, epochs), seed=0)
        save_checkpoint(trained, workspace / algo)
        save_bundle(
            bundle_of(workspace / "caches/default", tree, str(workspace / "pool.toml")),
            workspace / algo,
        )
    return workspace


def tree_in(workspace: Place) -> Tree:
    return OpenTree(cache=workspace / "caches/default", pool=str(workspace / "pool.toml")).run()


@pytest.mark.parametrize("algo", ["exact", "value"])
def test_the_same_questions_are_handed_over_as_in_a_report(workspace: Place, algo: str) -> None:
    """Each test question by `route --file`: who answers, what for, and what it costs."""
    tree = tree_in(workspace)
    deferral = calibrate(router_at(workspace / algo, None), tree, "facts")
    fold = tree.split("test")
    on_fold = deferral.on_fold(fold)
    share = on_fold._split(deferral.threshold)[1].sum(axis=1)
    report = workspace.tells(
        f"report --pool pool.toml --checkpoint {algo} --split validation --defer-to facts"
    )["deferral"]
    assert report["chosen"]["threshold"] == pytest.approx(deferral.threshold)
    assert 0 < share.sum() < len(fold) and set(np.unique(share)) <= {0, 1}
    texts = load_texts(workspace / "caches/default", fold)
    lines = [json.dumps({"question": text.question}) for text in texts]
    (workspace / "questions.jsonl").write_text("\n".join(lines))
    words = f"route --checkpoint {algo} --pool pool.toml --defer-to facts --file questions.jsonl"
    done = workspace.does(words)
    assert f"{report['chosen']['share']:.1%} at alpha 0.1" in done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("deferred_to") == "facts" for line in answers] == (share == 1).tolist()
    assert [line["cost"] for line in answers] == pytest.approx(
        on_fold.outcome(deferral.threshold).cost
    )
    direct = fold.direct.models.index("facts")
    tokens = fold.direct.tokens_out[:, direct]
    for line, count in zip(answers, tokens.tolist(), strict=True):
        *_, last = line["steps"]
        if "deferred_to" in line:
            assert (last["model"], last["tokens_out"]) == ("facts", count)
            assert (last["deferred"], last["stop"], last["propensity"]) == (True, True, 1)


@pytest.fixture
def doubting(workspace: Place) -> Iterator[Router]:
    """A router that defers as many questions as it can, to scripted models."""
    with Router(workspace / "value", load=False) as router:
        pool = str(workspace / "pool.toml")
        router.defer_to("facts", workspace / "caches/default", [None], share=1.0, pool=pool)
        router.models = dict.fromkeys(("calc", "text", "facts"), Double())
        yield router


def test_a_deferral_is_in_reply_log_and_metrics(doubting: Router, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with served(doubting, log=log, seed=1) as url:
        answer = ask(url)
        body = answer.json()["hierrouter"]
        streamed = ask(url, stream=True).text
        body_to_decide = {"messages": user("compute 12+7")}
        decision = httpx2.post(f"{url}/v1/decide", json=body_to_decide).json()
        assert figures_of(url, "hierrouter_deferred_total")[""] == 2
    assert answer.headers["x-hierrouter-deferred"] == "facts"
    assert (body["deferred_to"], body["route"]) == ("facts", ">facts")
    assert '"deferred_to": "facts"' in streamed
    assert (decision["call"], decision["last"], decision["deferred"]) == ("facts", True, True)
    assert decision["messages"] == [{"role": "user", "content": "compute 12+7"}]
    [line, _] = lines_of(log)
    [step] = line["steps"]
    assert (step["deferred"], step["propensity"]) == (True, 1)  # though others are drawn
    log.write_text(json.dumps(line | {"quality": 1.0}))
    messages: list[str] = []
    with pytest.raises(InputError, match="a log without episodes"):
        read_log(log, LogShape(("calc", "text"), 2, [(1.0, 1.0)] * 2), messages.append)
    assert "1 lines are left out" in messages[0]


def test_an_alpha_that_was_not_calibrated_is_refused(doubting: Router) -> None:
    with pytest.raises(InputError, match=r"trained for alpha 0.1 alone"):
        doubting.route("compute 1+1", RouteOptions(alpha=0.2))
    with pytest.raises(InputError, match=r"no threshold to hand over at alpha 0.2.*for 0.1"):
        assert doubting.policy.deferral
        doubting.policy.deferral.at(0.2)


def test_with_reroute_the_router_replaces_a_deferral_model_that_fails(workspace: Place) -> None:
    """A reference on a server that refuses, and --reroute; without it the question fails."""
    endpoint = 'model = "served"\nbackend = "openai"\nendpoint = { base_url = "URL", attempts = 1 }'
    pool = (workspace / "pool.toml").read_text().replace('model = "testbed:facts"', endpoint)
    with serving(Server(lambda prompt, before: Reply({"error": {}}, 500))) as upstream:
        (workspace / "served.toml").write_text(pool.replace("URL", upstream.url))
        router = Router(workspace / "value", load_pool(str(workspace / "served.toml")), load=False)
        cache = workspace / "caches/default"
        router.defer_to("facts", cache, [None], share=1.0, pool=str(workspace / "pool.toml"))
        router.load_models()
        with served(router, reroute=True) as url:
            [first, *_] = ask(url).json()["hierrouter"]["steps"]
        assert (first["instead_of"][0]["model"], first["propensity"]) == ("facts", None)
    assert upstream.requests


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("--defer-to fact --pool pool.toml", 2, "no direct call of this model: fact; did you mean"),
        ("--defer-to facts --cache none", 3, "no cache: none"),
        ("--defer-share 0.1", 2, "no model to hand over to"),
        ("--defer-to facts --defer-share 2", 2, "a share must be from 0 to 1"),
    ],
)
def test_bad_deferral_flags_are_refused(
    workspace: Place, flags: str, code: int, message: str
) -> None:
    for command in ("route x", "serve --port 0"):
        assert message in workspace.refuses(f"{command} --checkpoint exact {flags}", code=code)


def test_a_model_whose_answers_were_imported_cannot_take_over(workspace: Place) -> None:
    with Router(workspace / "value", load=False) as router:
        imported = tuple(replace(spec, backend="imported") for spec in router.pool.references)
        router.pool = replace(router.pool, references=imported)
        with pytest.raises(InputError, match="model facts cannot be asked: its answers were imp"):
            pool = str(workspace / "pool.toml")
            router.defer_to("facts", workspace / "caches/default", [None], pool=pool)
