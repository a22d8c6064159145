"""What the shell offers when Tab is pressed.

Names only, and no import: a shell cannot wait for the registries that they come from. The tests
compare them. Where nothing is offered, the shell offers files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
