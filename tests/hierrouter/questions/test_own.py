import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierrouter.questions.scoring import ScorerInput, score_all, scorer
from hierrouter_cache.errors import InputError
from tests.cli.pages import DOCS, files
from tests.models import save_random_reward_model


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, where Python looks last; what it imported is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def write(value: str, name: str = "mine") -> None:
    Path(f"{name}.py").write_text(f"def score(response, references):\n    return {value}")


def test_a_function_in_the_working_directory_scores() -> None:
    write("1 if response in references else False")
    mine = scorer("mine:score")
    assert (mine("a", ["a"]), mine("b", ["a"])) == (1, 0)
    assert mine.key.startswith("mine:score@")


SCORER_INPUT = ScorerInput("seven", ("7",), "3+4?", "3+4?\n\nThink.", (("A", "7"),), "calc")


@pytest.mark.parametrize(
    ("signature", "seen"),
    [
        ("response, references", ("seven", ("7",))),
        ("said, gold", ("seven", ("7",))),
        ("text", ("seven",)),
        ("response, question", ("seven", "3+4?")),
        ("text, question", ("seven", "3+4?")),
        ("model, response, choices, context", ("calc", "seven", (("A", "7"),), "3+4?\n\nThink.")),
        ("response, lower=True, model=None", ("seven", True, "calc")),
        ("response, /, *, question", ("seven", "3+4?")),
        ("responses, models", (["seven"], ["calc"])),
        ("responses, /, choices=()", (["seven"], [(("A", "7"),)])),
    ],
)
def test_a_function_is_given_what_it_names(signature: str, seen: tuple[object, ...]) -> None:
    names = [one.partition("=")[0] for one in signature.split(", ") if one not in ("/", "*")]
    shown = f"({', '.join(names)},)"
    value = "[0.5]" if "responses" in signature else "0.5"
    Path("mine.py").write_text(
        f"SEEN = []\ndef score({signature}):\n    SEEN.append({shown})\n    return {value}"
    )
    mine = scorer("mine:score")
    assert mine.values([SCORER_INPUT]) == [0.5]
    assert [seen] == sys.modules["mine"].SEEN
    # What needs no reference is asked about queries without.
    if "references" in mine.reads:
        with pytest.raises(InputError, match="needs reference answers"):
            mine("seven")
    else:
        assert mine("seven") == 0.5


def test_a_batch_gets_one_number_for_each() -> None:
    Path("mine.py").write_text(
        "SIZES = []\ndef score(responses):\n"
        "    SIZES.append(len(responses))\n    return [len(one) / 1000 for one in responses]"
    )
    mine = scorer("mine:score")
    asked = [ScorerInput("x" * (at % 600)) for at in range(900)]
    assert score_all(mine, asked) == [(at % 600) / 1000 for at in range(900)]
    assert sys.modules["mine"].SIZES == [256, 256, 88]
    del sys.modules["mine"]
    for value, words in (
        ("[1]", "gave 1 numbers: mine:score; on 2 responses, the first 'a'; a batch gets one for"),
        ("[1, 2]", "gave 2: mine:score; on the response 'b'"),
        ("3", "failed: mine:score: TypeError"),
    ):
        Path("mine.py").write_text(f"def score(responses): return {value}")
        with pytest.raises(InputError, match=words):
            score_all(scorer("mine:score"), [ScorerInput("a"), ScorerInput("b")])
        del sys.modules["mine"]


def test_a_reward_model_scores_in_batches_what_was_asked_and_said(here: Path) -> None:
    """The page's own file, with a tiny model where it names one of the hub."""
    shown = files(DOCS / "scorers.md")["reward.py"]
    [name] = re.findall(r'^NAME = "(.*)"$', shown, re.M)
    Path("reward.py").write_text(shown.replace(name, str(save_random_reward_model(here / "judge"))))
    judge = scorer("reward:score")
    assert (judge.reads, judge.in_batches) == (("response", "question"), True)
    asked = [
        ScorerInput(said, question=asked) for asked in ("2+2?", "why?") for said in ("4", "no idea")
    ]
    values = score_all(judge, [*asked, asked[0]])
    assert len(set(values[:4])) == 4 and values[4] == values[0]
    assert values[:4] == pytest.approx([judge.values([one])[0] for one in asked], abs=1e-5)


