"""Programs in answers: what is read as one, and what confined programs can do."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierrouter.questions import confinement, programs
from hierrouter.questions.programs import (
    NO_PROGRAM,
    JudgeProcess,
    NoConfinement,
    Program,
    Verdict,
    is_code,
    judge,
    program_of,
    signature_of,
)

ADD = "def add(a, b):\n    return a + b"
TESTS = ("assert add(1, 2) == 3", "assert add(-1, 1) == 0")

RIGHT = Verdict(True)

# Reading.


@pytest.mark.parametrize(
    "answer",
    [
        ADD,
        f"```python\n{ADD}\n```",
        f"```\n{ADD}\n```",
        f"```py\n{ADD}\n",  # never closed
        f"~~~Python\n{ADD}\n~~~",
        f"Sure!\n\n```python\r\n{ADD}\r\n```\r\nIt adds. Use it as:\n```python\nprint(add(1))\n```",
        f"```bash\npip install add\n```\n```python\n{ADD}\n```\n```text\n3\n```",
        f"1. Write:\n   ```python\n   {ADD.replace(chr(10), chr(10) + '   ')}\n   ```",
        f"First:\n```python\ndef add(a, b):\n    return 0\n```\nBetter:\n```python\n{ADD}\n```",
        f"```python\nONE = 1\n```\nand\n```python\n{ADD}\n```",
        f"Here is the function:\n\n{ADD}\n\nIt returns the sum, since a + b is one.",
        f"Here is it: {chr(10)}import math\n\n{ADD}\nThis works from the first try.",
        f"{ADD}\n[DONE]\nassert add(1) == 5\ndef add(a, b): return 0",
        ADD.replace(" ", "\N{NO-BREAK SPACE}"),
        f"Like:\n```python\nn = int(input())\nONE = 1\nprint(n)\n```\n```python\n{ADD} * ONE\n```",
        f"```python\nrest = whole % 2\nimport nowhere\n```\nSo:\n```python\n{ADD}\n```",
        "```python\nfrom operator import add as plus\nZERO = len('')\n```\n"
        "```python\ndef sub(a: Node): 1\ndef more(a):\n    return plus(a, ZERO)\n```\n"
        "```python\ndef add(a, b):\n    return more(a) + b\n```",
        f"```python\n{ADD}\n```\nTests:\n```python\ndef test(): assert add(1, 1) == 3\ntest()\n```",
        f"```python\n{ADD} + rest()\n```\nwith\n```python\ndef rest(): return 0\n```",
        f"```python\n{ADD}\n```\nAn example:\n```python\nx = int(input())\nprint(add(x, 1))\n```",
        "```python\ndef add(a: List[int], b: Any) -> Optional[int]:\n    return a + b\n```",
        f"```python\n>>> add(1, 2)\n3\n```\n```python\n{ADD}\n```",
        f"```python\n{ADD}\nif __name__ == '__main__':\n    print(add(int(input()), 1))\n```",
    ],
)
def test_the_program_in_an_answer_is_run(answer: str, judging: JudgeProcess) -> None:
    assert judging.verdict(Program(program_of(answer, TESTS), TESTS)) == RIGHT


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I cannot write that.",
        "Add the numbers from the list and import them.",
        "```\nnot python at all\n```",
        "```python\nprint(3)\n```",
        "```json\n{}\n```",
        "```python\ndef add(a, b):\n    return (a +\n```",
        "```" * 50_000,
        "def " * 50_000,
        "(" * 500_000,
        "```python\n" + "(" * 50_000,
        "x = " + "-" * 50_000 + "1",
    ],
)
def test_an_answer_without_a_program_has_none(answer: str) -> None:
    started = time.process_time()
    source = program_of(answer, TESTS)
    assert time.process_time() - started < 2
    assert "add" not in source


def test_another_name_than_the_tests_call_is_wrong(judging: JudgeProcess) -> None:
    source = program_of(f"```python\n{ADD.replace('add', 'plus')}\n```")
    assert judging.verdict(Program(source, TESTS)).reason == "NameError"
    assert judging.verdict(Program("no program", TESTS)).reason == "SyntaxError"
    assert judging.verdict(Program("", TESTS)) == NO_PROGRAM


def test_the_last_of_two_programs_counts(judging: JudgeProcess) -> None:
    answer = f"```python\n{ADD}\n```\nor\n```python\n{ADD.replace('+', '-')}\n```"
    assert judging.verdict(Program(program_of(answer), TESTS)).reason == "AssertionError"


def test_a_reference_that_is_a_program() -> None:
    for text in (ADD, "class A:\r\n    pass\r\n", f"import math\n{ADD}"):
        assert is_code(text)
    for text in ("", "def", "5", "x = 1", "the class of def ", "class action", "def add(", "(B)"):
        assert not is_code(text)


def test_the_signature_of_what_tests_call() -> None:
    program = f"import re\ndef helper(x):\n    return x\n{ADD}\ndef sub(a, *b, c=1): return a"
    assert signature_of(program, TESTS) == "def add(a, b):"
    assert signature_of(program, ("assert sub(add(1, 2)) == 3",)) == (
        "def add(a, b):\ndef sub(a, *b, c=1):"
    )
    assert signature_of("def (", TESTS) == signature_of(ADD, ("assert (",)) == ""


# Running.


# AppArmor and seccomp may refuse namespaces at each of these steps.
UNAVAILABLE = (
    *("unshare:", "mount:", "[Errno 1]", "[Errno 13]", "no filter of system calls"),
    "programs are confined on Linux only",
)


def skip_without_namespaces() -> None:
    """Skip where the kernel makes no namespaces; a limit that does not hold is a failure."""
    try:
        programs.require_confinement()
    except NoConfinement as error:
        if not str(error).startswith(UNAVAILABLE):
            raise
        pytest.skip(f"no user namespaces here: {error}")


@pytest.fixture(scope="module")
def judging() -> Iterator[JudgeProcess]:
    skip_without_namespaces()
    with JudgeProcess() as process:
        yield process


HOSTILE = {
    "forks": "import os\nwhile True:\n    os.fork()",
    "forks and goes on": (
        "import os, time\nfor _ in range(50):\n    try:\n        if os.fork() == 0:\n"
        "            while True: pass\n    except OSError: pass\nwhile True: pass"
    ),
    "starts threads": (
        "import threading, time\nwhile True:\n"
        "    threading.Thread(target=time.sleep, args=(99,)).start()"
    ),
    "sleeps": "import time\ntime.sleep(1000)",
    "sleeps briefly": "import time\nwhile True: time.sleep(0.9)",
    "loops": "while True: pass",
    "loops in C": "sum(iter(int, 1))",
    "reads": "x = input()",
    "reads stdin": "import sys\nassert sys.stdin.read(1)",
    "fills the disk": (
        "n = 0\nwhile True:\n    with open(f'{n}', 'wb') as file: file.write(bytes(1 << 20))\n"
        "    n += 1"
    ),
    "makes files": "n = 0\nwhile True:\n    open(str(n), 'w').close()\n    n += 1",
    "prints": "while True: print('x' * (1 << 20))",
    "opens sockets": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1)",
    "opens unix sockets": "import socket\nsocket.socket(socket.AF_UNIX)",
    "kills its parent": (
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nwhile True: pass"
    ),
    "interrupts its parent": (
        "import os, signal\nfor number in range(1, 32):\n    try: os.kill(os.getppid(), number)\n"
        "    except OSError: pass\nwhile True: pass"
    ),
    "kills all": "import os, signal\nos.kill(-1, signal.SIGKILL)\nassert 0",
    "ignores signals": (
        "import signal\nfor number in set(range(1, 32)) - {9, 19}:\n"
        "    signal.signal(number, signal.SIG_IGN)\nwhile True: pass"
    ),
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "detaches": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        time.sleep(1000)\n    os._exit(0)\nraise SystemExit(0)"
    ),
    "takes all memory": "x = []\nwhile True: x.append(bytearray(1 << 24))",
    "multiplies": "x = 'a' * (1 << 62)",
    "takes memory in children": (
        "import os\nfor _ in range(9):\n    try: os.fork()\n    except OSError: break\n"
        "x = []\nwhile True: x.append(bytearray(1 << 22))"
    ),
    "deletes files": (
        "import os, shutil\nshutil.rmtree('/', ignore_errors=True)\nos.remove('FILE')"
    ),
    "reads files": "open('FILE').read()",
    "reads passwords": "open('/etc/passwd').read()",
    "reads the environment": "import os\nassert os.environ.get('SECRET_KEY') or os.environ['PATH']",
    "looks for processes": "import os\nos.listdir('/proc')",
    "starts programs": "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true'], check=True)",
    "runs itself": "import sys, os\nos.execv('PYTHON', ['python', '-c', ''])",
    "exits": "import sys\nsys.exit(0)",
    "exits hard": "import os\nos._exit(0)",
    "exits in a test": "import os\ndef add(a, b): os._exit(0)",
    "exits well in a test": "import sys\ndef add(a, b): sys.exit(0)",
    "quits": "quit()",
    "aborts": "import os\nos.abort()",
    "claims success": (
        "import os\nprint('right')\nfor fd in range(20):\n    try: os.write(fd, b'right')\n"
        "    except OSError: pass\nos._exit(0)"
    ),
    "repeats what it may hear": (
        "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'+right' + b'0' * 26)\n"
        "    except OSError: pass\nos._exit(0)"
    ),
    "patches assertions": (
        "import builtins, sys, os\nbuiltins.AssertionError = type('E', (BaseException,), {})\n"
        "sys.excepthook = lambda *error: os._exit(0)\ndef add(a, b): return 0"
    ),
    "patches exits": (
        "import os, sys, builtins\nos._exit = os.write = lambda *_: None\n"
        "builtins.compile = builtins.exec = lambda *_, **__: None\ndef add(a, b): return 0"
    ),
    "jumps over tests": (
        "import sys\ndef trace(frame, event, _):\n"
        "    if 'source' in frame.f_locals: frame.f_lineno += 1\n    return trace\n"
        "sys.settrace(trace)\ndef add(a, b): return 0"
    ),
    "equals everything": (
        "class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()"
    ),
    "equals everything inside": (
        "class Any(int):\n    def __eq__(self, other): return True\n"
        "    __hash__ = None\ndef add(a, b): return Any()"
    ),
    "becomes root": "import os\nos.setuid(0)",
    "leaves its root": "import os\nos.chroot('.')\nassert 0",
    "makes namespaces": ("import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0"),
    "shares memory": "import ctypes\nassert ctypes.CDLL(None).shmget(0, 1 << 30, 0o1600) >= 0",
    "mounts": "import ctypes\nassert ctypes.CDLL(None).mount(b't', b'/tmp', b'tmpfs', 0, 0) == 0",
    "raises limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (99, 99))\nassert 0"
    ),
    "overflows the stack": "def add(a, b): return add(a, b)",
    "overflows the parser": "x = " + "(" * 99_000,
    "is no python": "def add(a, b) return a",
    "has a null": "def add(a, b):\0 return a + b",
    "has a surrogate": "x = '\ud83d'\nassert 0",
    "is called right": "raise type('right', (Exception,), {})",
    "equals everything in a list": (
        "class Any:\n    def __eq__(self, other): return True\nclass Row(list): pass\n"
        "def add(a, b): return 3 if a else Any()\n__are_equal__ = lambda *_: True\n"
        "def add(a, b): return Any()"
    ),
    "raises oddly": (
        "class Odd(type):\n    @property\n    def __name__(cls): raise SystemExit(0)\n"
        "class Error(BaseException, metaclass=Odd): pass\nraise Error"
    ),
}


def descendants(pid: int) -> set[int]:
    """All processes that a process has started, and those that they have started."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parents[int(folder.name)] = int(
                    (folder / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:  # it has ended
                continue
    members = {pid}
    while more := {child for child, parent in parents.items() if parent in members} - members:
        members |= more
    return members - {pid}


def wait_for_descendants(pid: int, count: int) -> set[int]:
    deadline = time.monotonic() + 60
    while len(members := descendants(pid)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(members) == count
    return members


def wait_for_end(pids: set[int]) -> None:
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def traces(judging: JudgeProcess) -> list[object]:
    """What programs could leave behind."""
    kernel = ("/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem", "/proc/self/mountinfo")
    processes = descendants(judging.pid)
    return [processes, *(Path(name).read_text().count("\n") for name in kernel)]


# Each ends by the same limit of time as "sleeps" and "loops" do, only later.
SLOW_PROGRAMS = ("sleeps briefly", "forks and goes on", "ignores signals", "loops in C")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW_PROGRAMS else [])
        for name in HOSTILE
    ],
)
def test_a_hostile_program_is_wrong_and_leaves_nothing(
    name: str, judging: JudgeProcess, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("kept")
    tmp_path.chmod(0o777)
    kept.chmod(0o666)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.01)
        port = str(listener.getsockname()[1])
        source = HOSTILE[name].replace("PORT", port).replace("FILE", str(kept))
        source = source.replace("PYTHON", os.path.realpath(sys.executable))
        before = traces(judging)
        verdict = judging.verdict(Program(source, TESTS))
        assert not verdict.is_right
        assert verdict.reason
        assert verdict.reason.isprintable()
        assert traces(judging) == before
        with pytest.raises(TimeoutError):
            listener.accept()
    assert kept.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [kept]
    assert judging.verdict(Program(ADD, TESTS)) == RIGHT  # the next one is judged as always


