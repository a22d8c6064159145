"""What the README, the pages and the tutorials show, runs."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hierrouter.paper import PAPER_ALPHA
from hierrouter.questions.sources import PAPER_DATASETS
from hierrouter.questions.testbed import world
from hierrouter_cache import CACHE
from tests.cli import pages
from tests.cli.conftest import Place
from tests.cli.test_help import COMMANDS, context
from tests.conftest import SOURCES, Run
from tests.servers import Reply, Server, completion, serving

Python = Callable[[str, Place], str]
TUTORIALS = pages.DOCS / "tutorials"
DATA = SOURCES.parent / "shared" / "data"
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?"
FOLLOWED = [
    page
    for page in pages.PAGES
    if pages.commands(page) and page != pages.README and page.parent != TUTORIALS
]


def test_the_two_marked_commands_are_there() -> None:
    for marker, command in [
        ("main", "hierrouter quickstart"),
        ("test", "pytest -n auto --dist loadfile"),
    ]:
        found = re.search(rf"<!-- {marker} -->\n```bash\n(.*?)```", pages.README.read_text(), re.S)
        assert found
        assert found[1].splitlines()[-1] == command


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, own: Place) -> None:
    told = "".join(done.stdout + done.stderr for done in pages.follow(page, own))
    assert all(shown in told for shown in pages.blocks("text", page))


def test_commands_of_the_readme_give_the_answers_it_promises(own: Place, hierrouter: Run) -> None:
    """In order, in one folder, after `hierrouter quickstart`, with trainings as long as shown."""
    done = pages.follow(pages.README, Place(own.folder, hierrouter))
    [capital] = [country.capital for country in world().countries if country.name == "kanen"]
    routed = [each for each in done if each.args[0] == "route"]
    assert [each.stdout.strip() for each in routed] == [capital[::-1], "19"]
    routes = [re.findall(r"route: (\S+) at alpha 0.4", each.stderr) for each in routed]
    assert routes == [["facts>text"], [">calc"]]


def test_the_quickstart_ends_as_the_pages_show(place: Place) -> None:
    """The whole of it. Other processors may round otherwise: words are equal, figures nearly."""
    told = place.does("quickstart").stdout
    for page in (pages.README, pages.DOCS / "report.md"):
        [shown] = pages.blocks("text", page)
        assert re.sub(NUMBER, "#", told).split() == re.sub(NUMBER, "#", shown).split()
        assert numbers(told) == pytest.approx(numbers(shown), rel=0.01, abs=0.005)


def test_an_estimate_after_a_pilot_is_printed_as_shown(place: Place) -> None:
    """But for the last column, time. Other processors may round otherwise."""
    place.does("collect --datasets story,arith --cache caches/first --limit 10")
    told = place.does(
        "collect --datasets story,arith --cache caches/first --limit 20 --dry-run"
    ).stdout
    blocks = pages.blocks("", pages.DOCS / "collect.md")
    [shown] = [text for text in blocks if text.startswith("Expected\n")]
    names = "calc|text|facts|all"
    rows = [
        [line for line in text[text.index("Expected\n") :].splitlines() if re.match(names, line)]
        for text in (told, shown)
    ]
    assert len(rows[0]) == len(rows[1]) == 4
    for printed, documented in zip(*rows, strict=True):
        assert printed.split()[0] == documented.split()[0]
        # Calls, tokens in, tokens out and cost, each with both ends of its range.
        assert numbers(printed)[:12] == pytest.approx(numbers(documented)[:12], rel=0.02)


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(NUMBER, text)]


def test_the_tree_of_a_query_is_printed_as_shown(home: Place) -> None:
    """But for the marks behind two blanks and `<`, which go by what this router learned."""
    [shown] = pages.blocks("text", pages.DOCS / "explain.md")
    told = home.does("explain riddle-0002 --alpha 0.4").stdout
    lines = [{line.partition("  < ")[0] for line in text.splitlines()} for text in (shown, told)]
    assert lines[0] - {"…"} <= lines[1]


def test_the_notebook_shows_what_its_cells_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m tests.cli.pages` writes it anew."""
    monkeypatch.chdir(tmp_path)
    shown = json.loads(pages.NOTEBOOK.read_text())
    assert pages.executed(shown) == shown


def test_how_much_of_the_pages_runs() -> None:
    """A page that is no longer found, or a block that is no longer read, would pass in silence."""
    shown = [page for page in pages.PAGES if pages.commands(page)]
    assert len(shown) == 19
    assert sum(len(pages.blocks("bash", page)) for page in shown) == 51
    assert sum(len(pages.commands(page)) for page in shown) == 96
    assert sum(len(pages.files(page)) for page in shown) == 12
    assert sum(len(pages.blocks("python", page)) for page in pages.PAGES) == 26


