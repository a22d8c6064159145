"""Programs in answers: read, and judged by the tests of their questions.

They run in confined processes, see `hierrouter.questions.confinement`.
"""

import ast
import json
import os
import platform
import re
import subprocess
import symtable
import sys
import textwrap
import warnings
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from queue import SimpleQueue
from typing import Self

from hierrouter.questions import confinement

# Raise it whenever the same program could get another verdict.
JUDGE_VERSION = "1"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Program:
    """A program with its tests.

    Attributes:
        source: Python.
        tests: statements that run after it, in order and in its namespace, such as assertions.
    """

    source: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """The result of a program and its tests.

    Attributes:
        is_right: whether it passed all its tests.
        reason: why it did not, in a few words; empty if it did.
    """

    is_right: bool
    reason: str = ""


NO_PROGRAM = Verdict(False, "no program")


class NoConfinement(Exception):
    """Programs cannot be confined on this machine, with the reason; none was run."""


# Read the program in an answer.

MAX_PROGRAM_CHARACTERS = 100_000
MAX_READ_CHARACTERS = 1_000_000  # of an answer
MAX_BLOCKS = 200
FENCE_PATTERN = re.compile(
    r"^([ \t]*)(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n`]*\n(.*?)(?:^[ \t]*\2[`~]*[ \t]*$|(\Z))",
    re.M | re.S,
)
PYTHON_FENCES = ("", "python", "py", "python3", "python2", "python3.11", "code")
# A line at the margin that begins, or continues, code without a fence.
CODE_LINE_PATTERN = re.compile(
    r"(?:async\s+)?(?:def|class)\s+\w+|import\s+\w|from\s+[\w.]+\s+import\b|@\w|[A-Za-z_]\w*\s*=[^=]"
    r"|(?:if|elif|for|while|with|try|else|except|finally)\b[^\n]*:|[)\]}#]|assert\s|print\("
)
# Where models that complete texts end their code.
CODE_END_PATTERN = re.compile(r"^\[DONE\]|^<\|", re.M)


def program_of(answer: str, tests: Sequence[str] = ()) -> str:
    """The program in an answer: its last block that defines what the tests call.

    If none does, it is the last one that defines a function or a class. Blocks are fenced.
    Definitions, imports and assignments of others that it needs come before it. Blocks of other
    languages, examples of use and blocks that are no Python are left out. A block that is never
    closed counts only if there is no closed one. Without a fence, lines of code between prose are
    read.

    Args:
        answer: without thoughts.
        tests: of the question.

    Returns:
        Python; empty if the answer has no program.
    """
    answer = answer[:MAX_READ_CHARACTERS].replace("\r\n", "\n").replace("\N{NO-BREAK SPACE}", " ")
    end = CODE_END_PATTERN.search(answer)
    if end and answer[: end.start()].strip():
        answer = answer[: end.start()]
    closed: list[str] = []
    unclosed: list[str] = []
    size = 0
    for match in islice(FENCE_PATTERN.finditer(answer), MAX_BLOCKS):
        _, _, language, code, is_open = match.groups()
        size += len(code)
        if language.lower() in PYTHON_FENCES and size <= MAX_PROGRAM_CHARACTERS:
            (closed if is_open is None else unclosed).append(textwrap.dedent(code))
    called = {name for test in tests for name in _names_in(test)}
    for blocks in (closed, unclosed, _bare_blocks(answer)):
        program = _joined(blocks, called)
        if program:
            return program[: MAX_PROGRAM_CHARACTERS + 1]
    return ""


def _joined(blocks: Sequence[str], called: Set[str]) -> str:
    """The last block that defines one of the names `called`, after what it needs of the others."""
    parsed = [(block, _statements(block)) for block in blocks]
    defining = [
        number for number, (_, statements) in enumerate(parsed) if _has(statements, DEFINITIONS)
    ]
    if not defining:
        return "\n\n".join(block for block, statements in parsed if _has(statements, NAMING))
    main = max(
        (
            number
            for number in defining
            if any(called & _bound_names(statement) for statement in parsed[number][1])
        ),
        default=defining[-1],
    )
    program, statements = parsed.pop(main)
    others = [statement for _, block in parsed for statement in block]
    if not others:
        return program
    try:
        return "\n\n".join((*_needed(others, program, statements), program))
    except PARSER_ERRORS:  # too deep
        return program


