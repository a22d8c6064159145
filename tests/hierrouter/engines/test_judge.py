"""A model on a server judges answers: its verdicts are calls, kept, counted, and never guessed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from hierrouter.collection.files import export_jsonl, import_jsonl
from hierrouter.engines.judge import HOPELESS_ANSWERS, judge_scorer, read_verdict, score_in
from hierrouter.replay.inspection import ask_cache, cache_info, verify_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import load_texts
from hierrouter_cache.errors import IncompleteTree, InputError, Interrupted, WorldError
from hierrouter_cache.parts import SCORES_SCHEMA
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.conftest import environment
from tests.servers import MODEL, Reply, Script, Server, completion, ended, refusal, serving

VERDICTS = "SELECT DISTINCT judge_call, value, status, verdict, scale, cost FROM verdicts"


def judge_file(
    folder: Path, url: str, prompt: str = "", scale: str = "", endpoint: str = ""
) -> str:
    file = folder / "judge.toml"
    own = f"[pool]\nstage_prompts = [{prompt!r}]\n" if prompt else ""
    own += f"[judge]\nscale = {scale}\n" if scale else ""
    file.write_text(
        f'{own}[[models]]\nname = "judge"\nmodel = "{MODEL}"\nbackend = "openai"\n'
        f'base_rate = 1.0\nendpoint = {{base_url = "{url}"{endpoint}}}\n'
    )
    return str(file)


def length(prompt: str, before: int) -> Reply:
    """Likes answers of two characters."""
    answer = prompt.partition("Answer:\n")[2].partition("\n")[0]
    return Reply(completion(f"Let me see. Score: {10 if len(answer) == 2 else 2.5}"))


def but(odd: Callable[[str], Reply | None]) -> Script:
    """Judges by `length`, but for the prompts to which `odd` has an answer."""
    return lambda prompt, before: odd(prompt) or length(prompt, before)


def question_of(prompt: str) -> str:
    return prompt.partition("Question:\n")[2].partition("\n")[0]


@pytest.fixture
def cache(testbed_cache: Path, tmp_path: Path) -> Path:
    return shutil.copytree(testbed_cache, tmp_path / "cache")


@contextmanager
def judged_by(cache: Path, script: Script) -> Iterator[tuple[Server, OpenTree]]:
    """A judge that answers by a script, and an opening of a part of a cache with it."""
    with serving(Server(script)) as server:
        file = judge_file(cache.parent, server.url, endpoint=", attempts = 1")
        yield server, OpenTree(cache=cache, scorer=file, datasets=("arith",))


def calls_of(question: str) -> str:
    return (
        "SELECT DISTINCT call FROM nodes JOIN queries USING (query) "
        f"WHERE question = '{question.replace(chr(39), 2 * chr(39))}'"
    )


def first_question(cache: Path) -> str:
    [question, *_] = ask_cache(
        cache, "SELECT question FROM queries WHERE dataset = 'arith' ORDER BY question"
    )["question"].to_pylist()
    return str(question)


def test_a_cache_is_opened_with_a_judge_and_asks_it_once(cache: Path, tmp_path: Path) -> None:
    with judged_by(cache, length) as (server, opening):
        notes: list[str] = []
        tree = opening.run(on_note=notes.append)
        cost = f"{10 * sum(server.asked.values())} "
        assert (
            f"{len(server.asked)} verdicts of judge were asked for, at a cost of {cost}" in notes[0]
        )
        for row, texts in enumerate(load_texts(cache, tree)):
            wanted = [1.0 if len(answer) == 2 else 0.25 for answer in texts.answers[1:]]
            assert tree.score[row, 1:].tolist() == wanted
        asked = sum(server.asked.values())
        assert opening.run(on_note=notes.append).content == tree.content
        assert len(notes) == 1
        assert sum(server.asked.values()) == asked == len(server.asked)
        rows = ask_cache(cache, VERDICTS).to_pylist()
        assert len(rows) == asked
        assert {row["scale"] for row in rows} == {"0 to 10"}
        assert {row["cost"] for row in rows} == {10.0}  # 10 tokens at a rate of 1
        for row in rows:
            assert row["value"] == score_in(row["verdict"])
        assert not cache_info(cache)["failed_calls"]
        assert any("0 orphans" in line for line in verify_cache(cache))
        other = judge_file(tmp_path, server.url, "{question} {answer} {references}")
        scorer = judge_scorer(other)
        assert scorer.reads == ("question", "response", "references")
        assert scorer.version != judge_scorer(judge_file(tmp_path, server.url)).version


def test_verdicts_that_read_references_are_in_the_view_too(cache: Path, tmp_path: Path) -> None:
    with serving(Server(length)) as server:
        file = judge_file(tmp_path, server.url, "{question}\nAnswer:\n{answer}\n{references}")
        OpenTree(cache=cache, scorer=file, datasets=("arith",)).run()
        rows = ask_cache(cache, VERDICTS).to_pylist()
        assert len(rows) == sum(server.asked.values()) == len(server.asked)
        assert all(row["value"] is not None for row in rows)


# What has no verdict is left out and said.

ODD_VERDICTS = {
    "withheld by a filter": refusal(400, "content management policy", "content_filter"),
    "with a verdict that was cut": ended("Fine. Score: 1", "length"),
    "with a verdict without a score": Reply(completion("Lovely weather.")),
    "with a verdict of several numbers": Reply(completion("Score: 7 or 8")),
    "with a score off its scale": Reply(completion("Score: 8/5")),
    "declined by it": ended("I cannot judge that. Score: 0", "refusal"),
}


@pytest.mark.parametrize("reason", ODD_VERDICTS)
def test_one_odd_verdict_ends_no_job(reason: str, cache: Path) -> None:
    question = first_question(cache)

    def odd(prompt: str) -> Reply | None:
        return ODD_VERDICTS[reason] if question_of(prompt) == question else None

    with judged_by(cache, but(odd)) as (server, opening):
        with pytest.raises(IncompleteTree) as refused:
            opening.run()
        verdicts = len([prompt for prompt in server.asked if question_of(prompt) == question])
        count = len(ask_cache(cache, calls_of(question)))
        assert re.match(
            rf"{count} of \d+ answers are not judged by judge \({count} {reason}\); "
            "--allow-incomplete leaves their query out",
            str(refused.value),
        )
        assert set(server.asked.values()) == {1}
        server.asked.clear()
        notes: list[str] = []
        tree = replace(opening, allow_incomplete=True).run(on_note=notes.append)
        assert not server.asked  # asking again would change nothing
        assert tree.left_out == 1
        assert not np.isnan(tree.score).any()
        assert f"({count} {reason})" in notes[0]
        again = replace(opening, allow_incomplete=True).run()
        assert again.content == tree.content
        rows = ask_cache(cache, f"{VERDICTS} WHERE value IS NULL").to_pylist()
        assert len(rows) == verdicts


def test_a_verdict_that_failed_is_asked_for_again(cache: Path) -> None:
    question = first_question(cache)
    is_broken = True

    def odd(prompt: str) -> Reply | None:
        is_odd = is_broken and question_of(prompt) == question
        return refusal(422, "a template broke") if is_odd else None

    with judged_by(cache, but(odd)) as (server, opening):
        with pytest.raises(IncompleteTree, match=r"failed.*the same command asks again"):
            opening.run()
        # Nor is a tree without them kept as the last word.
        assert replace(opening, allow_incomplete=True).run().left_out == 1
        is_broken = False
        server.asked.clear()
        tree = replace(opening, allow_incomplete=True).run()
        assert tree.left_out == 0
        assert {question_of(prompt) for prompt in server.asked} == {question}
        rows = ask_cache(cache, VERDICTS).to_pylist()
        assert {row["status"] for row in rows} == {"answered"}


def test_nonsense_is_a_failure_and_no_score(cache: Path) -> None:
    script: Script = lambda prompt, before: Reply(completion("Lovely weather."))  # noqa: E731
    with judged_by(cache, script) as (server, opening):
        opening = replace(opening, datasets=None)
        with pytest.raises(WorldError, match=r"judge gave no score: 'Lovely weather\.'"):
            opening.run()
        # It is not asked for thousands of verdicts that nobody can read.
        assert HOPELESS_ANSWERS <= sum(server.asked.values()) < 3 * HOPELESS_ANSWERS


def test_scores_without_verdicts_stay_valid(cache: Path, testbed_cache: Path) -> None:
    with judged_by(cache, length) as (server, opening):
        tree = opening.run()
        scores = CacheReader(cache).sql("SELECT * FROM scores WHERE scorer LIKE 'judge@%'")
        # As an earlier version left them: it kept no verdicts.
        old = shutil.copytree(testbed_cache, cache.parent / "old")
        PartWriter(old).append("scores", scores.cast(SCORES_SCHEMA))
        server.asked.clear()
        assert replace(opening, cache=old).run().content == tree.content
        assert not server.asked
        assert not len(ask_cache(old, VERDICTS))


def test_verdicts_go_with_the_lines_of_a_cache(cache: Path) -> None:
    with judged_by(cache, length) as (server, opening):
        tree = opening.run()
        export_jsonl(cache, cache.parent / "lines.jsonl")
        import_jsonl(cache.parent / "lines.jsonl", cache.parent / "back")
        server.asked.clear()
        assert replace(opening, cache=cache.parent / "back").run().content == tree.content
        rows = ask_cache(cache.parent / "back", VERDICTS).to_pylist()
        key = itemgetter("judge_call")
        assert sorted(rows, key=key) == sorted(ask_cache(cache, VERDICTS).to_pylist(), key=key)
        assert not server.asked


def test_a_local_model_judges_too(cache: Path) -> None:
    file = cache.parent / "local.toml"
    file.write_text(
        '[[models]]\nname = "judge"\nmodel = "testbed:text"\nbackend = "transformers"\n'
        "base_rate = 1.0\ngeneration = {max_new_tokens = 8}\n"
    )
    with pytest.raises(WorldError, match="the judge judge gave no score"):
        OpenTree(cache=cache, scorer=str(file), datasets=("arith",)).run()
    assert len(ask_cache(cache, VERDICTS)) >= HOPELESS_ANSWERS


# Money: none is spent twice, and no more than was allowed.


def test_a_limit_of_spending_keeps_what_came_and_goes_on(cache: Path) -> None:
    with judged_by(cache, length) as (server, opening):
        with pytest.raises(Interrupted, match=r"limit is reached: --max-spend 35: .* not asked"):
            replace(opening, max_spend=35.0).run()
        paid = sum(server.asked.values())
        assert 4 <= paid <= 4 + 16  # those under way when the limit was reached
        with pytest.raises(Interrupted):
            replace(opening, max_spend=35.0).run()
        assert sum(server.asked.values()) == paid
        opening.run()
        assert set(server.asked.values()) == {1}


def test_a_server_that_dies_half_way_is_paid_once(cache: Path) -> None:
    dying = Server()

    def mortal(prompt: str, before: int) -> Reply:
        if sum(dying.asked.values()) > 20:
            return Reply(cut=True)
        return length(prompt, before)

    dying.script = mortal
    with serving(dying):
        file = judge_file(cache.parent, dying.url, endpoint=", attempts = 1, concurrency = 4")
        opening = OpenTree(cache=cache, scorer=file, datasets=("arith",))
        with pytest.raises((WorldError, IncompleteTree), match="the same command"):
            opening.run()
    assert len(ask_cache(cache, f"{VERDICTS} WHERE status = 'answered'")) == 20
    with serving(Server(length), dying.port) as server:
        opening.run()
        assert set(server.asked.values()) == {1}
        assert len(ask_cache(cache, VERDICTS)) == 20 + len(server.asked)


def test_an_unreachable_judge_is_one_line(cache: Path) -> None:
    file = judge_file(cache.parent, "http://127.0.0.1:9/v1", endpoint=", attempts = 1")
    done = subprocess.run(
        [sys.executable, "-m", "hierrouter_cli", "report", "--cache", str(cache), "--scorer", file],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=cache.parent,
        check=False,
    )
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "the judge judge failed: " in line
    assert "0 of " in line
    assert "Traceback" not in done.stderr


def slowly(prompt: str, before: int) -> Reply:
    return replace(length(prompt, before), delay_s=0.1)


def opening_command(cache: Path, file: str) -> list[str]:
    code = (
        "import sys\nfrom pathlib import Path\nfrom hierrouter.replay.open_tree import OpenTree\n"
        "OpenTree(cache=Path(sys.argv[1]), scorer=sys.argv[2], datasets=('arith',)).run()\n"
    )
    return [sys.executable, "-c", code, str(cache), file]


def wait_for_calls(server: Server, count: int, process: subprocess.Popen[bytes]) -> None:
    while sum(server.asked.values()) < count and process.poll() is None:
        time.sleep(0.01)


def stored_verdicts(cache: Path) -> set[str]:
    """The calls of judges whose verdicts are stored; none while the cache has no such file yet."""
    try:
        return set(
            ask_cache(cache, "SELECT DISTINCT judge_call FROM verdicts")["judge_call"].to_pylist()
        )
    except InputError:
        return set()


def test_a_kill_half_way_loses_next_to_nothing(cache: Path) -> None:
    def more_slowly(prompt: str, before: int) -> Reply:
        return replace(length(prompt, before), delay_s=0.5)

    with serving(Server(more_slowly)) as server:
        file = judge_file(cache.parent, server.url, endpoint=", concurrency = 4")
        process = subprocess.Popen(opening_command(cache, file), env=environment())
        while not stored_verdicts(cache) and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.wait()
        stored = len(stored_verdicts(cache))
        asked = sum(server.asked.values())
        subprocess.run(opening_command(cache, file), env=environment(), check=True)
        assert 0 < stored < len(server.asked)
        # Nothing that is stored is asked for again, and everything else once.
        assert sum(server.asked.values()) - asked == len(server.asked) - stored
        assert verify_cache(cache)


def test_ctrl_c_keeps_what_is_paid_for(cache: Path) -> None:
    with serving(Server(slowly)) as server:
        file = judge_file(cache.parent, server.url, endpoint=", concurrency = 4")
        process = subprocess.Popen(opening_command(cache, file), env=environment())
        wait_for_calls(server, 10, process)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() != 0
        asked = len(server.asked)
        subprocess.run(opening_command(cache, file), env=environment(), check=True)
        assert set(server.asked.values()) == {1}
        assert asked < len(server.asked)


def test_two_commands_at_once_pay_once(cache: Path) -> None:
    with serving(Server(slowly)) as server:
        file = judge_file(cache.parent, server.url)
        both = [subprocess.Popen(opening_command(cache, file), env=environment()) for _ in range(2)]
        assert [process.wait() for process in both] == [0, 0]
        assert set(server.asked.values()) == {1}


# Reading a verdict.


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 7", 0.7),
        ("**Score:** 10/10", 1.0),
        ("**Score: 8**/10", 0.8),
        ("Score: 8 out of 10.", 0.8),
        ("A score of 3 at first, then\nScore: 8.5", 0.85),
        ("Score: 3? No. Score: 8", 0.8),
        ("<think>\nScore: 2, or so\n</think>\n\nScore: 9", 0.9),
        ('{"final_score": 7}', 0.7),
        ("score=0", 0.0),
        ("Score: .5", 0.05),
        ("Score：８", 0.8),
        ("Score: ٧", 0.7),
        ("Score: ٧٫٥", 0.75),
        ("Score: ८", 0.8),
        ("Score: 11", None),
        ("Score: -3", None),
        ("Score: 4/5", None),
        ("Score: high", None),
        ("Score: 7 or 8", None),
        ("Score: 7-8", None),
        ("Score: 7 to 8", None),
        ("Score: 7,5", None),
        ("Score: 7 8", None),
        ("Score: 1e5", None),
        ("Score: 70%", None),
        ("Score: 1.2.3", None),
        ("Score: ½", None),
        ("Score: NaN", None),
        ("Score: 5 at first\nScore: n/a", None),
        ("Score: inf", None),
        ("<think>\nScore: 2", None),
        ("underscore 5", None),
        ("7", None),
        ("", None),
    ],
)
def test_the_last_score_that_is_stated(text: str, score: float | None) -> None:
    assert score_in(text) == score


@pytest.mark.parametrize(
    ("text", "score"), [("Score: 1", 0.0), ("Score: 4/5", 0.75), ("Score: 5", 1.0)]
)
def test_a_scale_of_its_own(text: str, score: float) -> None:
    assert score_in(text, (1, 5)) == score


@pytest.mark.parametrize("text", ["Score: 8/10", "Score: 4/10", "Score: 0", "Score: 6"])
def test_off_a_scale_of_its_own(text: str) -> None:
    assert score_in(text, (1, 5)) is None


def test_what_was_cut_is_no_verdict_whatever_it_states() -> None:
    assert read_verdict("Score: 1", "length", "", (0, 10)).value is None
    assert read_verdict("Score: 1", "stop", "", (0, 10)).value == 0.1


def test_the_scale_is_a_part_of_the_version_and_of_the_prompt(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1/v1"
    default = judge_scorer(judge_file(tmp_path, url))
    assert default.version == judge_scorer(judge_file(tmp_path, url, scale="[0, 10]")).version
    other = judge_scorer(judge_file(tmp_path, url, scale="[1, 5]"))
    assert other.version != default.version
    with serving(Server(length)) as server:
        scorer = judge_scorer(judge_file(tmp_path, server.url, scale="[1, 5]"))
        with pytest.raises(WorldError, match="gave no score"):
            scorer("ab", question="What?")  # says 10
        [prompt] = server.asked
        assert "a number from 1 (wrong, or of no\nuse) to 5 (right" in prompt


@pytest.mark.parametrize("scale", ["[5, 1]", "[1]", "5", '["a", "b"]', "[-1, 1]", "[0, nan]"])
def test_a_scale_that_is_none(scale: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="scale must be the lowest and the highest score"):
        judge_scorer(judge_file(tmp_path, "http://127.0.0.1:1/v1", scale=scale))


def test_a_file_that_is_no_judge(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the judge's prompt has no \{answer\}"):
        judge_scorer(judge_file(tmp_path, "http://127.0.0.1:1/v1", "{question}"))
    (tmp_path / "two.toml").write_text(
        '[[models]]\nname = "a"\nmodel = "m"\nbase_rate = 1\n'
        '[[models]]\nname = "b"\nmodel = "m"\nbase_rate = 1\n'
    )
    with pytest.raises(InputError, match="a judge is one model"):
        judge_scorer(str(tmp_path / "two.toml"))
