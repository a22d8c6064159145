"""The flags that commands share: how one is declared, and which value its text stands for.

`value`, `choice` and `switch` declare flags here and in the commands. A parser refuses what is
wrong before a command's body runs.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hierrouter.paper import PAPER_ALPHA, PAPER_SCORER, PAPER_SEED
from hierrouter.runs.folders import find_run
from hierrouter_cache import CACHE
from hierrouter_cache.errors import InputError, suggestion

DEFAULT_CACHE = CACHE
DEFAULT_ALPHA = PAPER_ALPHA
DEFAULT_SEED = PAPER_SEED
DEFAULT_SCORER = PAPER_SCORER
MAX_SEED = 2**31 - 1

# What a shell offers. The lists are here because the modules that own them are slow to import.
POOLS = ("cpu", "graded", "paper", "testbed")
DATASETS = (
    *("testbed", "arith", "string", "fact", "story", "census", "backcap", "room", "copies"),
    *("mirror", "riddle", "graded", "small", "plus", "total", "spell", "letters", "capital"),
    *("people", "backcapital", "bothpeople", "backsum", "backpeople"),
    *("gsm8k", "math", "mbpp", "mmlu", "arc-easy", "arc-challenge"),
)
ENCODERS = ("hashed-ngrams", "paper")
SCORERS = ("token_f1", "exact_match", "numeric", "boxed", "choice", "accuracy", "given")
BACKENDS = ("transformers", "openai")
DEVICES = ("auto", "cpu", "cuda", "balanced")
FORMATS = ("text", "json", "md", "latex", "csv")
STATES = (
    *("context", "query+answer", "query", "stage"),
    *("context+signals", "query+answer+signals", "query+signals", "stage+signals"),
    *("context+agreement", "query+answer+agreement", "query+agreement", "stage+agreement"),
)
PRESETS = ("default", "paper")
ALGORITHMS = ("ppo", "exact", "value")
FOLDS = ("train", "validation", "test")

# The headings, on a long page of flags, of what several commands share; see `help.CommandPage`.
WORKS_ON = "What it works on"
TRAINING = "Training"
CALLS = "How models are called"
MACHINES = "Several machines"


def value(
    flag: str,
    metavar: str,
    help: str,
    group: str | None = None,
    offer: Sequence[str] = (),
    offer_list: Sequence[str] = (),
    **more: Any,
) -> Any:
    """A flag with a value.

    `group`: its heading on a long page; `offer`: words that the shell offers; `offer_list`: the
    same where a value is a list with commas; `more`: as typer has them.
    """
    if offer or offer_list:
        more["autocompletion"] = some_of(offer_list) if offer_list else one_of(offer)
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=group, **more)


def choice(
    flag: str, names: Sequence[str], help: str, group: str | None = None, what: str = ""
) -> Any:
    """A flag with one of a few words, which the shell offers."""
    parser = known_word(what, names) if what else None
    return value(flag, "|".join(names), help, group, offer=names, parser=parser)


# Flags below those headings.
works_on, training = partial(value, group=WORKS_ON), partial(value, group=TRAINING)
calls, machines = partial(value, group=CALLS), partial(value, group=MACHINES)


def run_flag(flag: str, help: str) -> Any:
    """A flag that takes a run, by its name or by its folder."""
    return value(flag, "NAME|DIR", help, parser=find_run)


def switch(flag: str, help: str, group: str | None = None) -> Any:
    """A flag without a value, off by default."""
    return typer.Option(flag, help=help, rich_help_panel=group)


def one_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Those of the names that begin with what was typed."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def some_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """The same for the last item of a list with commas; what stands in it is not offered again."""

    def offer(incomplete: str) -> list[str]:
        *given, last = incomplete.split(",")
        left = [name for name in names if name not in given and name.startswith(last)]
        return [",".join([*given, name]) for name in left]

    return offer


def known_word(what: str, names: Sequence[str]) -> Callable[[str], str]:
    """A parser that refuses all words but these."""

    def parse(name: str) -> str:
        if name not in names:
            raise InputError(f"unknown {what}: {name}; {suggestion(name, names)}".rstrip("; "))
        return name

    return parse


def split_names(text: str | None) -> list[str] | None:
    """`a,b` as a list; None stays None; empty items are kept for the check further down."""
    return None if text is None else [name.strip() for name in text.split(",")]


def _number(text: str, refusal: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(refusal) from None


def parse_alpha(text: str, flag: str = "--alpha") -> float:
    """A finite number >= 0; raises InputError: anything else."""
    alpha = _number(text, f"alpha must be a number: {flag} {text}; such as 0.005")
    if not math.isfinite(alpha):
        raise InputError(f"alpha must be finite: {flag} {text}")
    if alpha < 0:
        raise InputError(f"alpha must be >= 0, not negative: {flag} {text}")
    return alpha


def parse_alphas(text: str) -> tuple[float, ...] | None:
    """Ascending distinct alphas, or None for `auto`.

    Raises InputError: no number, or something that is none.
    """
    if text.strip() == "auto":
        return None
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise InputError(f"empty item in alphas: --alphas {text!r}; e.g. --alphas 0,0.005,0.02")
    return tuple(sorted({parse_alpha(item, "--alphas") for item in items}))


def parse_budget(text: str, flag: str = "--budget") -> float:
    """A finite cost, or time, above 0; a price may be 0. Raises InputError: anything else."""
    what = "a time" if flag == "--p95-below" else "a cost"
    cost = _number(text, f"{what} must be a number: {flag} {text}; e.g. {flag} 0.8")
    if not math.isfinite(cost) or cost < 0 or (cost == 0 and "price" not in flag):
        raise InputError(f"{what} must be finite and above 0: {flag} {text}")
    return cost


def parse_share(text: str | None, defer_to: str | None) -> float | None:
    """A number from 0 to 1; None stays None.

    Raises InputError: anything else, or no model to hand over to.

    `defer_to`: the model that the share is for.
    """
    if text is None:
        return None
    if defer_to is None:
        raise InputError(f"no model to hand over to: --defer-share {text}; give --defer-to MODEL")
    share = _number(text, f"a share must be a number: --defer-share {text}; e.g. --defer-share 0.1")
    if not 0 <= share <= 1:
        raise InputError(f"a share must be from 0 to 1: --defer-share {text}; e.g. 0.1 for a tenth")
    return share


def format_flag(*names: str) -> Any:
    """`--format`; commands differ in how they can print."""
    return choice("--format", names, "Format of what is printed.", what="format")


# Flags of which commands say more, or something else, in their help.
pool_flag = partial(works_on, "--pool", "NAME|FILE.toml", offer=POOLS)
datasets_flag = partial(works_on, "--datasets", "A,B", offer_list=DATASETS)
limit_flag = partial(works_on, "--limit", "N", min=1)
seed_flag = partial(value, "--seed", "N", min=0, max=MAX_SEED)
alpha_flag = partial(value, "--alpha", "X", parser=parse_alpha)

# What a command works on.
Cache = Annotated[Path, works_on("--cache", "DIR", "Folder of the trajectory cache.")]
PoolName = Annotated[
    str | None, pool_flag("Models, hops, instructions, prices; default: that of the cache.")
]
AnyPool = Annotated[str | None, pool_flag("Models, hops, instructions and prices.")]
Datasets = Annotated[
    str | None, datasets_flag("Names, or .jsonl or .parquet files; default: all collected last.")
]
DatasetsOfDraw = Annotated[str | None, datasets_flag("Names, or .jsonl or .parquet files.")]
Limit = Annotated[int | None, limit_flag("At most N queries of each dataset.")]
LimitOfDraw = Annotated[
    int | None, limit_flag("At most N queries of each dataset; default 300, of a file all.")
]
Seed = Annotated[int, seed_flag("Seed of all that is drawn.")]
SeedOfDraw = Annotated[
    int | None, seed_flag(f"Seed of the draw and of the folds; default {DEFAULT_SEED}.", WORKS_ON)
]
Encoder = Annotated[
    str | None,
    works_on(
        "--encoder",
        "NAME|DIR|SERVER",
        "The pool's by default. hashed-ngrams (built in), paper, a sentence-transformers model, or "
        "a server: URL#MODEL, or a pool file of one model.",
        offer=ENCODERS,
    ),
]
State = Annotated[
    str | None,
    works_on(
        "--state",
        "VIEW",
        "What a policy sees: context, query+answer, query or stage; with +signals or +agreement.",
        offer=STATES,
    ),
]
Data = Annotated[Path, works_on("--data", "DIR", "Folder of <dataset>.jsonl or .parquet files.")]
Models = Annotated[
    str | None, works_on("--models", "A,B", "Only these models of the pool, in this order.")
]
Without = Annotated[
    str | None, works_on("--without", "A,B", "Leave these models and references out.")
]
Hops = Annotated[
    int | None, works_on("--hops", "N", "Fewer hops than the pool's: the first N.", min=1)
]
Scorer = Annotated[
    str,
    works_on(
        "--scorer",
        "NAME|MODULE:FUNCTION",
        f"What Q is: {', '.join(SCORERS)}, or yours.",
        offer=SCORERS,
    ),
]
AllowIncomplete = Annotated[
    bool, switch("--allow-incomplete", "Leave out queries whose trees have holes.", WORKS_ON)
]
AllowReturn = Annotated[
    bool,
    switch(
        "--allow-return", "The router may give any answer of its route, once it is there.", WORKS_ON
    ),
]
PriceFiles = Annotated[
    list[Path] | None,
    works_on(
        "--prices",
        "FILE.toml",
        "Prices instead of the pool's; `report` takes several, side by side.",
    ),
]
Price = Annotated[
    list[str] | None,
    works_on("--price", "MODEL=RATE|IN:OUT", "Price of one token of one model; repeatable."),
]
PriceOfSecond = Annotated[
    float | None,
    works_on(
        "--price-of-second",
        "X",
        "Money for a recorded second of a call; joins C.",
        parser=partial(parse_budget, flag="--price-of-second"),
    ),
]

# Training.
Alpha = Annotated[float, alpha_flag("Price of cost in R = Q - alpha * C.")]
AlphaOrBudget = Annotated[
    float | None, alpha_flag(f"Price of cost in R = Q - alpha * C; default {DEFAULT_ALPHA:g}.")
]
Preset = Annotated[str, choice("--preset", PRESETS, "Training hyperparameters.", TRAINING)]
Algo = Annotated[
    str | None,
    choice(
        "--algo",
        ALGORITHMS,
        "ppo (Tianshou's) samples episodes, exact enumerates the tree, value fits in closed form. "
        "Default: ppo.",
        TRAINING,
    ),
]
Epochs = Annotated[
    int | None, training("--epochs", "N", "Length of the training; default: the preset's.", min=1)
]
AllowStop = Annotated[bool, switch("--allow-stop", "The router may stop before the last hop.")]
Budget = Annotated[
    float | None,
    value(
        "--budget",
        "C",
        "Mean cost of a query, in the prices of the pool: finds the alpha that meets it.",
        parser=parse_budget,
    ),
]
KeepAnyway = Annotated[
    bool,
    switch(
        "--keep-anyway",
        "Keep the router even where it shows no gain over the best fixed route.",
        TRAINING,
    ),
]
Seeds = Annotated[int, value("--seeds", "N", "How many trainings, from --seed on.", min=1)]
CheckOnly = Annotated[bool, switch("--dry-run", "Check everything, then stop.")]

# Showing and asking a router.
Checkpoint = Annotated[Path | None, run_flag("--checkpoint", "A run; default: the latest.")]
ShownAlpha = Annotated[
    float | None, alpha_flag("Price of cost; default: the one that the router was trained at.")
]
DeferTo = Annotated[
    str | None, value("--defer-to", "MODEL", "Hand over to its direct calls when in doubt.")
]
DeferShare = Annotated[
    str | None,
    value(
        "--defer-share",
        "S",
        "At most this share, 0 to 1; default: as many as give the highest R on validation.",
    ),
]
Format = Annotated[str, format_flag(*FORMATS)]
ShortFormat = Annotated[str, format_flag("text", "json")]
Out = Annotated[
    Path | None, value("--out", "DIR", "Where results go; default runs/<time>-<command>.")
]
Name = Annotated[
    str | None, value("--name", "NAME", "Of the run, whose folder is runs/NAME; instead of --out.")
]

# Collecting.
Backend = Annotated[
    str | None,
    calls(
        "--backend",
        "NAME",
        f"{', '.join(BACKENDS)}: for all models; default: as the pool says.",
        offer=BACKENDS,
    ),
]
BaseUrl = Annotated[
    str | None, calls("--base-url", "URL", "An OpenAI-compatible server with all models.")
]
ApiKeyEnv = Annotated[
    str | None, calls("--api-key-env", "VAR", "Environment variable that holds its key.")
]
AllowEndpoint = Annotated[
    list[str] | None,
    calls("--allow-endpoint", "HOST", "A stored pool may call this private host; repeatable."),
]
Timeout = Annotated[float | None, calls("--timeout", "S", "Seconds for one call of a server.")]
Insecure = Annotated[
    bool, switch("--insecure", "Send the key over plain http to another machine.", CALLS)
]
Device = Annotated[
    str | None,
    calls(
        "--device",
        "NAME",
        "auto, cpu, cuda, cuda:N or balanced; default: as the pool says.",
        offer=DEVICES,
    ),
]
NoReferences = Annotated[
    bool, switch("--no-references", "Without the pool's reference models, now and later.")
]
AdaptiveOnly = Annotated[
    bool, switch("--adaptive", "On train questions make only calls that may be best at --alphas.")
]
AdaptiveAlphas = Annotated[
    str | None, value("--alphas", "A,B", "With --adaptive: these alphas count.")
]
Until = Annotated[
    float | None, value("--until", "R", "With --adaptive: stop where more gains less than R.")
]
MaxSpend = Annotated[
    float | None,
    value(
        "--max-spend",
        "X",
        "Begin no call once those in the cache have cost so much, in the pool's currency.",
        parser=partial(parse_budget, flag="--max-spend"),
    ),
]
DryRun = Annotated[
    bool, switch("--dry-run", "Print calls, tokens, time, cost and disk; call nothing.")
]
Yes = Annotated[bool, switch("--yes", "Start even a very large collection.")]
ShardOf = Annotated[
    str | None, machines("--shard", "I/N", "Only share I of N of the queries, beside others.")
]
ENGINES = ("local", "ray")
Engine = Annotated[
    str, choice("--engine", ENGINES, "Here, or on a Ray cluster.", MACHINES, what="engine")
]
Workers = Annotated[
    int | None,
    machines("--workers", "N", "Shards at work on Ray; default: one a GPU, or a core.", min=1),
]
RayAddress = Annotated[
    str | None,
    machines("--ray-address", "ADDRESS", "auto or ray://HOST:PORT; else one is started."),
]
Remote = Annotated[
    str | None, machines("--remote", "URL", "Mirror of the cache: fetch first, copy parts.")
]
