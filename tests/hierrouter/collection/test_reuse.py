"""What is asked again and what is not, counted on real models.

An old answer under a new setting is the costliest mistake a cache can make; asking again for
nothing is the second.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch

from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import backend, identity, local
from hierrouter.engines.identity import hub_commit
from hierrouter.pools.pool import Generation, Identity, ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import IncompleteTree
from tests.engines import Counting
from tests.models import save_random_model

QUESTIONS = ("compute 12+7", "reverse the word takomi", "who lives in room 31 ?")
QUERIES = [
    Query(str(n), "mine", text, ("yes",), split)
    for n, (text, split) in enumerate(zip(QUESTIONS, ("train", "validation", "test"), strict=True))
]
DIRECT, NODES = 2 * len(QUERIES), 6 * len(QUERIES)
GENERATION = Generation(8)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four saved models that never say the same."""
    root = tmp_path_factory.mktemp("models")
    for seed, (name, architecture) in enumerate(
        [("a", "qwen2"), ("b", "llama"), ("c", "phi3"), ("d", "qwen2")]
    ):
        save_random_model(root / name, architecture, seed)
    return root


@pytest.fixture
def models(originals: Path, tmp_path: Path) -> Path:
    """The same, in a folder that a test may change."""
    return Path(shutil.copytree(originals, tmp_path / "models"))


def pool(models: Path, names: str = "ab") -> Pool:
    specs = tuple(
        ModelSpec(name, str(models / name), 1.0, dtype="float32", generation=GENERATION)
        for name in names
    )
    return Pool(specs, hops=2, stage_prompts=("Plan.", "Solve."))


def each(changed: Callable[[ModelSpec], ModelSpec]) -> Callable[[Pool], Pool]:
    """The same change to every model of a pool."""
    return lambda pool: replace(pool, models=tuple(map(changed, pool.models)))


def calls(pool: Pool, root: Path) -> int:
    """Real calls that collecting this pool makes; the summary must say the same."""
    engine = Counting()
    summary = fill_cache(pool, QUERIES, root, engines=engine)
    assert sum(engine.asked.values()) == summary.calls
    assert not summary.failed
    return summary.calls


def same(pool: Pool) -> Pool:
    return pool


def generation(**changes: float) -> Callable[[Pool], Pool]:
    return each(lambda model: replace(model, generation=replace(model.generation, **changes)))


def instructed(*prompts: str) -> Callable[[Pool], Pool]:
    return lambda pool: replace(pool, stage_prompts=prompts)


DRAWN = generation(temperature=0.5)
# What is collected first, what then, and how many calls that asks for.
CHANGES: dict[str, tuple[Callable[[Pool], Pool], Callable[[Pool], Pool], int]] = {
    "temperature": (same, generation(temperature=0.5), NODES + DIRECT),
    "max_new_tokens": (same, generation(max_new_tokens=7), NODES + DIRECT),
    "dtype": (same, each(lambda model: replace(model, dtype="bfloat16")), NODES + DIRECT),
    "seed": (DRAWN, generation(seed=1), NODES + DIRECT),
    "top_p": (DRAWN, generation(top_p=0.9), NODES + DIRECT),
    "another-draw": (DRAWN, generation(temperature=0.6), NODES + DIRECT),
    # A direct call has no instruction; the first hop does not see that of the second.
    "instructions": (same, instructed("Think.", "Answer."), NODES),
    "second-instruction": (same, instructed("Plan.", "Answer now."), 4 * len(QUERIES)),
    "price": (same, each(lambda model: replace(model, base_rate=7.0)), 0),
    "order": (same, lambda pool: replace(pool, models=pool.models[::-1]), 0),
    "names": (same, each(lambda model: replace(model, name=f"my-{model.name}")), 0),
    "seed-of-greedy": (same, generation(seed=9, top_p=0.5), 0),
    "fewer-models": (same, lambda pool: replace(pool, models=pool.models[:1]), 0),
    "fewer-hops": (same, lambda pool: replace(pool, hops=1), 0),
    "unused-instruction": (same, instructed("Plan.", "Solve.", "-"), 0),
}


@pytest.fixture(scope="module")
def collected(
    originals: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[Callable[[Pool], Pool], Path]:
    """A cache of each pool that tests begin with; they copy it."""
    roots = {first: tmp_path_factory.mktemp("collected") for first in (same, DRAWN)}
    for first, root in roots.items():
        assert calls(first(pool(originals)), root) == NODES + DIRECT
    return roots


@pytest.fixture
def cache(collected: dict[Callable[[Pool], Pool], Path], tmp_path: Path) -> Path:
    """What the models a and b answered."""
    return Path(shutil.copytree(collected[same], tmp_path / "cache"))


@pytest.mark.parametrize("change", CHANGES)
def test_another_setting_asks_again_where_it_changes_answers(
    originals: Path, collected: dict[Callable[[Pool], Pool], Path], tmp_path: Path, change: str
) -> None:
    first, changed, expected = CHANGES[change]
    before, root = first(pool(originals)), tmp_path / "cache"
    shutil.copytree(collected[first], root)
    assert calls(changed(before), root) == expected
    assert calls(before, root) == 0  # and what was there is still there


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param("chat_template.jinja", "<|end|>", "\n<|end|>", id="chat-template"),
        pytest.param("generation_config.json", "{", '{"repetition_penalty": 1.3,', id="penalty"),
        pytest.param("config.json", '"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05', id="config"),
    ],
)
def test_another_file_of_the_model_asks_again_for_every_call(
    models: Path, cache: Path, file: str, old: str, new: str
) -> None:
    assert calls(pool(models), cache) == 0  # where they lie does not matter
    for name in "ab":
        path = models / name / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
    assert calls(pool(models), cache) == NODES + DIRECT