def test_where_python_looks_is_left_alone(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    write("0.5")
    elsewhere = [folder for folder in sys.path if folder not in ("", str(here))]
    monkeypatch.setattr(sys, "path", elsewhere.copy())
    with pytest.raises(InputError, match="cannot be imported: mine:score"):
        scorer("mine:score")
    assert sys.path == elsewhere


def test_another_source_is_another_key() -> None:
    """Also that of the file which defines the function."""
    Path("front.py").write_text("from mine import score")
    keys = []
    for value in ("0.5", "0.5", "0.25"):
        write(value)
        keys.append((scorer("mine:score").key, scorer("front:score").key))
        del sys.modules["mine"], sys.modules["front"]
    assert keys[0] == keys[1]
    assert not set(keys[1]) & set(keys[2])


def test_a_file_here_cannot_stand_in_for_a_library() -> None:
    Path("colorsys.py").write_text("raise SystemExit")  # a module that nobody imports here
    sys.modules.pop("colorsys", None)
    with pytest.raises(InputError, match="scorer takes r, which is not known: colorsys"):
        scorer("colorsys:rgb_to_hsv")
    assert scorer("builtins:max").name == "builtins:max"  # which does not tell what it takes


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ("", "nowhere:score", "cannot be imported: nowhere:score: ModuleNotFoundError"),
        ("1 / 0", "mine:score", "cannot be imported: mine:score: ZeroDivisionError"),
        ("def score(:", "mine:score", "cannot be imported: mine:score: SyntaxError"),
        ("raise SystemExit(0)", "mine:score", "cannot be imported: mine:score: SystemExit"),
        ("", "mine:score", "no function score in module mine"),
        ("score = 3", "mine:score", "no function score in module mine"),
        (
            "def score(): ...",
            "mine:score",
            "scorer takes nothing: mine:score; it may take response",
        ),
        (
            "def score(response, references, rubric): ...",
            "mine:score",
            "takes rubric, which is not known: mine:score; it may take response, references, "
            "question, context, choices, model, tests, answer_type, or for batches responses, ",
        ),
        ("def score(a, *, rubric): ...", "mine:score", "takes rubric, which is not known"),
        ("def score(responses, question): ...", "mine:score", "takes question, which is not"),
        ("", "mine:", "not an import path"),
        ("", ":score", "not an import path"),
    ],
)
def test_what_cannot_be_used_is_refused(body: str, path: str, words: str) -> None:
    Path("mine.py").write_text(body)
    with pytest.raises(InputError, match=words) as refused:
        scorer(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) <= 300


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("1.5", "scorer gave 1.5: mine:score; on the response 'seven'"),
        ("-0.1", "scorer gave -0.1"),
        ("float('nan')", "scorer gave nan"),
        ("None", "scorer gave None"),
        ("'1'", "scorer gave '1'"),
        ("10 ** 400", r"scorer gave 1000\d+\.\.\."),
        ("1 / 0", "scorer failed: mine:score: ZeroDivisionError: division by zero; on the"),
        ("exit()", "scorer failed: mine:score: SystemExit"),
    ],
)
def test_what_is_no_score_is_refused(value: str, words: str) -> None:
    """A long response is cut in the message."""
    write(value)
    mine = scorer("mine:score")
    with pytest.raises(InputError, match=words) as refused:
        mine("seven", ["7"])
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) <= 300
    for said, shown in (("x" * 40, "x" * 40), ("x" * 41, "x" * 40 + r"\.\.\.")):
        with pytest.raises(InputError, match=f"on the response '{shown}'"):
            mine(said, ["7"])