def test_what_programs_may_do(judging: JudgeProcess) -> None:
    source = """
from __future__ import annotations
import collections, dataclasses, datetime, decimal, enum, fractions, functools, heapq, itertools
import json, math, random, re, string, sys, tempfile, threading, typing
@dataclasses.dataclass
class Point:
    x: int
class Color(enum.Enum):
    RED = 1
sys.setrecursionlimit(20_000)
def deep(n): return n and 1 + deep(n - 1)
def threaded():
    results = []
    thread = threading.Thread(target=lambda: results.append(deep(5000)))
    thread.start(); thread.join()
    return results
def written():
    with tempfile.TemporaryFile('w+') as file:
        file.write('x'); file.seek(0)
        return file.read()
"""
    tests = (
        "import copy\norigin = Point(0)",
        "assert copy.copy(origin) == origin == Point(0) and Point(1) != origin",
        "assert Color(1) is Color.RED and threaded() == [5000] and written() == 'x'",
        "assert collections.Counter('aab') == {'a': 2, 'b': 1}",
        "assert [float('nan')] != [1] and collections.OrderedDict(a=1) == {'a': 1}",
        "assert decimal.Decimal('1.0') == 1 and math.isclose(.1 + .2, .3)",
        "assert __name__ != '__main__'",
        "assert [Point(1), {'a': (Point(2),)}] == [Point(1), {'a': (Point(2),)}]",
        "assert not [Point(1)] == [1] and fractions.Fraction(2, 2) == 1",
    )
    assert judging.verdict(Program(source, tests)) == RIGHT


def test_the_same_program_gets_the_same_verdict(judging: JudgeProcess) -> None:
    source = "import random\nvalues = [list({'a', 'b', 'c', 'd'}), random.random()]"
    source += "\nraise type(repr(values), (Exception,), {})"
    [shown] = {judging.verdict(Program(source, ())).reason for _ in range(3)}
    assert len(shown) > 20


def test_many_programs_are_judged_side_by_side_in_order(judging: JudgeProcess) -> None:
    wrong = Program(ADD.replace("+", "-"), TESTS)
    verdicts = judge([Program(ADD, TESTS), wrong, Program("", TESTS)] * 4, workers=2)
    assert verdicts == [RIGHT, Verdict(False, "AssertionError"), NO_PROGRAM] * 4
    assert judge([]) == []


def test_programs_end_with_who_asked_for_them(judging: JudgeProcess) -> None:
    script = (
        "from hierrouter.questions.programs import *\nprint(flush=True)\n"
        "JudgeProcess().verdict(Program('import time\\nwhile True: time.sleep(.5)', ()))"
    )
    asker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert asker.stdout
    asker.stdout.readline()
    members = wait_for_descendants(asker.pid, 4)
    asker.send_signal(signal.SIGKILL)
    asker.wait()
    asker.stdout.close()
    wait_for_end(members)


