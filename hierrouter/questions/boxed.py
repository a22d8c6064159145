"""Is the final LaTeX expression of a response the reference's?"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock

from hierrouter.questions.answers import boxed_text, cued_text, plain_number, sentences
from hierrouter_cache.errors import WorldError

# How a worker ends by an answer: its processor time is up, or its stack.
TOO_MUCH = (-signal.SIGPROF, -signal.SIGSEGV)
WORKER = Path(__file__).with_name("judge_worker.py")


class Judge:
    """Asks one worker process, started at the first question; safe to use from threads."""

    def __init__(self, worker: Path = WORKER) -> None:
        self._worker = worker
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def equivalent(self, reference: str, found: str) -> bool:
        """Whether `found` is equivalent to `reference`; false where that cannot be told.

        Raises:
            WorldError: the worker does not start, or was ended from outside.
        """
        with self._lock:
            # Held again only after an answer: one that was interrupted would answer late.
            process, self._process = self._process or self._started(), None
            if answer := _ask(process, json.dumps([reference, found])):
                self._process = process
                return answer == "1"
            if (ended := process.wait()) not in TOO_MUCH:
                raise WorldError(f"scorer boxed was ended from outside: {ended}; run it again")
            return False

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(  # noqa: S603 - our own file, no shell
            [sys.executable, "-P", str(self._worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
            start_new_session=True,  # a Ctrl-C is not meant for it
        )
        # Without this a worker that never runs would pass for wrong answers.
        if not _ask(process, json.dumps(["x", "x"])):
            raise WorldError(
                f"scorer boxed does not start: {self._worker}; is math-verify installed for "
                f"{sys.executable}?"
            )
        return process


def _ask(process: subprocess.Popen[str], question: str) -> str:
    """The worker's line; empty where it has ended."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(question + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return process.stdout.readline().strip()


FORMULA = re.compile(
    r"\$\$?([^$]+)\$\$?|\\\((.{1,1000}?)\\\)|\\\[(.{1,1000}?)\\\]"
    r"|(?<![\w^.,])(-?[0-9][0-9,]*(?:\.[0-9]+)?(?:/[0-9]+)?)(?![\w-])"
)
# A word, or a sign that encloses a formula: without either, a sentence is one expression.
PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2}|\$|\\[(\[]")
INDEX = re.compile(r"(?<=[_^])\{(\w)\}")
LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|[!,;:])(?![a-zA-Z])|\$|(?<!\d)\s+|\s+(?!\d)|(?<=\\)[dtc](?=frac)"
)
LONGEST = 1000  # characters of an expression; longer ones compare as texts only


def boxed(response: str, references: Sequence[str]) -> float:
    r"""1 where the final expression of the response is equivalent to that of a reference.

    The final expression stands in the last `\boxed{...}`, else in the sentence after the last
    "answer is", else in the last sentence.
    """
    found = final_expression(response)
    return float(any(_same(_reference(one), found) for one in references))


def final_expression(text: str) -> str:
    """The expression that a text states as its answer.

    Without a box it is the sentence after "answer is", else the last one: where that has words,
    its last formula or number, and where it has neither, the words.
    """
    stated = boxed_text(text)
    if stated is None:
        said, last = cued_text(text), sentences(text.strip().rstrip("."))[-1]
        stated = _expression(said or "") or _expression(last) or said or last
    return stated.strip(" \n.\"'*")


def _expression(sentence: str) -> str | None:
    if not PROSE.search(sentence):
        return sentence
    found = [next(filter(None, match.groups())) for match in FORMULA.finditer(sentence)]
    return found[-1] if found else None


def _reference(text: str) -> str:
    stated = boxed_text(text)
    return (text if stated is None else stated).strip().rstrip(".")


def _same(reference: str, found: str) -> bool:
    if "=" not in reference and "," not in found:  # q(x) = 3x where 3x is asked for
        found = found.rpartition("=")[2]
    plain, other = _plain(reference), _plain(found)
    if plain == other:
        return bool(plain)
    if not plain or not other or max(len(reference), len(found)) > LONGEST:
        return False
    number, other_number = plain_number(plain), plain_number(other)
    if number is not None and other_number is not None:
        return number == other_number
    return _judge(os.getpid()).equivalent(reference, found)


def _plain(expression: str) -> str:
    """The expression without what only changes its looks."""
    return INDEX.sub(r"\1", LAYOUT.sub("", expression))


@cache
def _judge(process: int) -> Judge:
    """The judge of this process: one that was inherited by a fork would be asked by two."""
    return Judge()
