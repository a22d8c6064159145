"""A cache and a dataset in which every text that others wrote means harm to a terminal."""

import json
import re
from itertools import cycle
from pathlib import Path
from zlib import crc32

from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines.generator import Response
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions.query import Query
from tests.engines import Scripted

# What would steer a terminal, or be obeyed by rich or by a spreadsheet; by family.
FAMILIES = {
    "colour": "\x1b[31;5mred\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;aGFybQ==\x1b\\",
    "link": "\x1b]8;;http://127.0.0.1:9/\x1b\\click\x1b]8;;\x1b\\",
    "device": "\x1bP+q544e\x1b\\\x1b_Gi=1;\x1b\\",
    "eight bits": "\x9b31m\x9d0;owned\x9c\x90q\x9c",
    "back": "right\b\b\b\b\bwrong\r\x7fnew line\x85\x0b\x0c",
    "bidi": "\u202egpj\u202c\u2066x\u2069\u202a\u200f",
    "unseen": "a\u200bb\u2060\ufeff\U000e0041",
    "markup": "[/INST] [red]x[i] [link=file:///etc/passwd]y[/link] [bold",
    "formula": '=HYPERLINK("http://127.0.0.1:9/")',
    "formula after a space": " \t@SUM(1+1)*cmd|' /C calc'!A0",
}
STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
FORMULA = re.compile(r"\s*[=+\-@]")
NUMBER = re.compile(r"-?[\d.]+(e[+-]?\d+)?")
MODELS = ("m", "n")  # plans with other names than a pool file's are refused
DATASET = "data\x1b]0;x\x07\u2066[/b]"
FIRST = f"0-{FAMILIES['colour']}"  # a query's id


def collect_steering(root: Path) -> None:
    """Two models and hops, three queries of each family in three folds."""
    texts, folds = list(FAMILIES.values()), cycle(("train", "validation", "test"))

    def said(model: str, prompt: str) -> Response:
        number, chance = int(re.findall(r"\d+", prompt)[0]), crc32(f"{model}{prompt}".encode())
        return Response(texts[(number + chance % 2) % len(texts)], 5, 5, "stop")

    models = tuple(ModelSpec(name, "weights", 1.0 + place) for place, name in enumerate(MODELS))
    pool = Pool(models, hops=2, stage_prompts=("", "Check."), encoder="hashed-ngrams")
    queries = [
        Query(f"{number}-{text}", DATASET, f"{number} {text}", (text,), next(folds))
        for number, text in enumerate(texts * 3)
    ]
    fill_cache(pool, queries, root, engines=Scripted(said))


def write_log(path: Path) -> None:
    """Episodes on texts of that kind, by a policy with a name of that kind."""
    step = {"propensity": 0.5, "cost": 1.0}
    lines = [
        {
            "question": f"{number}-{text}",
            "policy": text,
            "quality": 0.5,
            "steps": [{"model": name, "response": text, **step} for name in MODELS],
        }
        for number, text in enumerate(FAMILIES.values())
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_questions(path: Path) -> None:
    """The same texts as a dataset."""
    rows = [
        {"id": f"{number}-{text}", "question": f"{number} {text}?", "answer": text}
        for number, text in enumerate(FAMILIES.values())
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def served_pool(url: str, endpoint: str = "", stages: str = '["", ""]') -> str:
    """A pool file: the models of the testbed at its prices, all answered for by one server."""
    entry = (
        '[[models]]\nname = "{name}"\nmodel = "served"\nbase_rate = {rate}\nbackend = "openai"\n'
        f'[models.endpoint]\nbase_url = "{url}"\nattempts = 1\n{endpoint}\n'
    )
    head = f'[pool]\nhops = 2\nencoder = "hashed-ngrams"\nstage_prompts = {stages}\n'
    rates = {"calc": 0.03, "text": 0.02, "facts": 0.03}
    return head + "".join(entry.format(name=name, rate=rate) for name, rate in rates.items())
