r"""The process that judges programs, and the limits within which it runs them.

A model wrote the program, so it may do anything. Each one runs in a new process with new namespaces
(of users, processes, mounts, network, IPC and host name), as a user without rights, in an empty
folder in memory, without environment, files, network or programs of the machine, and within limits
of time, memory, processes, open files and output. It is ended with everything that it has started.
Only Python's standard library is there. Where one of these limits cannot be set, nothing runs.

    judge process       reads programs as JSON lines, one after the other
    └─ keeper           makes the namespaces and waits for the next one
       └─ first process of the new namespace: makes the folders, watches, and ends all
          └─ the program, then its tests

The program's success is a secret that only arrives after the last test: exit statuses and printed
words tell nothing. Not covered: a program that is written against this file can read the secret
from the memory of its process; and time limits depend on the speed of the machine.

`hierrouter.questions.programs` starts this file as a script. It imports nothing but the standard
library, so that it starts quickly and has nothing of ours in its memory.
"""

import ast
import ctypes
import json
import os
import platform
import resource
import select
import signal
import socket
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

START_S = 60.0  # until the process answers its first question
CPU_LIMIT_S = 5.0  # of a program with its tests; the slowest reference of MBPP took 4
IDLE_LIMIT_S = 1.0  # without any work: a program that sleeps or waits
WALL_LIMIT_S = 20.0
MEMORY_BYTES = 512 << 20  # of address space, for each process
MAX_TASKS = 4  # processes and threads of a program
MAX_OPEN_FILES = 32
MAX_FILE_BYTES = 8 << 20
FOLDER_SIZE = "16m"  # of its folder in memory
FOLDER_FILES = 256
POLL_S = 0.02
MAX_REASON_BYTES = 80
INSIDE_USER = 65534  # nobody; in no namespace it is root
WORK_FOLDER = "/answer"
REPORT_FD = 3
CONFINED = b"+"  # the first byte of a report: all limits are set

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
NAMESPACES = (
    CLONE_NEWUSER
    | CLONE_NEWNS
    | CLONE_NEWPID
    | CLONE_NEWNET
    | CLONE_NEWIPC
    | CLONE_NEWUTS
    | CLONE_NEWCGROUP
)
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
LAST_CAPABILITY = 63
CAPABILITY_VERSION = 0x20080522

AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MOUNT_SETATTR = 442  # on both
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
# System calls that a program may not make: (x86_64, aarch64). No namespace holds all of their
# effects, or they are doors into the kernel that no program of a question needs.
DENIED_CALLS = {
    "socket": (41, 198),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
}
X32_CALLS = 0x40000000  # numbers of another table on x86_64

libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    """Call a function of the C library.

    Raises:
        OSError: it failed; its text names the function.
    """
    result: int = getattr(libc, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(f"{name}: {os.strerror(number)}")
    return result


def _prctl(option: int, value: int) -> None:
    _call("prctl", option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    _call("mount", *texts, ctypes.c_ulong(flags), data.encode())


def main() -> None:
    """Answer each line with `[why it could not be run, whether it is right, why it is not]`."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for line in sys.stdin:
        source, *tests = json.loads(line)
        try:
            answer = ["", *_verdict(source, tests)]
        except OSError as error:
            answer = [str(error), False, ""]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


RIGHT = b"r"
WRONG = b"w"
FAULT = b"f"
UNSHARED = b"u"
MAPPED = b"m"


def _verdict(source: str, tests: Sequence[str]) -> tuple[bool, str]:
    """Run one program in new namespaces.

    Returns:
        whether it is right, and why it is not.

    Raises:
        OSError: the namespaces cannot be made, or a limit cannot be set.
    """
    pipe, keeper_pipe = socket.socketpair()
    keeper = os.fork()
    if keeper == 0:
        with _last_words(keeper_pipe):
            pipe.close()
            _keep(keeper_pipe, source, tests)
    keeper_pipe.close()
    text = bytearray()
    with pipe:
        pipe.settimeout(WALL_LIMIT_S + START_S)
        try:
            kind = pipe.recv(1)
            if kind == UNSHARED:
                _map_users(keeper)
                pipe.sendall(MAPPED)
                kind = pipe.recv(1)
            while part := pipe.recv(4096):
                text += part
        except OSError:
            os.kill(keeper, signal.SIGKILL)  # the first process dies with it, and so do all others
            os.waitpid(keeper, 0)
            raise
    # The keeper ends after the first process, and that one after all others of its namespace.
    os.waitpid(keeper, 0)
    if kind not in (RIGHT, WRONG):
        raise OSError(text.decode() or "the keeper of a program was ended")
    return kind == RIGHT, text.decode()


@contextmanager
def _last_words(pipe: socket.socket) -> Iterator[None]:
    """End this process after a block, with the error that ended it."""
    try:
        yield
    except BaseException as error:
        with suppress(OSError):
            pipe.sendall(FAULT + str(error).encode())
    finally:
        os._exit(1)


def _map_users(keeper: int) -> None:
    """Give the new namespace its users: our own, and nobody if we are root.

    Limits of processes do not hold for root, so that a program must not be root anywhere.
    """
    user = os.geteuid()
    group = os.getegid()
    folder = Path(f"/proc/{keeper}")
    if user == 0:
        with suppress(PermissionError):  # a container without this right
            lines = f"0 0 1\n{INSIDE_USER} {INSIDE_USER} 1\n"
            (folder / "uid_map").write_text(lines)
            (folder / "gid_map").write_text(lines)
            return
    (folder / "setgroups").write_text("deny")
    (folder / "uid_map").write_text(f"{INSIDE_USER} {user} 1\n")
    (folder / "gid_map").write_text(f"{INSIDE_USER} {group} 1\n")


def _keep(pipe: socket.socket, source: str, tests: Sequence[str]) -> None:
    """The keeper: make the namespaces, and start their first process."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Otherwise its files in /proc would not be ours.
    _prctl(PR_SET_DUMPABLE, 1)
    _call("unshare", NAMESPACES)
    pipe.sendall(UNSHARED)
    pipe.recv(1)
    first = os.fork()
    if first == 0:
        with _last_words(pipe):
            _watch(pipe, source, tests)
    pipe.close()
    os.waitpid(first, 0)


def _watch(pipe: socket.socket, source: str, tests: Sequence[str]) -> None:
    """The first process: make the folders, start the program, and tell what became of it.

    When it ends, the kernel ends all other processes of its namespace.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # that is to ignore it, from inside
    devices = os.open("/dev/null", os.O_RDWR)
    _make_root()
    secret = os.urandom(16).hex().encode()
    reading, writing = os.pipe()
    program = os.fork()
    if program == 0:
        os.dup2(devices, 0)  # first, because it may have the number of the report
        os.dup2(writing, REPORT_FD)
        try:
            _confine()
        except BaseException as error:
            os.write(REPORT_FD, b"-" + str(error).encode())
            os._exit(1)
        os.write(REPORT_FD, CONFINED)
        _run_program(source, tests, secret)
    os.close(writing)
    if os.read(reading, 1) != CONFINED:
        raise OSError(f"a limit cannot be set: {os.read(reading, 4096).decode()}")
    report = _observe(program, reading)
    if report.startswith(secret):  # a process that the program started may report, too
        pipe.sendall(RIGHT)
    else:
        reason = report[:MAX_REASON_BYTES].decode("ascii", "replace")
        pipe.sendall(WRONG + reason.encode())


def _observe(program: int, reading: int) -> bytes:
    """Wait for what the program reports, and for its limits.

    Returns:
        the report, else why there is none.
    """
    process = os.pidfd_open(program)
    clock = (~program << 3) | 2  # of the processor time of this process
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.register(process, select.POLLIN)
    started = time.monotonic()
    last_work = started
    used = 0.0
    while True:
        ready = dict(poll.poll(POLL_S * 1000))
        if ready.get(reading, 0) & select.POLLIN:
            return os.read(reading, 4096)
        if process in ready:
            _, status = os.waitpid(program, 0)
            if os.WIFSIGNALED(status):
                return f"ended by signal {os.WTERMSIG(status)}".encode()
            return b"ended before its tests did"
        now = time.monotonic()
        with suppress(OSError):
            cpu = time.clock_gettime(clock)
            if cpu > used:
                last_work = now
                used = cpu
        if used > CPU_LIMIT_S or now - started > WALL_LIMIT_S:
            return b"time limit"
        if now - last_work > IDLE_LIMIT_S:
            return b"waits"


def _make_root() -> None:
    """Make a root that has Python's library and an empty folder, and nothing else of the machine.

    It is a folder of the new root, not the root itself: the kernel lets no process in such a place
    make another namespace of users.
    """
    libraries = _library_folders()
    base = "/tmp"  # noqa: S108 - only a place to mount on
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    old = Path("/old")
    root = Path("/root")
    for folder in (old, root):
        Path(base, folder.name).mkdir()
    pivot_root = PIVOT_ROOT[platform.machine()]
    _call("syscall", pivot_root, base.encode(), f"{base}{old}".encode())
    os.chdir("/")
    for path in libraries:
        source = Path(f"{old}{path}")
        target = Path(f"{root}{path}")
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif not target.exists():  # perhaps it is within another one
            target.mkdir(parents=True)
            _bind(str(source), str(target))
        for name in ("site-packages", "dist-packages"):
            if (target / name).is_dir():
                _mount("tmpfs", str(target / name), "tmpfs", MS_RDONLY, "size=4k,mode=755")
    (root / "dev").mkdir()
    for name in ("null", "zero", "urandom"):
        (root / "dev" / name).touch()
        _mount(f"{old}/dev/{name}", f"{root}/dev/{name}", None, MS_BIND)
    work = Path(f"{root}{WORK_FOLDER}")
    work.mkdir()
    options = f"size={FOLDER_SIZE},nr_inodes={FOLDER_FILES},mode=777"
    _mount("tmpfs", str(work), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)
    if not (root / "tmp").exists():
        (root / "tmp").symlink_to(WORK_FOLDER)
    _call("umount2", str(old).encode(), MNT_DETACH)
    _mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _library_folders() -> list[str]:
    """Folders of shared libraries and of Python's standard library, outer ones first."""
    base = Path(sys.base_prefix).resolve()
    folders = [
        *("/usr/lib", "/usr/lib64", "/lib", "/lib64"),
        *(str(base / name) for name in ("lib", "lib64")),
        str(Path(os.__file__).resolve().parent),
        "/usr/lib/python3",  # packages of Debian
    ]
    return [path for path in dict.fromkeys(folders) if Path(path).is_dir()]


def _bind(source: str, target: str) -> None:
    """Show a folder at another place, to be read only, with what is mounted within it."""
    _mount(source, target, None, MS_BIND | MS_REC)
    settings = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    _call(
        *("syscall", MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE),
        *(ctypes.byref(settings), ctypes.c_size_t(ctypes.sizeof(settings))),
    )


def _confine() -> None:
    """Give up all rights and set all limits, in the process that becomes the program."""
    os.setsid()
    os.dup2(0, 1)
    os.dup2(0, 2)
    os.closerange(REPORT_FD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1] % (1 << 20) + 1)
    os.chroot("/root")
    os.chdir(WORK_FOLDER)
    tasks = MAX_TASKS
    for number in range(LAST_CAPABILITY + 1):
        with suppress(OSError):  # this kernel has fewer of them
            _prctl(PR_CAPBSET_DROP, number)
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(INSIDE_USER, INSIDE_USER, INSIDE_USER)
        os.setresuid(INSIDE_USER, INSIDE_USER, INSIDE_USER)
    else:
        tasks += 2  # the keeper and the first process are the same user's
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    _call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    for limit, value in (
        (resource.RLIMIT_CPU, int(CPU_LIMIT_S) + 1),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_NPROC, tasks),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _filter_calls()
    os.environ.clear()


def _filter_calls() -> None:
    """Let the kernel refuse `DENIED_CALLS`."""
    load, jump_if_equal, jump_if_above, answer = 0x20, 0x15, 0x35, 0x06
    kill, refuse, allow = 0x80000000, 0x00050001, 0x7FFF0000  # refuse: as not permitted
    machine = platform.machine()
    column = 0 if machine == "x86_64" else 1
    rules = [(load, 0, 0, 4), (jump_if_equal, 1, 0, AUDIT_ARCHITECTURES[machine])]
    rules += [(answer, 0, 0, kill), (load, 0, 0, 0)]
    rules += [(jump_if_above, 0, 1, X32_CALLS), (answer, 0, 0, kill)]
    for numbers in DENIED_CALLS.values():
        rules += [(jump_if_equal, 0, 1, numbers[column]), (answer, 0, 0, refuse)]
    rules.append((answer, 0, 0, allow))

    class Rule(ctypes.Structure):
        _fields_ = (
            ("code", ctypes.c_uint16),
            ("if_true", ctypes.c_uint8),
            ("if_false", ctypes.c_uint8),
            ("value", ctypes.c_uint32),
        )

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_uint16), ("rules", ctypes.POINTER(Rule)))

    table = (Rule * len(rules))(*(Rule(*rule) for rule in rules))
    program = Filter(len(rules), table)
    _call(
        *("prctl", PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER)),
        *(ctypes.byref(program), ctypes.c_ulong(0), ctypes.c_ulong(0)),
    )