def other_weights(models: Path) -> None:
    """Give model a the weights of model d."""
    shutil.copy(models / "d" / "model.safetensors", models / "a" / "model.safetensors")


def test_other_weights_ask_again_for_every_call_of_that_model(models: Path, cache: Path) -> None:
    other_weights(models)
    # a: direct, 1st hop, 2nd hop after a and b; b: 2nd hop after the new answers of a.
    assert calls(pool(models), cache) == (1 + 1 + 2 + 1) * len(QUERIES)


def write_commit(repository: Path, commit: str, model: Path, *branches: str) -> None:
    """A snapshot as the hub's client keeps it on disk, with branches or tags that name it."""
    shutil.copytree(model, repository / "snapshots" / commit, dirs_exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    for branch in branches:
        (repository / "refs" / branch).write_text(commit)
    hub_commit.cache_clear()  # as in a new process


def test_another_commit_of_a_hub_model_asks_again_for_every_call(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--org--tiny"
    write_commit(repository, "1" * 40, models / "a", "main", "v1")
    write_commit(repository, "2" * 40, models / "d", "v2")
    spec = ModelSpec("tiny", "org/tiny", 1.0, dtype="float32", generation=GENERATION)
    main = Pool((spec,), hops=2, stage_prompts=("Plan.", "Solve."))

    def at(revision: str) -> Pool:
        return replace(main, models=(replace(spec, revision=revision),))

    every = 3 * len(QUERIES)
    assert calls(main, tmp_path / "cache") == every
    assert calls(at("v1"), tmp_path / "cache") == 0  # another name of the same commit
    assert calls(at("v2"), tmp_path / "cache") == every
    assert calls(at("2" * 40), tmp_path / "cache") == 0
    write_commit(repository, "3" * 40, models / "c", "main")
    assert calls(main, tmp_path / "cache") == every  # the branch has moved


def test_a_fourth_model_asks_for_eight_of_twenty_nodes(originals: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    three, four = pool(originals, "abc"), pool(originals, "abcd")
    assert calls(three, root) == (12 + 3) * len(QUERIES)
    before = OpenTree(cache=root).run().fingerprint
    assert calls(four, root) == (8 + 1) * len(QUERIES)
    assert OpenTree(cache=root).run().layout.calls == 20
    assert replace(pool_file(tmp_path, three), cache=root).run().fingerprint == before


def pool_file(folder: Path, pool: Pool) -> OpenTree:
    """What `--pool FILE` opens, with this pool in the file."""
    (folder / "pool.toml").write_text(toml(pool))
    return OpenTree(pool=str(folder / "pool.toml"))


@pytest.mark.parametrize("place", ["~/models/{}", "testbed:{}"])
def test_a_pool_file_does_not_open_answers_of_other_weights(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    named = lambda model: models / model.partition(":")[2]  # noqa: E731
    monkeypatch.setattr(identity.shipped, "model_path", named)
    placed = each(lambda model: replace(model, model=place.format(model.name)))(pool(models))
    calls(placed, tmp_path / "cache")
    selection = pool_file(tmp_path, placed)
    before = OpenTree(cache=tmp_path / "cache").run().fingerprint
    assert replace(selection, cache=tmp_path / "cache").run().fingerprint == before
    other_weights(models)
    with pytest.raises(IncompleteTree, match=": a: weights changed;"):
        replace(selection, cache=tmp_path / "cache").run()
    assert (
        OpenTree(cache=tmp_path / "cache").run().fingerprint == before
    )  # that is what was collected


class Earlier(Counting):
    """The same engine, some versions ago."""

    def identify(self, spec: ModelSpec) -> Identity:
        return {**super().identify(spec), "engine": "transformers 4, torch 2"}


def test_what_an_earlier_engine_answered_stays_readable_and_is_asked_again(
    models: Path, tmp_path: Path
) -> None:
    root = tmp_path / "cache"
    fill_cache(pool(models), QUERIES, root, engines=Earlier())
    before = OpenTree(cache=root).run().fingerprint
    assert replace(pool_file(tmp_path, pool(models)), cache=root).run().fingerprint == before
    assert calls(pool(models), root) == NODES + DIRECT


def test_an_identity_has_versions_and_device(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = pool(models).models[0]
    here = backend("transformers").identify(spec)
    assert "batching" not in here  # caches of earlier versions stay good
    monkeypatch.setattr(local, "version", lambda package: f"9 of {package}")
    upgraded = backend("transformers").identify(spec)
    assert upgraded["engine"] == "transformers 9 of transformers, torch 9 of torch, shapes 2"
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(here["device"] == "cpu"))
    elsewhere = backend("transformers").identify(spec)
    assert {name for name in here if here[name] != elsewhere[name]} == {"device"}


def toml(pool: Pool) -> str:
    """The pool as a user would write it."""
    head = f"[pool]\nhops = {pool.hops}\nstage_prompts = {json.dumps(pool.stage_prompts)}\n"
    return head + "".join(
        f'[[models]]\nname = "{model.name}"\nmodel = "{model.model}"\ndtype = "{model.dtype}"\n'
        f"base_rate = {model.base_rate}\n"
        f"generation = {{ max_new_tokens = {model.generation.max_new_tokens} }}\n"
        for model in pool.models
    )
