"""A collected cache in which every foreign text means harm."""

from itertools import cycle
from pathlib import Path
from typing import Any

from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines.generator import Response
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.runs.folders import CHECKSUM_KEY, seal
from tests.engines import Scripted

HARM = (
    "<script>window.harmed = 1</script>",
    "</script><script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'>",
    '"><svg onload="window.harmed = 1">',
    "</style><style>body { display: none }</style>",
    "x{} body { background: url(http://127.0.0.1:9/leak) }",
    "<a href='javascript:window.harmed = 1'>click</a>",
    "</details></section><iframe src='http://127.0.0.1:9/'></iframe>",
    "{{ 7 * 7 }}{% raw %} [/INST] [red]x[i] [click](javascript:window.harmed=1)",
    "\x1b]52;c;aGFybQ==\x07\x1b[2J\x9b1m \u202egpj\u2066x",
)


def collect_hostile(root: Path) -> None:
    """Two models and hops, and twice as many queries as `HARM` in three folds.

    Every harm is an answer, a question, a reference answer and part of an id.
    """
    said, folds = cycle(HARM), cycle(("train", "validation", "test"))
    engines = Scripted(lambda model, prompt: Response(next(said), 5, 5, "stop"))
    models = tuple(ModelSpec(name, name, 1.0) for name in ("a", "b"))
    pool = Pool(models, hops=2, stage_prompts=("Solve.", "Check."), encoder="hashed-ngrams")
    queries = [
        Query(f"{number}-{text}", "mine", f"{number} {text}", (text,), next(folds))
        for number, text in enumerate(HARM * 2)
    ]
    fill_cache(pool, queries, root, engines=engines)


def resealed(found: Any) -> str:
    """The text of a run's JSON file as somebody writes it who knows how checksums are made.

    Raises:
        ValueError: it is no object, or holds what JSON has not.
    """
    if not isinstance(found, dict):
        raise ValueError("no object")
    return seal({name: value for name, value in found.items() if name != CHECKSUM_KEY}).decode()
