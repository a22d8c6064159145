"""A run's folder of any content is a router, or refused in one line."""

import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierrouter.runs import checkpoint
from hierrouter.runs.bundle import load_bundle
from hierrouter.runs.folders import LIVE, RECORD, WEIGHTS, begin_or_resume, check_out, read_record
from hierrouter_cache.errors import HierRouterError
from tests.hostile import resealed
from tests.properties.near import damaged, edited


def begin(run: Path) -> None:
    with begin_or_resume("train", {"algo": "ppo"}, run):
        pass


LOADERS: tuple[Callable[[Path], object], ...] = (
    load_bundle,
    checkpoint.load_checkpoint,
    checkpoint.load_sweep,
    lambda run: checkpoint.router_at(run, 0.1),
    read_record,
    lambda run: check_out(run, "train"),
    begin,
)


@st.composite
def changes(draw: st.DrawFn, run: Path) -> tuple[str, str | bytes]:
    """(file of a run, what stands in it instead); of weights a text is the header.

    Often with a checksum that is right.
    """
    name = draw(st.sampled_from((WEIGHTS, LIVE, RECORD)))
    sound = (run / (name if (run / name).exists() else LIVE)).read_bytes()
    if draw(st.booleans()):
        return name, draw(damaged(sound))
    text = checkpoint.read_tensors(run / name)[1] if name == WEIGHTS else sound.decode()
    found = draw(edited(json.loads(text)))
    if name != WEIGHTS and draw(st.booleans()):
        with suppress(ValueError):
            return name, resealed(found)
    return name, json.dumps(found)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_run_is_a_router_or_refused(live_run: Path, data: Any) -> None:
    name, content = data.draw(changes(live_run))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(shutil.copytree(live_run, Path(folder) / "run"))
        if isinstance(content, bytes):
            (run / name).write_bytes(content)
        elif name == WEIGHTS:
            checkpoint.write_tensors(run / name, checkpoint.read_tensors(run / name)[0], content)
        else:
            (run / name).write_text(content)
        for load in LOADERS:
            try:
                load(run)
            except HierRouterError as error:
                assert str(error)
        assert [path.name for path in Path(folder).iterdir()] == ["run"]
