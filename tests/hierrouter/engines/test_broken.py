"""Models that are broken answer nothing: one line, and no row in the cache."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from hierrouter.collection import scheduler
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines.generator import Response
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter_cache.parts import list_parts
from tests.conftest import Run, refused, works
from tests.engines import Scripted
from tests.models import save_random_model

WEIGHTS, NORM = "model.safetensors", "model.norm.weight"
POOL = """
[pool]
hops = 1
encoder = "hashed-ngrams"
[[models]]
name = "m"
model = "{folder}"
base_rate = 1
dtype = "float32"
[models.generation]
max_new_tokens = 4
"""
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("sound") / "model", "qwen2")


def weights(change: Callable[[Tensors], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def template(text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = text
        tokenizer.save_pretrained(folder)

    return damage


def more_tokens(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<new-{number}>" for number in range(3)])
    tokenizer.save_pretrained(folder)


def no_end(folder: Path, end: object = None) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        held = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(held | {"eos_token_id": end}))


def every(value: float) -> Callable[[Tensors], object]:
    return lambda tensors: [tensor.fill_(value) for tensor in tensors.values()]


BROKEN: dict[str, tuple[str, Callable[[Path], object]]] = {
    "NaN": ("weights hold NaN or infinity", weights(every(float("nan")))),
    "infinity": ("weights hold NaN or infinity", weights(every(float("inf")))),
    "one NaN": (
        f"weights hold NaN or infinity: {NORM}",
        weights(lambda tensors: tensors[NORM].__setitem__(5, float("nan"))),
    ),
    "two missing": (
        "2 of its weights are missing: model.layers.0.mlp.up_proj.weight",
        weights(
            lambda tensors: [
                tensors.pop(f"model.layers.{name}.weight")
                for name in ("0.mlp.up_proj", "1.mlp.up_proj")
            ]
        ),
    ),
    "another shape": (
        "cannot load model m",
        weights(lambda tensors: tensors.update({NORM: torch.ones(7)})),
    ),
    "not of this architecture": (
        "1 of its weights are not of this architecture: model.layers.0.extra.weight",
        weights(lambda tensors: tensors.update({"model.layers.0.extra.weight": torch.ones(7)})),
    ),
    "truncated": (
        "damaged",
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-99]),
    ),
    "a template without the question": (
        "its chat template leaves the question out",
        template("{% for message in messages %}<{{ message.role }}>{% endfor %}"),
    ),
    "an empty template": ("its chat template gives nothing", template("{{ '' }}")),
    "a template that fails": ("its chat template fails", template("{{ raise_exception('no') }}")),
    "tokens that it does not know": ("its tokenizer has token", more_tokens),
    "no end": ("it has no end token", no_end),
    "no ends": ("it has no end token", partial(no_end, end=[])),
    "an end below all": ("it has no end token", partial(no_end, end=-1)),
    "an end above all": ("it has no end token", partial(no_end, end=[1, 10**7])),
    "logits without end": (
        "its logits are NaN or infinite",
        weights(lambda tensors: tensors[NORM].fill_(3e38)),
    ),
}


def collect(folder: Path, hierrouter: Run) -> object:
    (folder / "pool.toml").write_text(POOL.format(folder=folder / "model"))
    words = "collect --pool pool.toml --datasets testbed --limit 3 --cache cache"
    return hierrouter(*words.split(), cwd=folder)


def stored_calls(cache: Path) -> int:
    return sum(part.rows for part in list_parts(cache) if part.kind == "calls")


@pytest.mark.parametrize(("said", "damage"), BROKEN.values(), ids=BROKEN)
def test_a_broken_model_is_refused_and_nothing_is_stored(
    said: str, damage: Callable[[Path], object], sound: Path, tmp_path: Path, hierrouter: Run
) -> None:
    shutil.copytree(sound, tmp_path / "model")
    damage(tmp_path / "model")
    line = refused(collect(tmp_path, hierrouter), 1)
    assert said in line and "\n" not in line.strip()
    assert not (tmp_path / "cache").exists() or stored_calls(tmp_path / "cache") == 0


def test_a_sound_model_answers(sound: Path, tmp_path: Path, hierrouter: Run) -> None:
    shutil.copytree(sound, tmp_path / "model")
    done = works(collect(tmp_path, hierrouter))
    assert stored_calls(tmp_path / "cache") > 0
    assert "of the answers of m are cut at the cap; look at its settings" in done.stderr


def test_a_model_that_repeats_a_special_token_is_named(
    sound: Path, tmp_path: Path, hierrouter: Run
) -> None:
    shutil.copytree(sound, tmp_path / "model")
    weights(lambda tensors: tensors[NORM].fill_(0.0))(tmp_path / "model")  # all logits are 0
    told = works(collect(tmp_path, hierrouter)).stderr
    assert "\nnote: 100% of the answers of m are empty; look at its settings" in told


@pytest.mark.parametrize(
    ("text", "reason", "what"), [("", "stop", "empty"), ("x", "length", "cut")]
)
def test_answers_out_of_the_ordinary_are_said_once_and_early(
    text: str, reason: str, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool((ModelSpec("odd", "odd", 1.0),), hops=1, stage_prompts=("",), encoder="x")
    queries = [Query(str(n), "mine", f"question {n}", ("1",), "train") for n in range(200)]
    engines = Scripted(lambda model, prompt: Response(text, 5, 5, reason))
    with caplog.at_level("WARNING", scheduler.__name__):
        fill_cache(pool, queries, tmp_path / "cache", engines=engines)
    said = (what, "without log-probabilities; no router can see how sure it is")
    notes = [record.getMessage() for record in caplog.records]
    if what == "empty":
        assert notes.pop().startswith(
            "of 200 answers of odd: 200 empty; they are kept and paid for"
        )
    for note, start in zip(notes, said, strict=True):
        assert note.startswith(f"100% of the answers of odd are {start}")
