"""The flags that commands share, and their checks.

Scripts rely on these names; see the contract in docs/cli.md before changing one.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from hierrouter.learn.config import PAPER_ALPHA, PAPER_SCORER, PAPER_SEED
from hierrouter.runs import CACHE
from hierrouter_cache.errors import InputError

DEFAULT_CACHE = CACHE
DEFAULT_ALPHA = PAPER_ALPHA
DEFAULT_SEED = PAPER_SEED
DEFAULT_SCORER = PAPER_SCORER
POINTS = 6  # of an automatic grid of alphas
FORMATS = ("text", "json", "md", "latex", "csv")

Cache = Annotated[
    Path, typer.Option("--cache", metavar="DIR", help="Folder of the trajectory cache.")
]
PoolName = Annotated[
    str | None,
    typer.Option("--pool", metavar="NAME|FILE.toml", help="Models, hops, instructions, prices."),
]
Datasets = Annotated[
    str | None,
    typer.Option("--datasets", metavar="A,B", help="Names, or .jsonl or .parquet files."),
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="At most N queries a dataset.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**31 - 1)]
SeedOfDraw = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", min=0, max=2**31 - 1, help="Of draw and folds; 42."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Where results go; default runs/<time>-<command>."),
]
Alpha = Annotated[
    str, typer.Option("--alpha", metavar="X", help="Price of cost in R = Q - alpha * C.")
]
AlphaOrBudget = Annotated[
    str | None,
    typer.Option("--alpha", metavar="X", help=f"Price of cost in R; default {DEFAULT_ALPHA:g}."),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="NAME|DIR",
        help="hashed-ngrams (built in), paper, or a sentence-transformers model.",
    ),
]
State = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="context|query+answer|query|stage",
        help="Texts of a state that a policy sees; stage and cost it always sees.",
    ),
]
Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Folder of <dataset>.jsonl or .parquet files.")
]
Format = Annotated[str, typer.Option("--format", metavar="|".join(FORMATS))]
ShortFormat = Annotated[str, typer.Option("--format", metavar="text|json")]
Models = Annotated[
    str | None,
    typer.Option("--models", metavar="A,B", help="Only these models of the pool, in this order."),
]
Hops = Annotated[int | None, typer.Option("--hops", metavar="N", min=1, help="Fewer hops.")]
Scorer = Annotated[
    str,
    typer.Option(
        "--scorer",
        metavar="NAME|MODULE:FUNCTION",
        help="Q: token_f1, exact_match, numeric, boxed, choice, accuracy, given, or yours.",
    ),
]
AllowIncomplete = Annotated[
    bool,
    typer.Option("--allow-incomplete", help="Leave out queries whose trees have holes."),
]
PriceFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--prices", metavar="FILE.toml", help="Prices instead of the pool's; several: side by side."
    ),
]
Price = Annotated[
    list[str] | None,
    typer.Option(
        "--price", metavar="MODEL=RATE|IN:OUT", help="Price per token of one model; repeatable."
    ),
]
Preset = Annotated[
    str, typer.Option("--preset", metavar="default|paper", help="Training hyperparameters.")
]
Algo = Annotated[
    str | None,
    typer.Option(
        "--algo", metavar="ppo|exact", help="ppo samples episodes; exact enumerates the tree."
    ),
]
Epochs = Annotated[
    int | None, typer.Option("--epochs", metavar="N", min=1, help="Length of the training.")
]
AllowStop = Annotated[
    bool, typer.Option("--allow-stop", help="The router may stop before the last hop.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget", metavar="C", help="Mean cost of a query: finds the alpha that meets it."
    ),
]
MaxCost = Annotated[
    str | None,
    typer.Option("--max-cost", metavar="C", help="Limit for each query: dearer calls are masked."),
]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write the learning curve into the run's folder.")
]
DeferTo = Annotated[
    str | None,
    typer.Option(
        "--defer-to", metavar="MODEL", help="Hand over to its direct calls when in doubt."
    ),
]
DeferShare = Annotated[
    str | None,
    typer.Option(
        "--defer-share", metavar="S", help="At most this share, 0 to 1; default: the highest R."
    ),
]
Sample = Annotated[
    bool,
    typer.Option("--sample", help="Draw each call from the policy, so that logs can be judged."),
]
Reroute = Annotated[
    bool,
    typer.Option("--reroute", help="Where a model fails, take the next likeliest; says so."),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="Default: that of the latest run."),
]
ShownAlpha = Annotated[
    str | None,
    typer.Option("--alpha", metavar="X", help="Default: the alpha the router was trained at."),
]
Split = Annotated[str, typer.Option("--split", metavar="train|validation|test")]
CheckOnly = Annotated[bool, typer.Option("--dry-run", help="Check everything, then stop.")]

Backend = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="transformers, openai or vllm, for all models."),
]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="An OpenAI-compatible server with all models."),
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option("--api-key-env", metavar="VAR", help="Environment variable that holds its key."),
]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="S", help="Seconds for one call of a server.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Send the key over plain http to another machine.")
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or balanced."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print calls, tokens, time, cost and disk; call nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Start even a very large collection.")]
ShardOf = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/N", help="Only this share of the queries, beside others."),
]
Engine = Annotated[
    str, typer.Option("--engine", metavar="local|ray", help="Here, or on a Ray cluster.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Of the Ray cluster.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address", metavar="ADDRESS", help="auto or ray://...; else one is started."
    ),
]
Remote = Annotated[
    str | None,
    typer.Option("--remote", metavar="URL", help="Mirror of the cache: fetch first, copy parts."),
]


def split_names(text: str | None) -> list[str] | None:
    """`a,b` as a list; None stays None; empty items are kept for the check further down."""
    return None if text is None else [name.strip() for name in text.split(",")]


def parse_alpha(text: str, flag: str = "--alpha") -> float:
    """A finite number >= 0.

    Raises:
        InputError: anything else.
    """
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"alpha must be a number: {flag} {text}; such as 0.005") from None
    if not math.isfinite(value):
        raise InputError(f"alpha must be finite: {flag} {text}")
    if value < 0:
        raise InputError(f"alpha must be >= 0, not negative: {flag} {text}")
    return value


def parse_alphas(text: str) -> tuple[float, ...] | None:
    """Ascending distinct alphas, or None for `auto`.

    Raises:
        InputError: no number, or something that is none.
    """
    if text.strip() == "auto":
        return None
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise InputError(f"empty item in alphas: --alphas {text!r}; e.g. --alphas 0,0.005,0.02")
    return tuple(sorted({parse_alpha(item, "--alphas") for item in items}))


def parse_cost(text: str | None, flag: str) -> float | None:
    """A finite number above 0; None stays None.

    Raises:
        InputError: anything else.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"a cost must be a number: {flag} {text}; e.g. {flag} 0.8") from None
    if not math.isfinite(value) or value <= 0:
        raise InputError(f"a cost must be finite and above 0: {flag} {text}")
    return value


