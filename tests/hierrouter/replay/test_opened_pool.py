"""Which pool a plan is opened with."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.engines import backend, identify
from hierrouter.engines.identity import weights_of
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import Endpoint, Generation, Identity, ModelSpec, Pool
from hierrouter.replay.stored_pool import OpenedPool, open_pool
from hierrouter_cache.errors import InputError
from tests.conftest import spawned

TESTBED = load_pool("testbed")


def collected(pool: Pool) -> dict[str, Identity]:
    """What the models of the testbed resolved to on some other machine."""
    return {
        model.name: {"engine": "other", "weights": weights_of(model), "dtype": model.dtype}
        for model in pool.all_models
    }


def test_what_was_collected_elsewhere_is_opened_as_it_was_collected() -> None:
    identities = collected(TESTBED)
    plan = TESTBED.to_json(identities)
    for name in (None, "testbed"):
        opened = open_pool(plan, name)
        assert (opened.pool, opened.identities, opened.changed) == (TESTBED, identities, "")
    # Another name of the same weights is the same model.
    renamed = replace(TESTBED, models=(replace(TESTBED.models[0], name="x"), *TESTBED.models[1:]))
    opened = open_pool(renamed.to_json(collected(renamed)), "testbed")
    assert opened.identities == collected(TESTBED)
    # Only models that are opened are looked at.
    pool = replace(TESTBED, models=(*TESTBED.models, ModelSpec("gone", "/nowhere/gone", 1.0)))
    plan = pool.to_json({**collected(TESTBED), "gone": {"weights": "x", "dtype": "auto"}})
    assert open_pool(plan, None, ["calc", "gone"]).pool.layout.call_actions == 2
    assert "gone" not in open_pool(plan, "testbed", ["calc"]).identities
    # Context-free is what the opened models are.
    imported = Pool((ModelSpec("m", "m", 1.0, backend="imported"),), 2, ("",), context_free=True)
    plan = imported.to_json({"m": {"imported": "m", "context_free": "yes"}})
    assert open_pool(plan).pool.context_free
    assert not open_pool(plan, "testbed").pool.context_free
    # More hops than the pool has are refused.
    with pytest.raises(InputError, match="hops must be 1 to 2"):
        open_pool(TESTBED.to_json(collected(TESTBED)), "testbed", hops=3)


def test_the_draws_of_a_plan_must_not_make_a_named_pool_huge(tmp_path: Path) -> None:
    """A small pool that was collected with many draws, opened with a pool of many routes."""
    warm = Generation(temperature=0.7)
    spec = ModelSpec("m0", "org/m0", 1.0, backend="openai", endpoint=Endpoint(URL), generation=warm)
    stored = Pool((spec,), 1, ("",), draws=64)
    plan = stored.to_json(identify(stored.all_models))
    entry = '[[models]]\nname = "m{n}"\nmodel = "org/m{n}"\nbase_rate = 1\nbackend = "openai"\n'
    settings = f'generation = {{ temperature = 0.7 }}\n[models.endpoint]\nbase_url = "{URL}"\n'
    file = tmp_path / "wide.toml"
    models = "".join(entry.format(n=n) + settings for n in range(4))
    file.write_text(f"[pool]\nhops = 5\n{models}")
    with pytest.raises(
        InputError, match=r"nodes per query: .*wide.toml; 4 models at 5 hops with 64"
    ):
        open_pool(plan, str(file))
    assert open_pool(plan, str(file), draws=1).pool.calls == 1364
    # Greedy models have one draw each.
    file.write_text(file.read_text().replace("temperature = 0.7", "temperature = 0"))
    assert open_pool(plan, str(file)).pool.calls == 1364


def test_commands_open_what_is_known_without_engine_and_gymnasium() -> None:
    script = (
        "import sys; from hierrouter.replay import opening; "
        "opening.open_pool(sys.argv[1], 'testbed'); "
        "print({*sys.modules} & {'torch', 'gymnasium'})"
    )
    done = spawned(sys.executable, "-c", script, TESTBED.to_json(collected(TESTBED)))
    assert done.stdout == "set()\n", done.stderr


URL = "http://127.0.0.1:1/v1"
SERVED = ModelSpec("m", "org/m", 1.0, backend="openai", endpoint=Endpoint(URL))


def reopened(collected: ModelSpec, folder: Path, entry: str) -> tuple[OpenedPool, Identity]:
    """A cache of one model, opened with a pool file of one, and what collecting names the first."""
    pool = Pool((collected,), 1, ("",))
    identities = identify(pool.all_models)
    file = folder / "pool.toml"
    file.write_text(f'[pool]\nhops = 1\n[[models]]\nname = "m"\nbase_rate = 1.0\n{entry}')
    return open_pool(pool.to_json(identities), str(file)), identities["m"]


def served(settings: str, name: str = "org/m") -> str:
    return f'model = "{name}"\nbackend = "openai"\n[models.endpoint]\n{settings}\n'


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param("", id="a server named on the command line is that of the plan"),
        "concurrency = 2",
        # Its key is not wanted, and what does not decide its answers may differ.
        f'base_url = "{URL}"\napi_key_env = "NOT_SET"\nattempts = 1',
    ],
)
def test_a_served_model_is_opened_as_it_was_collected(tmp_path: Path, settings: str) -> None:
    opened, collected = reopened(SERVED, tmp_path, served(settings))
    assert (opened.identities["m"], opened.changed) == (collected, "")


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ('base_url = "http://127.0.0.1:2/v1"', "deployment"),
        (f'base_url = "{URL}"\ndeployment = "node 7"', "deployment"),
        (f'base_url = "{URL}"\nanswers_as = "x"', "answers_as"),
        (f'base_url = "{URL}"\ntokenizer = "testbed:calc"', "tokenizer"),
    ],
)
def test_another_server_gave_no_answers_yet(tmp_path: Path, settings: str, changed: str) -> None:
    opened, collected = reopened(SERVED, tmp_path, served(settings))
    assert opened.identities["m"] != collected
    assert opened.identities["m"] == backend("openai").identify(opened.pool.models[0])
    assert opened.changed == f"m: {changed} changed"


def test_what_an_older_version_collected_from_a_server_is_opened(tmp_path: Path) -> None:
    """It did not ask for neutral sampling; `collect` does, and asks again."""
    pool = Pool((SERVED,), 1, ("",))
    older = dict(backend("openai").identify(SERVED))
    del older["sampling"]
    file = tmp_path / "pool.toml"
    entry = served(f'base_url = "{URL}"')
    file.write_text(f'[pool]\nhops = 1\n[[models]]\nname = "m"\nbase_rate = 1.0\n{entry}')
    opened = open_pool(pool.to_json({"m": older}), str(file))
    assert (opened.identities["m"], opened.changed) == (older, "")
    named = {**older, "deployment": "node 7"}
    assert open_pool(pool.to_json({"m": named}), str(file)).changed == "m: deployment changed"


def test_a_server_that_moved_keeps_its_answers_under_its_name(tmp_path: Path) -> None:
    named = replace(SERVED, endpoint=Endpoint(URL, deployment="node 7"))
    there = 'base_url = "http://127.0.0.1:2/v1"\ndeployment = "node 7"'
    opened, collected = reopened(named, tmp_path, served(there))
    assert (opened.identities["m"], opened.changed) == (collected, "")


def test_a_served_model_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hierrouter.engines.identity.hub_commit", None)
    opened, _ = reopened(SERVED, tmp_path, served(f'base_url = "{URL}"', "org/new"))
    assert opened.identities["m"]["served"] == "org/new"
    assert opened.changed == "m: model changed"