def test_an_interrupted_judgement_waits_for_no_program(judging: JudgeProcess) -> None:
    script = (
        "from hierrouter.questions.programs import *\nrequire_confinement()\nprint(flush=True)\n"
        "judge([Program('import time\\nwhile True: time.sleep(.5)', ())] * 50, workers=2)"
    )
    asker = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert asker.stdout
    asker.stdout.readline()
    members = wait_for_descendants(asker.pid, 8)
    asker.send_signal(signal.SIGINT)
    _, told = asker.communicate(timeout=15)
    assert told.rstrip().endswith(b"KeyboardInterrupt")
    wait_for_end(members)


def test_nothing_runs_where_programs_cannot_be_confined(
    judging: JudgeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where user namespaces are switched off: within one that may have no others.
    script = (
        "import json\nfrom hierrouter.questions.programs import *\n"
        'try: judge([Program(\'open("/tmp/bare", "w")\', ())])\n'
        "except NoConfinement as error: print(error)"
    )
    limit = "/proc/sys/user/max_user_namespaces"
    command = ["unshare", "-Ur", "sh", "-c", f'echo 0 > {limit}; exec "$0" -c "$1"']
    done = subprocess.run([*command, sys.executable, script], capture_output=True, text=True)
    assert done.stdout == "unshare: No space left on device\n"
    assert not Path("/tmp/bare").exists()
    programs.require_confinement.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NoConfinement, match="on Linux only, this is darwin"):
        judge([Program(ADD, TESTS)])
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(programs, "PROBE", "raise KeyError")
    with pytest.raises(NoConfinement, match="a limit does not hold: KeyError"):
        judge([Program(ADD, TESTS)])


def test_a_user_without_rights_confines_programs_too(judging: JudgeProcess) -> None:
    python = Path("/usr/bin/python3")
    if os.geteuid() or not python.exists():
        pytest.skip("needs root, and a Python for all users")
    lines = [
        json.dumps([HOSTILE[name], *TESTS]) for name in ("exits hard", "exits", "becomes root")
    ]
    lines += [json.dumps([programs.PROBE]), json.dumps([ADD, *TESTS])]
    done = subprocess.run(
        ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", python, "-S", "-"],
        input=Path(confinement.__file__).read_text().replace("sys.stdin", repr(lines)),
        capture_output=True,
        text=True,
        cwd="/",
        env={},
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        ["", False, "ended before its tests did"],
        ["", False, "SystemExit"],
        ["", False, "OSError"],
        ["", True, ""],
        ["", True, ""],
    ]
