"""Mutation testing: which small faults in the code do its tests miss?

    pip install cosmic-ray
    python benchmarks/mutation.py FILE... --tests TESTS... [--sample N] [flags of pytest]

Each fault is one change by cosmic-ray in a copy of the project; changes of annotations, which do
nothing, are left out. A fork that has imported the libraries runs the tests until one fails. A
fault also counts as noticed if the tests take three times their usual CPU seconds. Properties draw
the same examples each time. The script prints the faults that no test noticed, and their number.
Not covered: faults in texts, such as regular expressions.
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
# Without shrinking: it does not matter which example fails.
PHASES = (Phase.explicit, Phase.generate)
PROFILE = settings(max_examples=30, deadline=None, database=None, derandomize=True, phases=PHASES)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--sample", type=int, default=sys.maxsize)
    args, flags = parser.parse_known_args()
    settings.register_profile("mutation", PROFILE)
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
    """Import libraries, compile the tests' modules, and return the CPU seconds tests may take."""
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.collect()
    gc.freeze()  # pytest calls the collector several times, which would visit all libraries
    if not passes(command, 3600):
        sys.exit("the tests fail without a fault: pytest " + " ".join(command))
    sys.dont_write_bytecode = True  # else the compiled file of a fault could be used for the next
    start = os.times().children_user
    passes(command, 3600)
    return 1 + math.ceil(3 * (os.times().children_user - start))


def passes(command: Sequence[str], limit: int) -> bool:
    """Tell whether the tests pass in a fork, within `limit` CPU seconds."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        signal.alarm(20 * limit)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        os._exit(pytest.main(list(command)))
    return os.waitpid(pid, 0)[1] == 0


def try_faults(file: Path, sample: int, command: Sequence[str], limit: int) -> None:
    """Run the tests on a sample of a file's faults, and print those that are missed."""
    source = file.read_text()
    candidates = list(faults(source))
    missed = 0
    mutants = Random(0).sample(candidates, min(sample, len(candidates)))
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()
    for name, mutant in mutants:
        file.write_text(mutant)
        if passes(command, limit):
            missed += 1
            before = source.splitlines()
            after = mutant.splitlines()
            print(
                *difflib.unified_diff(before, after, name, lineterm="", n=0), sep="\n", flush=True
            )
    file.write_text(source)
    noticed = len(mutants) - missed
    print(f"{file}: {noticed} of {len(mutants)} noticed, {len(candidates)} in all", flush=True)


def faults(source: str) -> Iterator[tuple[str, str]]:
    """Yield (operator, source with the fault) for each distinct fault that changes the program."""
    programs = {syntax_without_annotations(source)}
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments():
            continue
        for occurrence in count():
            mutant = mutate_code(source, operator(), occurrence)
            if mutant is None:
                break
            try:
                program = syntax_without_annotations(mutant)
            except SyntaxError:  # such as `a * not b`
                continue
            if program not in programs:
                programs.add(program)
                yield name, mutant


def syntax_without_annotations(source: str) -> str:
    """Return the syntax tree of a source, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)


if __name__ == "__main__":
    main()