def _needed(others: Sequence[ast.stmt], program: str, statements: Sequence[ast.stmt]) -> list[str]:
    """The definitions, imports and assignments that a program needs, and what these need.

    Args:
        others: statements of the other blocks.
        program: the block of the program.
        statements: of the program.
    """
    bound = {name for statement in statements for name in _bound_names(statement)}
    missing = _global_names(program) - bound
    needed = []
    for statement in reversed(others):
        names = _bound_names(statement)
        if missing.isdisjoint(names):
            continue
        code = ast.unparse(statement)
        needed.append(code)
        bound |= names
        missing = (missing | _global_names(code)) - bound
    return needed[::-1]


def _bound_names(statement: ast.stmt) -> set[str]:
    """The names that a definition, an import or an assignment gives; empty for other statements."""
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    if isinstance(statement, IMPORTS):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    if isinstance(statement, ASSIGNMENTS):
        nodes = ast.walk(statement)
        return {
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
    return set()


def _global_names(code: str) -> set[str]:
    """The names of a module that its code reads, in functions and outside."""
    names = set()
    tables = [symtable.symtable(code, "answer", "exec")]
    while tables:
        table = tables.pop()
        is_module = table.get_type() == "module"
        names |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (is_module or symbol.is_global())
        }
        tables += table.get_children()
    return names


def _has(statements: Sequence[ast.stmt], kinds: tuple[type, ...]) -> bool:
    return any(isinstance(statement, kinds) for statement in statements)


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
ASSIGNMENTS = (ast.Assign, ast.AnnAssign)
NAMING = (*DEFINITIONS, *IMPORTS, *ASSIGNMENTS)


def _bare_blocks(answer: str) -> list[str]:
    """Runs of lines that look like code, without the prose around them."""
    if len(answer) > MAX_PROGRAM_CHARACTERS:
        return []
    blocks: list[list[str]] = [[]]
    for line in answer.split("\n"):
        is_inside = bool(blocks[-1]) and (not line.strip() or line[0] in " \t")
        if is_inside or CODE_LINE_PATTERN.match(line):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [code for code in ("\n".join(lines) for lines in blocks[:MAX_BLOCKS]) if code.strip()]


def _statements(code: str) -> list[ast.stmt]:
    """The statements of a text; empty if it is no Python."""
    try:
        return _parsed(code.replace("\r\n", "\n")).body
    except PARSER_ERRORS:
        return []


# Of nesting that is too deep, the last two; of a NUL the second one.
PARSER_ERRORS = (SyntaxError, ValueError, MemoryError, RecursionError)


