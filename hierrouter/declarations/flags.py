"""The flags that several jobs share, as types of their fields.

A job that says more, or something else, in its help makes its own flag with `pool_flag` and the
other functions here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from hierrouter.declarations.checks import (
    check_algorithm,
    check_alpha,
    check_cost,
    check_names,
    check_path,
    check_price,
    check_prices,
    check_seconds,
    check_share,
    check_text,
    each,
    each_of,
    one_of,
)
from hierrouter.declarations.declaration import Flag
from hierrouter.paper import PAPER_ALPHA, PAPER_SCORER, PAPER_SEED

MAX_SEED = 2**31 - 1

# Words that a shell offers. The lists are here because the modules that own them are slow to
# import; a test holds them equal.
POOLS = ("cpu", "graded", "paper", "testbed")
DATASETS = (
    *("testbed", "arith", "string", "fact", "story", "census", "backcap", "room", "copies"),
    *("mirror", "riddle", "graded", "small", "plus", "total", "spell", "letters", "capital"),
    *("people", "backcapital", "bothpeople", "backsum", "backpeople"),
    *("gsm8k", "math", "mbpp", "mmlu", "arc-easy", "arc-challenge"),
)
ENCODERS = ("hashed-ngrams", "paper")
SCORERS = ("token_f1", "exact_match", "numeric", "boxed", "choice", "accuracy", "given")
BASELINES = (
    *("random", "best-static", "dataset-oracle", "knn"),
    *("clusters", "ridge", "mlp", "svm", "matrix-factorisation"),
    *("cascade", "confidence-cascade", "agreement-cascade"),
    "cascade-routing",
)
BACKENDS = ("transformers", "openai")
DEVICES = ("auto", "cpu", "cuda", "balanced")
STATES = (
    *("context", "query+answer", "query", "stage"),
    *("context+signals", "query+answer+signals", "query+signals", "stage+signals"),
    *("context+agreement", "query+answer+agreement", "query+agreement", "stage+agreement"),
)
DEFAULT_VIEW = STATES[0]  # the paper's
PRESETS = ("default", "paper")
ALGORITHMS = ("ppo", "exact", "value", "ridge", "groups", "clusters", "mean", "best")
LOG_TARGETS = ("csv", "mlflow", "tensorboard", "wandb")
FOLDS = ("train", "validation", "test")
ALL_FOLDS = "all"
TEST_FOLD = "test"

# The headings, in the help of a command with many flags, of what several commands share.
WORKS_ON = "What it works on"
TRAINING = "Training"
CALLS = "How models are called"
MACHINES = "Several machines"

# Flags below those headings.
works_on = partial(Flag, group=WORKS_ON)
training = partial(Flag, group=TRAINING)
calls = partial(Flag, group=CALLS)
machines = partial(Flag, group=MACHINES)


def choice(
    name: str, words: Sequence[str], help: str, group: str | None = None, subject: str = ""
) -> Flag:
    """Return a flag with one of a few words.

    Args:
        name: of the flag.
        words: the values that there are.
        help: one line.
        group: heading in a long help page.
        subject: what a word names, for the error about an unknown word, e.g. "algorithm"; "" if the
            job checks the words.
    """
    check = one_of(subject, words) if subject else None
    return Flag(name, "|".join(words), help, group, check, completions=words)


# Flags whose help differs from job to job.
pool_flag = partial(works_on, "--pool", "NAME|FILE.toml", check=check_text, completions=POOLS)
datasets_flag = partial(
    works_on, "--datasets", "A,B", check=check_names, completions=DATASETS, is_list=True
)
baselines_flag = partial(
    Flag, "--baselines", "A,B|MODULE:CLASS", completions=BASELINES, is_list=True
)
limit_flag = partial(works_on, "--limit", "N", minimum=1)
seed_flag = partial(Flag, "--seed", "N", minimum=0, maximum=MAX_SEED)
alpha_flag = partial(Flag, "--alpha", "X", check=check_alpha)
split_flag = partial(choice, "--split", FOLDS, subject="split")

# What a job works on.
Cache = Annotated[
    Path, works_on("--cache", "DIR", "Folder of the trajectory cache.", check=check_path)
]
Pool = Annotated[
    str | None, pool_flag("Models, hops, instructions, prices; default: that of the cache.")
]
PoolToUse = Annotated[str | None, pool_flag("Models, hops, instructions and prices.")]
LivePool = Annotated[
    str | None, pool_flag("The models at other addresses; prices as the router learned with.")
]
Datasets = Annotated[
    Sequence[str] | None,
    datasets_flag("Names, or .jsonl or .parquet files; default: all collected last."),
]
DatasetsToDraw = Annotated[
    Sequence[str] | None, datasets_flag("Names, or .jsonl or .parquet files.")
]
Limit = Annotated[
    int | None, limit_flag("At most N queries of each dataset: those of `collect --limit N`.")
]
LimitToDraw = Annotated[
    int | None, limit_flag("At most N queries of each dataset; default 300, of a file all.")
]
Seed = Annotated[int, seed_flag("Seed of all that is drawn.")]
SeedToDraw = Annotated[
    int | None,
    seed_flag(f"Seed of the draw and of the folds; default {PAPER_SEED}.", group=WORKS_ON),
]
Encoder = Annotated[
    str | None,
    works_on(
        "--encoder",
        "NAME|DIR|SERVER",
        "The pool's by default. hashed-ngrams (built in), paper, a sentence-transformers model, or "
        "a server: URL#MODEL, or a pool file of one model.",
        completions=ENCODERS,
    ),
]
LiveEncoder = Annotated[
    str | None,
    Flag("--encoder", "SERVER", "Who embeds for a router that learned with a server's model."),
]
State = Annotated[
    str | None,
    works_on(
        "--state",
        "VIEW",
        "What a policy sees: context, query+answer, query or stage; with +signals or +agreement.",
        completions=STATES,
    ),
]
Data = Annotated[
    Path,
    works_on("--data", "DIR", "Folder of <dataset>.jsonl or .parquet files.", check=check_path),
]
Models = Annotated[
    Sequence[str] | None,
    works_on("--models", "A,B", "Only these models of the pool, in this order.", check=check_names),
]
Without = Annotated[
    Sequence[str],
    works_on("--without", "A,B", "Leave these models and references out.", check=check_names),
]
Hops = Annotated[
    int | None, works_on("--hops", "N", "Fewer hops than the pool's: the first N.", minimum=1)
]
OpenedDraws = Annotated[
    int | None,
    works_on("--draws", "N", "Fewer draws of each call than collected: the first N.", minimum=1),
]
scorer_flag = partial(works_on, "--scorer", "NAME|MODULE:FUNCTION", completions=SCORERS)
Scorer = Annotated[
    str | None,
    scorer_flag(
        f"What Q is: {', '.join(SCORERS)}, or yours; default {PAPER_SCORER}, given if an imported "
        "table has all scores, or what fits your own files."
    ),
]
ScorerOfTraffic = Annotated[str, scorer_flag(f"What Q is: {', '.join(SCORERS)}, or yours.")]
ScorerToWrite = Annotated[
    str | None, scorer_flag(f"The scores to write: as in `report`; default {PAPER_SCORER}.")
]
ShowSignature = Annotated[
    bool,
    Flag(
        "--show-signature",
        help="Show the function that tests call below a question; the paper's prompts do not.",
        group=WORKS_ON,
    ),
]
RunCode = Annotated[
    bool,
    Flag(
        "--run-code",
        help="Run programs in answers, confined, where a dataset has tests, for `accuracy`.",
        group=WORKS_ON,
    ),
]
AllowIncomplete = Annotated[
    bool,
    Flag("--allow-incomplete", help="Leave out queries whose trees have holes.", group=WORKS_ON),
]
MaxSpendOnVerdicts = Annotated[
    float | None,
    Flag(
        "--max-spend",
        "X",
        "Ask a judge no more once its verdicts in the cache have cost so much.",
        group=WORKS_ON,
        check=check_cost,
    ),
]
AllowReturn = Annotated[
    bool,
    Flag(
        "--allow-return",
        help="The router may give any answer of its route, once it is there.",
        group=WORKS_ON,
    ),
]
Prices = Annotated[
    Mapping[str, Any] | Sequence[Path],
    works_on(
        "--prices",
        "FILE.toml",
        "Prices instead of the pool's; `report` takes several, side by side.",
        check=check_prices,
    ),
]
Price = Annotated[
    Sequence[str],
    works_on(
        "--price",
        "MODEL=RATE|IN:OUT",
        "Price of one token of one model; repeatable.",
        check=each(check_text),
    ),
]
PriceOfSecond = Annotated[
    float | None,
    works_on(
        "--price-of-second",
        "X",
        "Money for a recorded second of a call; joins C.",
        check=check_price,
    ),
]

# Training.
AlphaToTrain = Annotated[
    float | None, alpha_flag(f"Price of cost in R = Q - alpha * C; default {PAPER_ALPHA:g}.")
]
Preset = Annotated[str, choice("--preset", PRESETS, "Training hyperparameters.", TRAINING)]
Algorithm = Annotated[
    Any,
    training(
        "--algo",
        "|".join((*ALGORITHMS, "MODULE:FACTORY")),
        "ppo (Tianshou's) samples episodes, exact enumerates the tree, value and ridge fit in "
        "closed form, groups and clusters are fixed routes by data set or embedding, mean is of "
        "value, ridge and groups, best is the best of all but ppo by cross-fitting; or a factory "
        "of another algorithm of Tianshou. Default: ppo.",
        check=check_algorithm(ALGORITHMS),
        completions=ALGORITHMS,
    ),
]
SweepAlgorithm = Annotated[
    str,
    choice(
        "--algo",
        ALGORITHMS,
        "best is the best of those without a network, by cross-fitting; value and ridge fit one "
        "model in closed form; ppo (Tianshou's) and exact train one network; groups and clusters "
        "are fixed routes by data set or embedding; mean is of value, ridge and groups.",
        TRAINING,
    ),
]
Epochs = Annotated[
    int | None,
    training("--epochs", "N", "Length of the training; default: the preset's.", minimum=1),
]
CheckpointEvery = Annotated[
    int | None,
    training(
        "--checkpoint-every",
        "N",
        "Keep a checkpoint of every N epochs; 0: none. Default: 5 with the preset paper, else 0.",
        minimum=0,
    ),
]
LogTo = Annotated[
    Sequence[str],
    training(
        "--log-to",
        "A,B",
        f"Log the learning curve: {', '.join(LOG_TARGETS)}.",
        check=each_of("log target", LOG_TARGETS),
        completions=LOG_TARGETS,
        is_list=True,
    ),
]
AllowStop = Annotated[bool, Flag("--allow-stop", help="The router may stop before the last hop.")]
Budget = Annotated[
    float | None,
    Flag(
        "--budget",
        "C",
        "Mean cost of a query, in the prices of the pool: finds the alpha that meets it.",
        check=check_cost,
    ),
]
KeepAnyway = Annotated[
    bool,
    Flag(
        "--keep-anyway",
        help="Keep the router even where it shows no gain over the best fixed route.",
        group=TRAINING,
    ),
]
Seeds = Annotated[int, Flag("--seeds", "N", "How many trainings, from --seed on.", minimum=1)]
Out = Annotated[
    Path | None,
    Flag("--out", "DIR", "Where results go; default runs/<time>-<command>.", check=check_path),
]
Name = Annotated[
    str | None, Flag("--name", "NAME", "Of the run, whose folder is runs/NAME; instead of --out.")
]

# Showing and asking a router.
Alpha = Annotated[
    float | None, alpha_flag("Price of cost; default: the one that the router was trained at.")
]
DeferTo = Annotated[
    str | None, Flag("--defer-to", "MODEL", "Hand over to its direct calls when in doubt.")
]
DeferShare = Annotated[
    float | None,
    Flag(
        "--defer-share",
        "S",
        "At most this share, 0 to 1; default: as many as give the highest R on validation.",
        check=check_share,
    ),
]
Policies = Annotated[
    Sequence[Any],
    Flag("--policy", "MODULE:OBJECT", "A policy of your own beside the router; repeatable."),
]
P95Below = Annotated[
    float | None,
    Flag(
        "--p95-below",
        "S",
        "Mark what keeps 95 % of the queries within S seconds, and name the best fixed route.",
        check=check_seconds,
    ),
]
Split = Annotated[str, split_flag("The fold to evaluate on.")]
SplitOrAll = Annotated[
    str,
    choice("--split", (*FOLDS, ALL_FOLDS), "The fold to show; all is no test.", subject="split"),
]
Sample = Annotated[
    bool, Flag("--sample", help="Draw each call from the policy, so that logs can be judged.")
]
Group = Annotated[
    str,
    Flag(
        "--group",
        "NAME",
        "Data set or label of the question, for a router with a route for each (--algo groups).",
    ),
]
GroupBy = Annotated[
    str | None,
    Flag(
        "--group-by",
        "FIELD",
        "Field of a file's questions with the group of each, also for --limit; default: dataset.",
        check=check_text,
    ),
]
Reroute = Annotated[
    bool, Flag("--reroute", help="Where a model fails, take the next likeliest; says so.")
]

# Calling models.
Backend = Annotated[
    str | None,
    calls(
        "--backend",
        "NAME",
        f"{', '.join(BACKENDS)}: for all models; default: as the pool says.",
        completions=BACKENDS,
    ),
]
BaseUrl = Annotated[
    str | None, calls("--base-url", "URL", "An OpenAI-compatible server with all models.")
]
ApiKeyEnv = Annotated[
    str | None, calls("--api-key-env", "VAR", "Environment variable that holds its key.")
]
AllowEndpoints = Annotated[
    Sequence[str],
    calls(
        "--allow-endpoint",
        "HOST",
        "A stored pool may call this private host; repeatable.",
        check=each(check_text),
    ),
]
Timeout = Annotated[float | None, calls("--timeout", "S", "Seconds for one call of a server.")]
Insecure = Annotated[
    bool, Flag("--insecure", help="Send the key over plain http to another machine.", group=CALLS)
]
Device = Annotated[
    str | None,
    calls(
        "--device",
        "NAME",
        "auto, cpu, cuda, cuda:N or balanced; default: as the pool says.",
        completions=DEVICES,
    ),
]


# Names of the file formats that can be imported and exported, and notes on them.

OWN = "jsonl"  # the project's own format
# Notes for people on a cache that was made from a file, by format.
NOTES: Mapping[str, str] = {
    "routerbench": "no token counts in the file; tokens_out holds its cost in tiny units, so that "
    "C is the file's cost"
}
IMPORTS = (OWN, "table", "llmrouter", "routerbench")
FIRST_DRAW = "first"  # of several runs of a query the first one
MEAN_DRAW = "mean"  # its text, with the means of score, tokens and seconds over all runs
ALL_DRAWS = "all"  # each is a draw of its call, and the file is a log
DRAWS = (FIRST_DRAW, MEAN_DRAW, ALL_DRAWS)
# What of a cache a format has no place for, by the formats of other tools that are written.
LOSSES: Mapping[str, tuple[str, ...]] = {
    "llmrouter": (
        "hops after the first",
        "all but the first reference answer of a query",
        "the validation fold (it goes with train)",
        "log-probabilities, and why a response ended",
        "identities of models, and descriptions (llm_data.json has their ids)",
    ),
    "routerbench": (
        "hops after the first",
        "reference answers, and choices as such",
        "token counts (their cost remains)",
        "folds",
        "seconds, log-probabilities, and why a response ended",
        "identities and prices of models",
    ),
}
EXPORTS = (OWN, *LOSSES)
