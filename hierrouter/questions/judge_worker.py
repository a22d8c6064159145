"""The process that compares two LaTeX expressions with math-verify, within limits."""

import json
import logging
import resource
import signal
import sys

from math_verify import LatexExtractionConfig, parse, verify

CPU_SECONDS = 5.0  # of 772 real answers the slowest took 0.2
MEMORY = 4 << 30  # bytes of address space
LATEX = (LatexExtractionConfig(boxed_match_priority=0),)


def main() -> None:
    logging.disable()  # math-verify warns that its own time limit is off
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        same = _equivalent(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(f"{int(same)}\n")
        answers.flush()


def _equivalent(reference: str, found: str) -> bool:
    try:
        gold, said = (
            parse(rf"\boxed{{{text}}}", LATEX, parsing_timeout=None) for text in (reference, found)
        )
        return bool(verify(gold, said, timeout_seconds=None))
    except Exception:  # whatever computer algebra raises, an answer that fails is not equivalent
        return False


if __name__ == "__main__":
    main()