# Types that annotations name, often without an import because a prompt had it.
ANNOTATIONS = (
    *("Any", "Callable", "Dict", "FrozenSet", "Generator", "Iterable", "Iterator", "List"),
    *("Mapping", "Optional", "Sequence", "Set", "Tuple", "Union"),
)


def _run_program(source: str, tests: Sequence[str], secret: bytes) -> None:
    """Run the program, then its tests; report the secret, or the kind of the error."""
    report: Callable[[bytes], int] = partial(os.write, REPORT_FD)
    leave = os._exit
    read = compile
    run = exec
    module = types.ModuleType(ANSWER_MODULE)
    module.__dict__.update({name: getattr(typing, name) for name in ANNOTATIONS})
    sys.modules[ANSWER_MODULE] = module
    try:
        checks = [read(_with_fair_equality(test), "test", "exec") for test in tests]
        code = read(source, "answer", "exec", dont_inherit=True)
        if "random" in source:
            import random

            random.seed(0)
        run(code, module.__dict__)
        module.__dict__[FAIR_EQUALITY] = _are_equal
        for check in checks:
            sys.settrace(None)
            sys.setprofile(None)
            run(check, module.__dict__)
    except BaseException as error:
        report(_name_of(error))
        leave(1)
    report(secret)
    leave(0)


