"""Which pool a plan is opened with."""

import subprocess
import sys
from dataclasses import replace

import pytest

from hierrouter.collect.identity import weights_of
from hierrouter.opened_pool import opened_pool
from hierrouter.pool import Identity, ModelSpec, Pool
from hierrouter.pool_file import load_pool
from hierrouter_cache.errors import InputError
from tests.conftest import environment

TESTBED = load_pool("testbed")


def collected(pool: Pool) -> dict[str, Identity]:
    """What the models of the testbed resolved to on some other machine."""
    return {
        model.name: {"engine": "other", "weights": weights_of(model), "dtype": model.dtype}
        for model in pool.everyone
    }


def test_what_was_collected_elsewhere_is_opened_as_it_was_collected() -> None:
    identities = collected(TESTBED)
    plan = TESTBED.to_json(identities)
    for name in (None, "testbed"):
        opened = opened_pool(plan, name)
        assert (opened.pool, opened.identities, opened.changed) == (TESTBED, identities, "")


def test_another_name_of_the_same_weights_is_the_same_model() -> None:
    renamed = replace(TESTBED, models=(replace(TESTBED.models[0], name="x"), *TESTBED.models[1:]))
    opened = opened_pool(renamed.to_json(collected(renamed)), "testbed")
    assert opened.identities == collected(TESTBED)


def test_only_models_that_are_opened_are_looked_at() -> None:
    pool = replace(TESTBED, models=(*TESTBED.models, ModelSpec("gone", "/nowhere/gone", 1.0)))
    plan = pool.to_json({**collected(TESTBED), "gone": {"weights": "x", "dtype": "auto"}})
    assert opened_pool(plan, None, ["calc", "gone"]).pool.routes.models == 2
    assert "gone" not in opened_pool(plan, "testbed", ["calc"]).identities


def test_context_free_is_what_the_opened_models_are() -> None:
    imported = Pool((ModelSpec("m", "m", 1.0, backend="imported"),), 2, ("",), context_free=True)
    plan = imported.to_json({"m": {"imported": "m", "context_free": "yes"}})
    assert opened_pool(plan).pool.context_free
    assert not opened_pool(plan, "testbed").pool.context_free


def test_more_hops_than_the_pool_has_are_refused() -> None:
    with pytest.raises(InputError, match="hops must be 1 to 2"):
        opened_pool(TESTBED.to_json(collected(TESTBED)), "testbed", hops=3)


def test_known_weights_are_told_without_the_engine() -> None:
    plan = TESTBED.to_json(collected(TESTBED))
    script = (
        "import sys; from hierrouter.opened_pool import opened_pool; "
        "opened_pool(sys.argv[1], 'testbed'); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, plan], env=environment(), capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr
