"""Mutation testing: which small faults in the code do its tests miss?

    python benchmarks/mutation.py --planted [NAME...]
    python benchmarks/mutation.py --guards [NAME...]
    python benchmarks/mutation.py FILE... --tests TESTS... [--sample N] [flags of pytest]

A fault is planted in a copy of the project. A fork that has imported the libraries runs the tests
until one fails. A fault also counts as noticed if the tests take three times their usual CPU
seconds. Properties draw the same examples each time.

With `--planted` the faults are those of `planted_faults.toml`, all of them or the named ones: wrong
lines that a person could write. The golden traces, which notice any change of a training and cannot
say which, are not run. The script prints a line for each fault, CAUGHT with the test that failed,
SURVIVED, or STALE if the line is not in the code exactly once. It exits with 1 unless all are
caught.

With `--guards` each script that stands for a promise, such as `crash.py`, has one fault of
`planted_faults.toml` that it must find. The fault is planted in another copy of the project, and
the guard is run there, for a minute or so. The script prints FOUND with the line in which the guard
names the fault, BLIND, or STALE. It exits with 1 unless all are found.

With files, each fault is one small change by cosmic-ray (`pip install cosmic-ray`); changes of
annotations, which do nothing, are left out. The script prints the faults that no test noticed, and
their number. Not covered: faults in texts, such as regular expressions.
"""

import argparse
import ast
import difflib
import gc
import importlib
import math
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[1]
COPIED = ("hierrouter", "cache", "cli", "tests", "benchmarks")
LIBRARIES = (
    *("duckdb", "hypothesis.extra.numpy", "pyarrow.parquet", "scipy.optimize"),
    *("tianshou.algorithm", "torch"),
)
PLANTED_FAULTS = Path(__file__).with_name("planted_faults.toml")
GOLDEN_TESTS = "tests/hierrouter/learning/test_golden.py"
PYTEST = (
    "-xq",
    "--tb=no",
    "--assert=plain",
    "-p",
    "no:cacheprovider",
    "--hypothesis-profile=mutation",
)
MAX_SHOWN_CHARACTERS = 600  # of the output of a guard that finds nothing
MAX_PIPE_BYTES = 4096  # what a pipe holds at least; the first name of a test is shorter
# Exit codes of tests that ran out of CPU seconds, or of time.
TOO_LONG = (-signal.SIGXCPU, -signal.SIGALRM)
# Without shrinking: it does not matter which example fails.
PHASES = (Phase.explicit, Phase.generate)
PROFILE = settings(max_examples=30, deadline=None, database=None, derandomize=True, phases=PHASES)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="FILE|NAME")
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--guards", action="store_true")
    parser.add_argument("--tests", nargs="+")
    parser.add_argument("--sample", type=int, default=sys.maxsize)
    args, flags = parser.parse_known_args()
    if args.planted + args.guards + bool(args.tests) != 1 or (args.tests and not args.names):
        parser.error("give --planted, --guards, or files and --tests")
    if args.guards:
        sys.exit(0 if try_guards(args.names) else 1)
    settings.register_profile("mutation", PROFILE)
    # As tests/conftest.py sets them: the libraries read them when they are imported.
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder:
        copy_project(Path(folder))
        os.chdir(folder)
        if args.planted:
            sys.exit(0 if try_planted_faults(args.names) else 1)
        command = [*PYTEST, *args.tests, *flags]
        limit = warm_up(command)
        for file in map(Path, args.names):
            try_faults(file, args.sample, command, limit)


def copy_project(folder: Path) -> None:
    """Copy all that the tests and the benchmarks need."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


# ------------------------------------------------------------------------------ Running the tests


@dataclass(frozen=True)
class Verdict:
    """The result of the tests on the code as it was.

    Attributes:
        exit_code: of pytest; below 0 if it was ended by a signal, because it took too long.
        first_failure: the test that failed, or the module that could not be collected.
    """

    exit_code: int
    first_failure: str


class FirstFailure:
    """A plugin of pytest that writes the name of each test that fails into a pipe."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.pipe, f"{report.nodeid}\n".encode())

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            os.write(self.pipe, f"{report.nodeid}\n".encode())


def warm_up(command: Sequence[str]) -> int:
    """Import libraries, compile the tests' modules, and return the CPU seconds tests may take."""
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.collect()
    gc.freeze()  # pytest calls the collector several times, which would visit all libraries
    sys.dont_write_bytecode = False
    verdict = run_tests(command, 3600)
    if verdict.exit_code:
        sys.exit(f"the tests fail without a fault: {verdict}: pytest " + " ".join(command))
    # Else the compiled file of a fault could be used for the next, here or by what tests start.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    start = os.times().children_user
    run_tests(command, 3600)
    return 1 + math.ceil(3 * (os.times().children_user - start))


def run_tests(command: Sequence[str], limit: int) -> Verdict:
    """Run the tests in a fork, for at most `limit` CPU seconds."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        # The signal of the higher limit is that of a machine without memory, too.
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        signal.alarm(20 * limit)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        os._exit(pytest.main(list(command), plugins=[FirstFailure(writing)]))
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(writing, b"\n")  # there is a line to read, even if no test failed
    failures = os.read(reading, MAX_PIPE_BYTES).decode()
    os.close(reading)
    os.close(writing)
    return Verdict(exit_code, failures.partition("\n")[0])


@contextmanager
def planted(file: Path, source: str) -> Iterator[None]:
    """Replace a file's source while tests run."""
    original = file.read_text()
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()
    file.write_text(source)
    try:
        yield
    finally:
        file.write_text(original)


# ------------------------------------------------------------------------------- Planted faults


@dataclass(frozen=True)
class PlantedFault:
    """A wrong line, and the tests that should notice it.

    Attributes:
        name: of the fault.
        file: in which it is planted, relative to the root of the project.
        old: the text that is replaced; it is in the file exactly once.
        new: the text in its place.
        tests: files, folders or names of tests, as pytest takes them.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def occurrences(self, root: Path) -> int:
        """How often the text to replace is in the file; 0 if the file is gone."""
        file = root / self.file
        return file.read_text().count(self.old) if file.exists() else 0


def planted_faults() -> list[PlantedFault]:
    """The faults of `planted_faults.toml`, in its order."""
    content = tomllib.loads(PLANTED_FAULTS.read_text())
    return [
        PlantedFault(**{**fault, "tests": tuple(content["tests"][fault["tests"]])})
        for fault in content["fault"]
    ]


def try_planted_faults(names: Sequence[str]) -> bool:
    """Run the tests of each planted fault, and tell whether all faults were caught.

    Args:
        names: of the faults to try; none means all.
    """
    faults = planted_faults()
    unknown = set(names) - {fault.name for fault in faults}
    if unknown:
        sys.exit(f"no planted fault of this name: {', '.join(sorted(unknown))}")
    faults = [fault for fault in faults if not names or fault.name in names]
    caught = 0
    # Faults of the same tests one after the other, so that these are warmed up once.
    for tests in dict.fromkeys(fault.tests for fault in faults):
        command = [*PYTEST, f"--ignore={GOLDEN_TESTS}", *tests]
        limit = warm_up(command)
        for fault in faults:
            if fault.tests == tests:
                caught += try_planted_fault(fault, command, limit)
    print(f"{caught} of {len(faults)} caught", flush=True)
    return caught == len(faults)


def try_planted_fault(fault: PlantedFault, command: Sequence[str], limit: int) -> bool:
    """Run the tests on one fault, print a line, and tell whether it was caught."""
    occurrences = fault.occurrences(Path())
    if occurrences != 1:
        print(f"STALE    {fault.name}: {fault.file} has its text {occurrences} times", flush=True)
        return False
    file = Path(fault.file)
    start = time.monotonic()
    with planted(file, file.read_text().replace(fault.old, fault.new)):
        verdict = run_tests(command, limit)
    seconds = time.monotonic() - start
    is_caught = verdict.exit_code in (pytest.ExitCode.TESTS_FAILED, *TOO_LONG)
    if is_caught:
        word = "CAUGHT"
    elif verdict.exit_code == pytest.ExitCode.OK:
        word = "SURVIVED"
    else:  # such as an error of syntax: that is no test's merit
        word = "BROKEN"
    how = verdict.first_failure or f"exit code {verdict.exit_code}"
    print(f"{word:8} {fault.name}, {seconds:.0f} s: {how}", flush=True)
    return is_caught


# --------------------------------------------------------------------------------------- Guards


@dataclass(frozen=True)
class Guard:
    """A script that stands for a promise, and a fault that it must find.

    Attributes:
        promise: what holds while the guard finds nothing.
        description: of the fault.
        planted: the fault; it has the name of the guard, and no tests.
        commands: what to run, in order; the last one is the guard.
        line: pattern of the line in which the guard names the fault.
    """

    promise: str
    description: str
    planted: PlantedFault
    commands: tuple[str, ...]
    line: re.Pattern[str]


def guards() -> list[Guard]:
    """The guards of `planted_faults.toml`, in its order."""
    content = tomllib.loads(PLANTED_FAULTS.read_text())
    return [
        Guard(
            promise=entry["promise"],
            description=entry["fault"],
            planted=PlantedFault(entry["name"], entry["file"], entry["old"], entry["new"], ()),
            commands=tuple(entry["run"]),
            line=re.compile(entry["line"]),
        )
        for entry in content["guard"]
    ]


def try_guards(names: Sequence[str]) -> bool:
    """Run each guard on its fault, and tell whether all faults were found.

    Args:
        names: of the guards to try; none means all.
    """
    tried = [guard for guard in guards() if not names or guard.planted.name in names]
    unknown = {*names} - {guard.planted.name for guard in tried}
    if unknown:
        sys.exit(f"no guard of this name: {', '.join(sorted(unknown))}")
    found_count = 0
    for guard in tried:
        with tempfile.TemporaryDirectory(prefix="guard-") as folder:
            copy_project(Path(folder))
            found_count += try_guard(guard, Path(folder))
    print(f"{found_count} of {len(tried)} found", flush=True)
    return found_count == len(tried)


def try_guard(guard: Guard, root: Path) -> bool:
    """Plant the fault in a copy of the project, run the guard, and tell whether it found it."""
    name = guard.planted.name
    occurrences = guard.planted.occurrences(root)
    if occurrences != 1:
        print(f"STALE  {name}: {guard.planted.file} has its text {occurrences} times", flush=True)
        return False
    *preparations, command = guard.commands
    for preparation in preparations:  # on sound code: what the guard works on
        prepared = run_command(preparation, root)
        if prepared.returncode:
            sys.exit(f"cannot prepare: {preparation}: {prepared.stdout[-MAX_SHOWN_CHARACTERS:]}")
    file = root / guard.planted.file
    file.write_text(file.read_text().replace(guard.planted.old, guard.planted.new))
    start = time.monotonic()
    completed = run_command(command, root)
    seconds = time.monotonic() - start
    lines = [line.strip() for line in completed.stdout.splitlines()]
    finding = next((line for line in lines if guard.line.fullmatch(line)), None)
    if finding is None or completed.returncode != 1:
        last = "; ".join(lines[-3:])[-MAX_SHOWN_CHARACTERS:]
        print(
            f"BLIND  {name}, {seconds:.0f} s: exit code {completed.returncode}: {last}", flush=True
        )
        return False
    print(f"FOUND  {name}, {seconds:.0f} s: {finding}", flush=True)
    return True


def run_command(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a copy of the project; stdout has stderr, too."""
    program, *words = shlex.split(command)
    start = [sys.executable, *(() if program == "python" else ("-m", "hierrouter_cli"))]
    imports = os.pathsep.join(str(root / folder) for folder in (".", "cache", "cli"))
    settings = {"PYTHONPATH": imports, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*start, *words],
        cwd=root,
        env={**os.environ, **settings, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


# --------------------------------------------------------------------- Small changes of all kinds


def try_faults(file: Path, sample: int, command: Sequence[str], limit: int) -> None:
    """Run the tests on a sample of a file's faults, and print those that are missed."""
    source = file.read_text()
    candidates = list(faults(source))
    missed = 0
    mutants = Random(0).sample(candidates, min(sample, len(candidates)))
    for name, mutant in mutants:
        with planted(file, mutant):
            verdict = run_tests(command, limit)
        if verdict.exit_code == pytest.ExitCode.OK:
            missed += 1
            before = source.splitlines()
            after = mutant.splitlines()
            print(
                *difflib.unified_diff(before, after, name, lineterm="", n=0), sep="\n", flush=True
            )
    noticed = len(mutants) - missed
    print(f"{file}: {noticed} of {len(mutants)} noticed, {len(candidates)} in all", flush=True)


def faults(source: str) -> Iterator[tuple[str, str]]:
    """Yield (operator, source with the fault) for each distinct fault that changes the program."""
    # Imported here: planted faults need no cosmic-ray.
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

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