def test_commands_that_are_only_shown_can_be_typed() -> None:
    typed = [words for page in pages.PAGES for words in pages.only_shown(page)]
    assert len(typed) == 68
    for _, *words in typed:
        if words[0].startswith("--"):  # of the program itself
            continue
        path = next(path for path in COMMANDS if words[: len(path.split())] == path.split())
        context(path, words[len(path.split()) :])


def test_the_python_examples_of_the_readme_and_of_training_run(own: Place, python: Python) -> None:
    (example,) = pages.blocks("python", pages.README)
    told = python(example, own)
    learned, ruled = map(float, re.findall(r": R (-?[\d.]+),", told))
    assert ruled < learned
    assert (own / "report.html").exists()
    assert told.splitlines()[-1] == "19"
    *_, example = pages.blocks("python", pages.DOCS / "train.md")
    assert float(python(example, own)) > -3


def test_the_examples_of_the_environment_run_from_top_to_bottom(own: Place, python: Python) -> None:
    told = python("".join(pages.blocks("python", pages.DOCS / "env.md")), own)
    exact = {name: float(value) for value, name in re.findall(r"exact, test: (\S+) (.+)", told)}
    fixed, learned, best = exact.values()
    assert list(exact)[1:] == ["own loop", "oracle"]
    assert fixed < learned < best
    valued = re.findall(r"<(\S+) on \d+ test queries at alpha 0.005: R (\S+),", told)
    assert [name for name, _ in valued] == ["rule", "text>calc", "oracle"]
    assert 0 < float(valued[0][1]) < float(valued[2][1])


def test_the_examples_beyond_the_pool_run_from_top_to_bottom(own: Place, python: Python) -> None:
    told = python("".join(pages.blocks("python", pages.DOCS / "beyond.md")), own)
    helped = re.search(r"test: alone (\S+), helped (\S+)", told)
    assert helped
    assert float(helped[2]) > float(helped[1]) + 0.03


def test_the_documented_defaults_are_the_real_ones() -> None:
    table = (pages.DOCS / "cli.md").read_text()
    assert f"| `--cache DIR` | `{CACHE}` |" in table
    assert f"| `--alpha X` | {PAPER_ALPHA} |" in table
    assert "gsm8k" in PAPER_DATASETS


# The paper's needs a GPU and a network; the one with servers is below.
WITHOUT_SERVERS = ("own_dataset", "prices_and_budgets", "add_a_model", "own_baseline")


@pytest.mark.parametrize("name", WITHOUT_SERVERS)
def test_a_tutorial_runs(name: str, own: Place) -> None:
    pages.follow(TUTORIALS / f"{name}.md", own)


def test_the_tutorial_of_a_real_log_prints_what_it_shows(place: Place) -> None:
    """Other processors may round otherwise: words are equal, figures nearly."""
    log = DATA / "mint_tree_nodes_half.parquet"
    if not log.is_file():
        pytest.skip("the log is not here")
    shutil.copy(log, place / "mint.parquet")
    page = TUTORIALS / "real_log.md"
    finished = pages.follow(page, place)
    told = " ".join(done.stdout + done.stderr for done in finished).split()
    words = [re.sub(NUMBER, "#", word) for word in told]
    for block in pages.blocks("text", page):
        shown = block.split()
        pattern = [re.sub(NUMBER, "#", word) for word in shown]
        size = len(pattern)
        starts = [n for n in range(len(words)) if words[n : n + size] == pattern]
        assert starts, block
        figures = numbers(" ".join(told[starts[0] : starts[0] + size]))
        assert figures == pytest.approx(numbers(block), rel=0.01, abs=0.005)
    assert "because no router showed a gain over it in training" in " ".join(told)


def test_the_tutorial_of_endpoints_runs(tmp_path: Path, brief: Run) -> None:
    small = speaking("small-3b", lambda prompt: "I do not know.")
    large = speaking("large-14b", total)
    with serving(small), serving(large):
        page = TUTORIALS / "own_models.md"
        pages.follow(page, Place(tmp_path, brief), _8000=small.url, _8001=large.url)
    assert len(small.asked) == len(large.asked) > 40
    assert max([*small.asked.values(), *large.asked.values()]) == 1  # the pilot is not paid twice


def speaking(model: str, answer: Callable[[str], str]) -> Server:
    """A server with one model."""
    return Server(
        lambda prompt, before: Reply(completion(answer(prompt), model=model)),
        listing=Reply({"object": "list", "data": [{"id": model}]}),
    )


def total(prompt: str) -> str:
    """The sum that a prompt asks for."""
    left, right = (int(number) for number in re.findall(r"\d+", prompt)[:2])
    return str(left - right if re.search(r"-|minus", prompt) else left + right)