def _parsed(code: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of the author of the text, not of our user
        return ast.parse(code)


def python_fault(text: str) -> str | None:
    """Why a text is no Python; None if it is."""
    try:
        _parsed(text)
    except SyntaxError as error:
        return f"line {error.lineno}"
    except PARSER_ERRORS as error:
        return type(error).__name__
    return None


def _names_in(code: str) -> set[str]:
    """All names in a text; empty if it is no Python."""
    nodes = [node for statement in _statements(code) for node in ast.walk(statement)]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def is_code(reference: str) -> bool:
    """Whether a reference answer is a program: Python that defines a function or a class."""
    if "def " not in reference and "class " not in reference:
        return False
    if len(reference) > MAX_PROGRAM_CHARACTERS:
        return False
    return _has(_statements(reference), DEFINITIONS)


def signature_of(program: str, tests: Sequence[str]) -> str:
    """The first lines of the functions that tests call, such as `def area(r):`.

    Args:
        program: a reference.
        tests: of the question.

    Returns:
        A line for each of these functions, in the order of the program; empty if there is none.
    """
    names = {name for test in tests for name in _names_in(test)}
    lines = [
        f"def {statement.name}({ast.unparse(statement.args)}):"
        for statement in _statements(program)
        if isinstance(statement, ast.FunctionDef) and statement.name in names
    ]
    return "\n".join(dict.fromkeys(lines))


# Ask judge processes.


def judge(programs: Sequence[Program], workers: int | None = None) -> list[Verdict]:
    """Run programs and their tests, several side by side.

    Args:
        programs: any number.
        workers: how many run at a time; None is one for each core that this process may use.

    Returns:
        A verdict for each.

    Raises:
        NoConfinement: programs cannot be confined here; none was run.
    """
    if not programs:
        return []
    require_confinement()
    workers = min(workers or len(os.sched_getaffinity(0)), len(programs))
    idle: SimpleQueue[JudgeProcess] = SimpleQueue()

    def ask(program: Program) -> Verdict:
        process = idle.get()
        try:
            return process.verdict(program)
        finally:
            idle.put(process)

    with ExitStack() as started:
        judges = [started.enter_context(JudgeProcess()) for _ in range(workers)]
        for process in judges:
            idle.put(process)
        with ThreadPoolExecutor(workers) as pool:
            try:
                return list(pool.map(ask, programs))
            finally:  # after Ctrl-C, too, no program is waited for
                pool.shutdown(wait=False, cancel_futures=True)
                for process in judges:
                    process.end()


@cache
def require_confinement() -> None:
    """Require that programs can be confined on this machine: a program that probes it is run.

    Raises:
        NoConfinement: with the reason.
    """
    if sys.platform != "linux":
        raise NoConfinement(f"programs are confined on Linux only, this is {sys.platform}")
    if platform.machine() not in confinement.AUDIT_ARCHITECTURES:
        raise NoConfinement(f"no filter of system calls for {platform.machine()}")
    with JudgeProcess() as process:
        verdict = process.verdict(Program(PROBE, ()))
    if not verdict.is_right:
        raise NoConfinement(f"a limit does not hold: {verdict.reason}")


# It fails where a program could do something that it may not.
PROBE = r"""
import os, resource, signal, socket

class Open(Exception):
    pass

def refused(attempt, *arguments):
    try:
        attempt(*arguments)
    except (OSError, ValueError, RuntimeError, MemoryError):
        return True
    return False

def forks():
    children = []
    try:
        for _ in range(64):
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

problems = [
    name
    for name, holds in {
        "environment": set(os.environ) <= {"LC_CTYPE"},
        "user": os.getuid() != 0 and os.geteuid() != 0,
        "processes": os.getpid() < 100 and refused(forks),
        "network": refused(socket.socket) and refused(socket.socket, socket.AF_UNIX),
        "files": not any(map(os.path.exists, ("/etc", "/proc", "/sys", "/var", "/bin/sh", "/old"))),
        "folder": os.listdir() == [] and os.getcwd() == "/answer",
        "root": refused(os.mkdir, "/x") and refused(os.chroot, "."),
        "disk": refused(lambda: open("x", "wb").write(bytes(1 << 25))),
        "memory": refused(bytes, 1 << 30),
        "open files": resource.getrlimit(resource.RLIMIT_NOFILE)[1] <= 64,
    }.items()
    if not holds
]
if problems:
    raise type(", ".join(problems), (Exception,), {})
"""


class JudgeProcess:
    """A process that runs one program after the other; as a context, it ends at the end of it."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            NoConfinement: it cannot be started.
        """
        command = [sys.executable, "-P", "-s", "-S", "-B", confinement.__file__]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own file, no shell
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="ascii",
                cwd="/",
                # No variable of the user's, and sets in the same order at each run.
                env={"PYTHONHASHSEED": "0"},
                start_new_session=True,  # Ctrl-C must not end it
            )
        except OSError as error:
            raise NoConfinement(f"the judge does not start: {error.strerror}") from error

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def verdict(self, program: Program) -> Verdict:
        """Run a program and its tests.

        Raises:
            NoConfinement: it could not be confined, and was not run.
        """
        if not program.source.strip() or len(program.source) > MAX_PROGRAM_CHARACTERS:
            return NO_PROGRAM
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(json.dumps([program.source, *program.tests]) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise NoConfinement(f"the judge was ended from outside: {self._process.wait()}")
        fault, is_right, reason = json.loads(line)
        if fault:
            raise NoConfinement(fault)
        return Verdict(is_right, reason)

    def end(self) -> None:
        """Kill it, and with it a program that runs; a thread that waits for a verdict goes on."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it and close its pipes."""
        self.end()
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