def parse_share(text: str | None, defer_to: str | None) -> float | None:
    """A number from 0 to 1; None stays None.

    Args:
        defer_to: the model that the share is for.

    Raises:
        InputError: anything else, or no model to hand over to.
    """
    if text is None:
        return None
    if defer_to is None:
        raise InputError(f"no model to hand over to: --defer-share {text}; give --defer-to MODEL")
    try:
        value = float(text)
    except ValueError:
        raise InputError(
            f"a share must be a number: --defer-share {text}; e.g. --defer-share 0.1"
        ) from None
    if not 0 <= value <= 1:
        raise InputError(f"a share must be from 0 to 1: --defer-share {text}; e.g. 0.1 for a tenth")
    return value


def algorithm(name: str | None, budget: str | None, max_cost: str | None, alpha: str | None) -> str:
    """The algorithm to train with: PPO, and enumeration for a budget.

    Raises:
        InputError: a budget with what contradicts it.
    """
    if budget is None:
        return name or "ppo"
    if name not in (None, "exact"):
        raise InputError(
            f"a budget needs a router for every alpha: --budget with --algo {name}; "
            "leave --algo out"
        )
    for flag, value in (("--max-cost", max_cost), ("--alpha", alpha)):
        if value is not None:
            raise InputError(f"--budget and {flag} contradict each other; give one of them")
    return "exact"


def check_split(name: str) -> None:
    """Refuse an unknown fold before anything is loaded.

    Raises:
        InputError: it is not one of the three.
    """
    from hierrouter.pool import suggestion
    from hierrouter_cache.tree import SPLITS

    if name not in SPLITS:
        raise InputError(f"unknown split: {name}; {suggestion(name, SPLITS)}".rstrip("; "))


def check_format(name: str, known: tuple[str, ...] = FORMATS) -> str:
    """The format's name.

    Raises:
        InputError: it is not one of `known`.
    """
    from hierrouter.pool import suggestion

    if name not in known:
        raise InputError(f"unknown format: {name}; {suggestion(name, known)}".rstrip("; "))
    return name
