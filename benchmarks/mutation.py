"""Which small faults in the code do its tests miss?

    pip install cosmic-ray
    python benchmarks/mutation.py FILE... --tests TESTS... [--sample N] [flags of pytest]

Each fault is one change by cosmic-ray in a copy of the project; those in annotations do nothing and
are left out. A fork with the libraries imported runs the tests until one fails; tests that take
three times their CPU seconds have noticed, too. Properties draw the same examples each time.
Prints what no test noticed, and counts. Not covered: faults in texts, such as regular expressions.
"""

import argparse
import ast
import difflib
import gc
import importlib
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random

import pytest
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[1]
LIBRARIES = ("duckdb", "hypothesis.extra.numpy", "pyarrow.parquet", "scipy.optimize")
PYTEST = ("-xq", "--assert=plain", "-p", "no:cacheprovider", "--hypothesis-profile=mutation")
UNSHRUNK = (Phase.explicit, Phase.generate)
QUIET = settings(max_examples=30, deadline=None, database=None, derandomize=True, phases=UNSHRUNK)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--sample", type=int, default=sys.maxsize)
    args, flags = parser.parse_known_args()
    settings.register_profile("mutation", QUIET)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("hierrouter", "cache", "cli", "tests"):
            shutil.copytree(ROOT / name, Path(folder) / name)
        shutil.copy(ROOT / "pyproject.toml", folder)
        os.chdir(folder)
        command = [*PYTEST, *args.tests, *flags]
        limit = warm_up(command)
        for file in args.files:
            try_faults(file, args.sample, command, limit)


def warm_up(command: Sequence[str]) -> int:
    """Import libraries, compile what the tests import; the CPU seconds that they may take."""
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.collect()
    gc.freeze()  # pytest collects several times, in all that was imported
    if not passes(command, 3600):
        sys.exit("the tests fail without a fault: pytest " + " ".join(command))
    sys.dont_write_bytecode = True  # else one fault could be read for the next
    begun = os.times().children_user
    passes(command, 3600)
    return 1 + math.ceil(3 * (os.times().children_user - begun))


def passes(command: Sequence[str], limit: int) -> bool:
    """Whether the tests pass in a fork, in so many CPU seconds."""
    if (pid := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        signal.alarm(20 * limit)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        os._exit(pytest.main(list(command)))
    return os.waitpid(pid, 0)[1] == 0


def try_faults(file: Path, sample: int, command: Sequence[str], limit: int) -> None:
    source = file.read_text()
    found, missed = list(faults(source)), 0
    tried = Random(0).sample(found, min(sample, len(found)))
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()
    for name, mutant in tried:
        file.write_text(mutant)
        if passes(command, limit):
            missed += 1
            texts = source.splitlines(), mutant.splitlines()
            print(*difflib.unified_diff(*texts, name, lineterm="", n=0), sep="\n", flush=True)
    file.write_text(source)
    print(f"{file}: {len(tried) - missed} of {len(tried)} noticed, {len(found)} in all", flush=True)


def faults(source: str) -> Iterator[tuple[str, str]]:
    """(operator, the whole file with the fault), each that does something, and once."""
    seen = {meaning(source)}
    for name in operator_names():
        operator = get_operator(name)
        for occurrence in count() if not operator.arguments() else ():
            if (mutant := mutate_code(source, operator(), occurrence)) is None:
                break
            try:
                does = meaning(mutant)
            except SyntaxError:  # such as `a * not b`
                continue
            if does not in seen:
                seen.add(does)
                yield name, mutant


def meaning(source: str) -> str:
    """The syntax tree without annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)


if __name__ == "__main__":
    main()
