"""The process that compares two LaTeX expressions with math-verify, within limits.

It reads a line of JSON, `[reference, expression]`, and writes a line: `1` if they are equivalent,
else `0`. If an answer takes too much time, a signal ends the process: `formulas.Algebra` starts
another one.
"""

import json
import logging
import resource
import signal
import sys

import sympy
from math_verify import LatexExtractionConfig, parse, verify

CPU_LIMIT_S = 5.0  # of one comparison; the slowest of 772 real answers took 0.2
ADDRESS_SPACE_BYTES = 4 << 30
COMPARED_DIGITS = 30
RELATIVE_TOLERANCE = 1e-5  # 0.333333 is 1/3
LATEX_EXTRACTION = (LatexExtractionConfig(boxed_match_priority=0),)


def main() -> None:
    logging.disable()  # math-verify warns that its own time limit is off
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    # A library that prints must not write between the answers.
    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
        equivalent = _is_equivalent(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(f"{int(equivalent)}\n")
        answers.flush()


def _is_equivalent(reference: str, expression: str) -> bool:
    try:
        parsed_reference = _parse(reference)
        parsed_expression = _parse(expression)
        if not verify(parsed_reference, parsed_expression, timeout_seconds=None):
            return False
        return _have_one_value(parsed_reference, parsed_expression)
    except Exception:  # computer algebra raises all kinds of errors; the answer is wrong then
        return False


def _have_one_value(reference: list[object], expression: list[object]) -> bool:
    """Whether two numbers are as close as roundings of one number are.

    math-verify rounds to six decimals, so all tiny numbers would be the same. Expressions that are
    no numbers pass.
    """
    pair = [parsed[0] for parsed in (reference, expression) if parsed]
    if len(pair) < 2 or not all(getattr(value, "is_number", False) for value in pair):
        return True
    left, right = (sympy.N(value, COMPARED_DIGITS) for value in pair)
    largest = max(abs(left), abs(right))
    return bool(abs(left - right) <= largest * RELATIVE_TOLERANCE)


def _parse(expression: str) -> list[object]:
    parsed: list[object] = parse(rf"\boxed{{{expression}}}", LATEX_EXTRACTION, parsing_timeout=None)
    return parsed


if __name__ == "__main__":
    main()
