"""A model on a server judges answers: a scorer like others, and nonsense is no score."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.engines.judge import judge_scorer, score_in
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import load_texts
from hierrouter_cache.errors import InputError, WorldError
from tests.servers import MODEL, Reply, Server, completion, serving


def judge_file(folder: Path, url: str, prompt: str = "") -> str:
    file = folder / "judge.toml"
    own = f"[pool]\nstage_prompts = [{prompt!r}]\n" if prompt else ""
    file.write_text(
        f'{own}[[models]]\nname = "judge"\nmodel = "{MODEL}"\nbackend = "openai"\n'
        f'base_rate = 1.0\nendpoint = {{base_url = "{url}"}}\n'
    )
    return str(file)


def length(prompt: str, before: int) -> Reply:
    """Likes answers of two characters."""
    answer = prompt.partition("Answer:\n")[2].partition("\n")[0]
    return Reply(completion(f"Let me see. Score: {10 if len(answer) == 2 else 2.5}"))


def test_a_cache_is_opened_with_a_judge_and_asks_it_once(
    testbed_cache: Path, tmp_path: Path
) -> None:
    with serving(Server(length)) as server:
        file = judge_file(tmp_path, server.url)
        selection = OpenTree(scorer=file, datasets=("arith",))
        cache = shutil.copytree(testbed_cache, tmp_path / "cache")  # it will hold the scores
        tree = replace(selection, cache=cache).run()
        for row, texts in enumerate(load_texts(cache, tree)):
            wanted = [1.0 if len(answer) == 2 else 0.25 for answer in texts.answers[1:]]
            assert tree.score[row, 1:].tolist() == wanted
        asked = sum(server.asked.values())
        assert replace(selection, cache=cache).run().content == tree.content
        assert sum(server.asked.values()) == asked
        other = judge_file(tmp_path, server.url, "{question} {answer} {references}")
        scorer = judge_scorer(other)
        assert scorer.reads == ("question", "response", "references")
        assert scorer.version != judge_scorer(judge_file(tmp_path, server.url)).version


def test_nonsense_is_a_failure_and_no_score(testbed_cache: Path, tmp_path: Path) -> None:
    with serving(Server(lambda prompt, before: Reply(completion("Lovely weather.")))) as server:
        selection = OpenTree(scorer=judge_file(tmp_path, server.url), datasets=("arith",))
        with pytest.raises(WorldError, match=r"judge gave no score: 'Lovely weather\.'"):
            replace(selection, cache=testbed_cache).run()


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 7", 0.7),
        ("**Score:** 10/10", 1.0),
        ("A score of 3 at first, then\nScore: 8.5", 0.85),
        ("score=0", 0.0),
        ("Score: 11", None),
        ("Score: high", None),
        ("7", None),
        ("", None),
    ],
)
def test_the_last_score_that_is_stated(text: str, score: float | None) -> None:
    assert score_in(text) == score


def test_a_file_that_is_no_judge(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the judge's prompt has no \{answer\}"):
        judge_scorer(judge_file(tmp_path, "http://127.0.0.1:1/v1", "{question}"))
    (tmp_path / "two.toml").write_text(
        '[[models]]\nname = "a"\nmodel = "m"\nbase_rate = 1\n'
        '[[models]]\nname = "b"\nmodel = "m"\nbase_rate = 1\n'
    )
    with pytest.raises(InputError, match="a judge is one model"):
        judge_scorer(str(tmp_path / "two.toml"))
