"""What a model answers is text: it is never run, and no scorer takes for ever on it."""

import sys
from pathlib import Path

import pytest

from hierrouter.questions.scoring import SCORERS_BY_NAME
from tests.conftest import spawned

CODE = (
    "__import__('os').system('touch pwned')",
    "```python\nopen('pwned', 'w')\n```",
    "$(touch pwned) `touch pwned`; touch pwned",
    r"\boxed{__import__('pathlib').Path('pwned').touch()}",
    r"\input{|touch pwned} \write18{touch pwned}",
    "#### __import__('os').system('touch pwned')",
)


@pytest.mark.parametrize("name", SCORERS_BY_NAME)
def test_no_answer_is_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for answer in CODE:
        for reference in (r"\boxed{x+1}", "#### 7", "A", answer):
            assert 0 <= SCORERS_BY_NAME[name](answer, [reference], [("A", answer), ("B", "x")]) <= 1
    assert not list(tmp_path.iterdir())


# What a pattern could try again and again, at each of its places.
REPEATED = (
    *("a", " ", "\n", "1,", "1/", "-", "$", "{", "(A) ", "*", "`", "#### ", "\nA. ", ". "),
    *(r"\boxed{", r"\frac{", r"\(", r"\[", r"\text ", "answer is ", "the answer is (", "so it is "),
    *("is the most ", "option ", "context ", "maximum ", "content "),
)
SCORE = """
import resource, sys
from hierrouter.engines.endpoint_client import FILTERED_PATTERN, TOO_LONG_PATTERN
from hierrouter.tables import markdown_text
from hierrouter.questions.scoring import SCORERS_BY_NAME
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for unit in sys.argv[1:]:
    for end in ("x", "\\n!"):
        text = unit * (20_000 // len(unit)) + end
        for scorer in SCORERS_BY_NAME.values():
            scorer(text, [r"\\boxed{x+1}" if scorer.name == "boxed" else "7"], [("A", "x")])
        TOO_LONG_PATTERN.search(text), FILTERED_PATTERN.search(text), markdown_text(text)
print("done")
"""


def test_no_answer_takes_a_pattern_for_ever(tmp_path: Path) -> None:
    """20 s of processor time for 54 texts of 20,000 characters; it takes two."""
    done = spawned(sys.executable, "-c", SCORE, *REPEATED, cwd=tmp_path)
    assert done.stdout == "done\n", done.stderr
