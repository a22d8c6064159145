"""The flags that commands share, and what the shell offers when Tab is pressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hierrouter.paper import PAPER_ALPHA, PAPER_SCORER, PAPER_SEED
from hierrouter_cache import CACHE

Offer = Callable[[str], list[str]]

POOLS = ("cpu", "paper", "testbed")
DATASETS = (
    *("testbed", "arith", "string", "fact", "story", "census", "backcap", "room", "copies"),
    *("mirror", "riddle", "gsm8k", "math", "mbpp", "mmlu", "arc-easy", "arc-challenge"),
)
ENCODERS = ("hashed-ngrams", "paper")
SCORERS = ("token_f1", "exact_match", "numeric", "boxed", "choice", "accuracy", "given")
BASELINES = (
    *("random", "cheapest", "largest", "best-static", "dataset-oracle", "knn", "clusters"),
    *("ridge", "logistic", "mlp", "svm", "matrix-factorisation", "elo", "dual-encoder"),
    *("quality-gap", "linucb", "cascade", "cascade-routing", "majority-vote"),
    "best-of-ensemble",
)
SIMULATED = ("uniform", "epsilon=", "temperature=")
BACKENDS = ("transformers", "openai", "vllm")
DEVICES = ("auto", "cpu", "cuda", "balanced")
FIGURES = ("svg", "pdf", "png")


def one_of(names: Sequence[str]) -> Offer:
    """Those of the names that begin with what was typed."""

    def offer(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return offer


def some_of(names: Sequence[str]) -> Offer:
    """The same for the last item of a list with commas; what stands in it is not offered again."""

    def offer(incomplete: str) -> list[str]:
        *given, last = incomplete.split(",")
        left = [name for name in names if name not in given and name.startswith(last)]
        return [",".join([*given, name]) for name in left]

    return offer


DEFAULT_CACHE = CACHE
DEFAULT_ALPHA = PAPER_ALPHA
DEFAULT_SEED = PAPER_SEED
DEFAULT_SCORER = PAPER_SCORER
FORMATS = ("text", "json", "md", "latex", "csv")
SHORT_FORMATS = ("text", "json")
STATES = ("context", "query+answer", "query", "stage")
PRESETS = ("default", "paper")
ALGORITHMS = ("ppo", "exact")
FOLDS = ("train", "validation", "test")
MAX_SEED = 2**31 - 1

# The heading, on a long page of flags, of what several commands share; see `help_page`.
WORKS_ON = "What it works on"
TRAINING = "Training"


def value(flag: str, metavar: str, help: str, group: str | None = None, **more: Any) -> Any:
    """A flag with a value.

    Args:
        group: its heading on a long page.
        more: as typer has them.
    """
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=group, **more)


def choice(flag: str, names: Sequence[str], help: str, group: str | None = None) -> Any:
    """A flag with one of a few words; the shell offers them. The command checks the word."""
    return value(flag, "|".join(names), help, group, autocompletion=one_of(names))


def switch(flag: str, help: str, group: str | None = None) -> Any:
    """A flag without a value, off by default."""
    return typer.Option(flag, help=help, rich_help_panel=group)


def pool_flag(help: str) -> Any:
    """`--pool`; commands differ in what they take without it."""
    offer = one_of(POOLS)
    return value("--pool", "NAME|FILE.toml", help, WORKS_ON, autocompletion=offer)


def datasets_flag(help: str) -> Any:
    """`--datasets`; commands differ in what they take without it."""
    return value("--datasets", "A,B", help, WORKS_ON, autocompletion=some_of(DATASETS))


Cache = Annotated[Path, value("--cache", "DIR", "Folder of the trajectory cache.", WORKS_ON)]
PoolName = Annotated[
    str | None, pool_flag("Models, hops, instructions, prices; default: that of the cache.")
]
AnyPool = Annotated[str | None, pool_flag("Models, hops, instructions and prices.")]
Datasets = Annotated[
    str | None, datasets_flag("Names, or .jsonl or .parquet files; default: all collected last.")
]
DatasetsOfDraw = Annotated[str | None, datasets_flag("Names, or .jsonl or .parquet files.")]
Limit = Annotated[
    int | None, value("--limit", "N", "At most N queries of each dataset.", WORKS_ON, min=1)
]
LimitOfDraw = Annotated[
    int | None,
    value(
        "--limit",
        "N",
        "At most N queries of each dataset; default 300, of a file all.",
        WORKS_ON,
        min=1,
    ),
]
Seed = Annotated[int, value("--seed", "N", "Seed of all that is drawn.", min=0, max=MAX_SEED)]
SeedOfDraw = Annotated[
    int | None,
    value(
        "--seed",
        "N",
        f"Seed of the draw and of the folds; default {DEFAULT_SEED}.",
        WORKS_ON,
        min=0,
        max=MAX_SEED,
    ),
]
Out = Annotated[
    Path | None, value("--out", "DIR", "Where results go; default runs/<time>-<command>.")
]
Alpha = Annotated[str, value("--alpha", "X", "Price of cost in R = Q - alpha * C.")]
AlphaOrBudget = Annotated[
    str | None,
    value("--alpha", "X", f"Price of cost in R = Q - alpha * C; default {DEFAULT_ALPHA:g}."),
]
Encoder = Annotated[
    str | None,
    value(
        "--encoder",
        "NAME|DIR",
        "hashed-ngrams (built in, the default), paper, or a sentence-transformers model.",
        WORKS_ON,
        autocompletion=one_of(ENCODERS),
    ),
]
State = Annotated[
    str | None,
    choice(
        "--state",
        STATES,
        "Texts of a state that a policy sees, default context; stage and cost it always sees.",
        WORKS_ON,
    ),
]
Data = Annotated[
    Path, value("--data", "DIR", "Folder of <dataset>.jsonl or .parquet files.", WORKS_ON)
]
Format = Annotated[str, choice("--format", FORMATS, "Format of what is printed.")]
ShortFormat = Annotated[str, choice("--format", SHORT_FORMATS, "Format of what is printed.")]
Models = Annotated[
    str | None,
    value("--models", "A,B", "Only these models of the pool, in this order.", WORKS_ON),
]
Hops = Annotated[
    int | None, value("--hops", "N", "Fewer hops than the pool's: the first N.", WORKS_ON, min=1)
]
Scorer = Annotated[
    str,
    value(
        "--scorer",
        "NAME|MODULE:FUNCTION",
        f"What Q is: {', '.join(SCORERS)}, or yours.",
        WORKS_ON,
        autocompletion=one_of(SCORERS),
    ),
]
AllowIncomplete = Annotated[
    bool, switch("--allow-incomplete", "Leave out queries whose trees have holes.", WORKS_ON)
]
PriceFiles = Annotated[
    list[Path] | None,
    value(
        "--prices",
        "FILE.toml",
        "Prices instead of the pool's; `report` takes several, side by side.",
        WORKS_ON,
    ),
]
Price = Annotated[
    list[str] | None,
    value("--price", "MODEL=RATE|IN:OUT", "Price of one token of one model; repeatable.", WORKS_ON),
]
Preset = Annotated[str, choice("--preset", PRESETS, "Training hyperparameters.", TRAINING)]
Algo = Annotated[
    str | None,
    choice(
        "--algo",
        ALGORITHMS,
        "ppo (the default) samples episodes; exact enumerates the tree.",
        TRAINING,
    ),
]
Epochs = Annotated[
    int | None,
    value("--epochs", "N", "Length of the training; default: the preset's.", TRAINING, min=1),
]
AllowStop = Annotated[bool, switch("--allow-stop", "The router may stop before the last hop.")]
Budget = Annotated[
    str | None,
    value(
        "--budget",
        "C",
        "Mean cost of a query, in the prices of the pool: finds the alpha that meets it.",
    ),
]
MaxCost = Annotated[
    str | None,
    value(
        "--max-cost",
        "C",
        "Most that one query may cost, in the prices of the pool: dearer calls are masked.",
    ),
]
TensorBoard = Annotated[
    bool, switch("--tensorboard", "Write the learning curve into the run's folder.", TRAINING)
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
Policies = Annotated[
    list[str] | None,
    value("--policy", "MODULE:OBJECT", "A policy of your own beside the router; repeatable."),
]
Sample = Annotated[
    bool, switch("--sample", "Draw each call from the policy, so that logs can be judged.")
]
Reroute = Annotated[
    bool, switch("--reroute", "Where a model fails, take the next likeliest; says so.")
]
Checkpoint = Annotated[
    Path | None, value("--checkpoint", "DIR", "Folder of a router; default: the latest run.")
]
ShownAlpha = Annotated[
    str | None,
    value("--alpha", "X", "Price of cost; default: the one that the router was trained at."),
]
Split = Annotated[str, choice("--split", FOLDS, "The fold to evaluate on.")]
CheckOnly = Annotated[bool, switch("--dry-run", "Check everything, then stop.")]


CALLS = "How models are called"
MACHINES = "Several machines"

Backend = Annotated[
    str | None,
    value(
        "--backend",
        "NAME",
        f"{', '.join(BACKENDS)}: for all models; default: as the pool says.",
        CALLS,
        autocompletion=one_of(BACKENDS),
    ),
]
BaseUrl = Annotated[
    str | None, value("--base-url", "URL", "An OpenAI-compatible server with all models.", CALLS)
]
ApiKeyEnv = Annotated[
    str | None, value("--api-key-env", "VAR", "Environment variable that holds its key.", CALLS)
]
Timeout = Annotated[
    float | None, value("--timeout", "S", "Seconds for one call of a server.", CALLS)
]
Insecure = Annotated[
    bool, switch("--insecure", "Send the key over plain http to another machine.", CALLS)
]
Device = Annotated[
    str | None,
    value(
        "--device",
        "NAME",
        "auto, cpu, cuda, cuda:N or balanced; default: as the pool says.",
        CALLS,
        autocompletion=one_of(DEVICES),
    ),
]
DryRun = Annotated[
    bool, switch("--dry-run", "Print calls, tokens, time, cost and disk; call nothing.")
]
Yes = Annotated[bool, switch("--yes", "Start even a very large collection.")]
ShardOf = Annotated[
    str | None,
    value("--shard", "I/N", "Only share I of N of the queries, beside others.", MACHINES),
]
Engine = Annotated[
    str, choice("--engine", ("local", "ray"), "Here, or on a Ray cluster.", MACHINES)
]
Workers = Annotated[
    int | None,
    value(
        "--workers", "N", "Shards at work on Ray; default: one a GPU, or a core.", MACHINES, min=1
    ),
]
RayAddress = Annotated[
    str | None,
    value("--ray-address", "ADDRESS", "auto or ray://HOST:PORT; else one is started.", MACHINES),
]
Remote = Annotated[
    str | None,
    value("--remote", "URL", "Mirror of the cache: fetch first, copy parts.", MACHINES),
]