def _name_of(error: BaseException) -> bytes:
    try:
        name = type.__dict__["__name__"].__get__(type(error))
        return ascii(name)[1:-1].encode()[:MAX_REASON_BYTES]
    except BaseException:
        return b"an error"


# An answer's class can be equal to everything. A value that a test compares with a number, a text
# or a list must be equal by the rules of numbers, texts and lists, not by those of the answer.

ANSWER_MODULE = "answer"  # not __main__: examples of use do not run
FAIR_EQUALITY = "__are_equal__"
PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))
MAX_COMPARED_DEPTH = 50


class _FairEquality(ast.NodeTransformer):
    """Let `a == b` ask `_are_equal` in the tests, where one side is a literal."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Eq):
            return node
        function = ast.Name(FAIR_EQUALITY, ast.Load())
        return ast.copy_location(ast.Call(function, [node.left, node.comparators[0]], []), node)


def _with_fair_equality(test: str) -> ast.Module:
    return ast.fix_missing_locations(_FairEquality().visit(ast.parse(test)))


def _are_equal(left: object, right: object) -> object:
    if _is_foreign(left, right, MAX_COMPARED_DEPTH):
        return False
    return left == right


def _is_foreign(left: object, right: object, depth: int) -> bool:
    """Whether a class of the answer decides if a value is equal to a plain one."""
    if type(left) in PLAIN_TYPES or type(right) in PLAIN_TYPES:
        return _has_own_equality(left) or _has_own_equality(right)
    if depth == 0:
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        pairs = [(left[key], right[key]) for key in left if key in right]
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        pairs = list(zip(left, right, strict=False))
    else:
        return _has_own_equality(left) != _has_own_equality(right)
    return any(_is_foreign(*pair, depth - 1) for pair in pairs)


def _has_own_equality(value: object) -> bool:
    """Whether the equality of a value is a function of the answer."""
    method = getattr(type(value), "__eq__", None)
    if not isinstance(method, types.FunctionType):
        return False
    return method.__globals__.get("__name__") == ANSWER_MODULE


if __name__ == "__main__":
    main()
