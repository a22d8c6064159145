"""A log on disk and questions: what lines say, what is left out, and the first bad one is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from hierrouter.declarations.declaration import OnNote, ignore_note
from hierrouter.questions.files import json_lines
from hierrouter.serving.learn import read_traffic
from hierrouter.serving.logs import Episode, LogShape, Step, read_log
from hierrouter.serving.messages import question_in, question_of
from hierrouter.serving.monitoring import RequestLog, query_id
from hierrouter_cache.errors import InputError
from tests.hierrouter.serving.serving import user

SHAPE = LogShape(("calc", "text"), hops=2, rate=((0.1, 0.2), (0.3, 0.4)))
BOTH = [
    {"model": "calc", "propensity": 0.5, "cost": 1, "response": "6"},
    {"model": "text", "propensity": 1, "cost": 2},
]
LINE: dict[str, Any] = {"question": "how many?", "steps": BOTH, "quality": 0.5}
TOKENS = {"model": "text", "propensity": 0.25, "tokens_in": 10, "tokens_out": 5, "response": "6"}


def read(folder: Path, *lines: object, on_note: OnNote = ignore_note) -> list[Episode]:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "log.jsonl").write_text("\n".join(texts))
    return read_log(folder / "log.jsonl", SHAPE, on_note)


def with_step(number: int = 0, /, **changed: object) -> dict[str, Any]:
    steps = [step | changed if position == number else step for position, step in enumerate(BOTH)]
    return {**LINE, "steps": steps}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in LINE.items() if key != name}


def test_tokens_are_priced_and_unknown_keys_ignored(tmp_path: Path) -> None:
    steps = [TOKENS | {"latency": 3}, BOTH[1]]
    [episode] = read(tmp_path, {**LINE, "steps": steps, "request": "abc", "dataset": "mine"})
    assert episode.steps[0] == Step(1, 0.25, False, pytest.approx(0.3 * 10 + 0.4 * 5), "6", 5)
    assert (episode.policy, episode.question) == ("", "how many?")


def test_a_null_key_counts_as_missing(tmp_path: Path) -> None:
    null_keys = {"stop": None, "tokens_in": None, "response": None}
    nulls = dict.fromkeys(("dataset", "policy", "status"))
    steps = [TOKENS | {"cost": None}, BOTH[1] | null_keys]
    [episode] = read(tmp_path, {**LINE, **nulls, "steps": steps}, {**LINE, "status": 502})
    [bare] = read(tmp_path, {**LINE, "steps": [TOKENS, BOTH[1]]})
    assert (episode.steps, episode.policy) == (bare.steps, "")


def test_blank_lines_do_not_count_but_keep_their_numbers(tmp_path: Path) -> None:
    episodes = read(tmp_path, "", LINE, "", LINE)
    assert [episode.where for episode in episodes] == [
        f"{tmp_path / 'log.jsonl'}:{n}" for n in (2, 4)
    ]


BAD: dict[str, tuple[object, str]] = {
    "no JSON": ("{", "not JSON"),
    "no object": ([1], "not a JSON object"),
    "no question": (without("question"), "question is missing"),
    "a number for a question": ({**LINE, "question": 3}, "question is 3"),
    "an empty question": ({**LINE, "question": ""}, "question is ''"),
    "no steps": (without("steps"), "steps is no list"),
    "an empty list of steps": ({**LINE, "steps": []}, "steps is no list"),
    "a step that is none": ({**LINE, "steps": ["calc", "text"]}, "a step is no object"),
    "too many steps": ({**LINE, "steps": [*BOTH, BOTH[0]]}, "3 steps"),
    "too few steps": ({**LINE, "steps": BOTH[:1]}, "1 of 2 steps and no stop"),
    "a step after the end": (with_step(stop=True), "a step after one that stops"),
    "stop that is no truth": (with_step(1, stop="yes"), "stop is neither"),
    "an unknown model": (with_step(model="calk"), "unknown model calk"),
    "no model": (with_step(model=None), "model is missing"),
    "no propensity": (with_step(propensity=None), "propensity is missing"),
    "a propensity of 0": (with_step(propensity=0), "propensity is 0"),
    "a propensity above 1": (with_step(propensity=1.01), "propensity is 1.01"),
    "a truth for a propensity": (with_step(propensity=True), "propensity is True"),
    "a text for a propensity": (with_step(propensity="0.5"), "propensity is '0.5'"),
    "NaN": (
        '{"question": "q", "steps": [{"model": "calc", "propensity": NaN}]}',
        "propensity is nan",
    ),
    "a negative cost": (with_step(cost=-1), "cost is -1"),
    "an infinite cost": (json.dumps(with_step(cost=7)).replace("7", "1e999"), "cost is inf"),
    "a huge cost": (with_step(cost=10**400), "cost is 1000"),
    "no cost": (with_step(cost=None), "no cost"),
    "no quality": (without("quality"), "quality is missing"),
    "a quality above 1": ({**LINE, "quality": 100}, "quality is 100"),
    "a policy that is no text": ({**LINE, "policy": 3}, "policy is 3"),
    "an answer missing": (with_step(response=None), "a response is missing"),
    "a return that is none": ({**LINE, "returned": 1}, "it is no object"),
    "a return of no answer": ({**LINE, "returned": {"answer": 3}}, "whole number from 1 to 2"),
    "a return without chance": ({**LINE, "returned": {"answer": 1}}, "propensity is missing"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_the_first_bad_line_is_named(tmp_path: Path, bad: tuple[object, str]) -> None:
    line, expected = bad
    with pytest.raises(InputError) as refused:
        read(tmp_path, LINE, LINE, line)
    message = str(refused.value)
    assert expected in message
    assert f"{tmp_path / 'log.jsonl'}:3" in message
    assert len(message) - len(str(tmp_path)) < 250
    assert "\n" not in message


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_one_bad_line_is_named_counted_and_left_out(
    tmp_path: Path, bad: tuple[object, str]
) -> None:
    line, expected = bad
    notes: list[str] = []
    assert len(read(tmp_path, *[LINE] * 8, line, LINE, on_note=notes.append)) == 9
    [note] = notes
    assert note.startswith("1 of 10 lines are left out, they cannot be read: ")
    assert expected in note and f"{tmp_path / 'log.jsonl'}:9" in note


LONG = json.dumps({**LINE, "question": "é" * 3_000_000})  # 18 MB
POISON = {
    "longer than a line may be": LONG,
    "longer than a line may be, and blank": " " * len(LONG),
    "of more values than a line may have": json.dumps({**LINE, "more": [[]] * 1_000_001}),
    "cut by a full disk": json.dumps(LINE)[:40],
    "of zeros, which a crash leaves": "\0" * 4096,
    "of bytes that are no UTF-8": "\udcff\udcfe{}",
    "nested deeply": "[" * 100_000,
    "an integer of 5,000 digits": json.dumps(LINE)[:-1] + ', "id": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
def test_a_poisoned_line_does_not_take_the_others_along(tmp_path: Path, poison: str) -> None:
    lines = [json.dumps(LINE)] * 6
    text = "\n".join([*lines[:3], poison, *lines[3:]])
    path = tmp_path / "log.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    notes: list[str] = []
    episodes = read_log(path, SHAPE, notes.append)
    assert [episode.where for episode in episodes][3:] == [f"{path}:{n}" for n in (5, 6, 7)]
    assert len(notes) == (not poison.isspace())
    traffic = read_traffic(path, 10, 0, notes.append)
    assert (traffic.lines, traffic.distinct) == (6, 1)


def test_signs_in_a_text_are_no_values(tmp_path: Path) -> None:
    question = "," * 1_000_001 + '\\"[{'
    [episode] = read(tmp_path, {**LINE, "question": question})
    assert episode.question == question


def test_texts_of_a_log_are_sound(tmp_path: Path) -> None:
    [episode] = read(tmp_path, {**LINE, "question": "a\ud800b", "policy": "\0"})
    assert (episode.question, episode.policy) == ("a\ufffdb", "\ufffd")


@pytest.mark.parametrize(
    "question",
    ["😀" * 1_950_000, "é" * 2_800_000, "," * 1_000_001, "a" * 17_000_000],
    ids=["emoji", "accents", "commas", "letters"],
)
def test_each_line_that_is_written_can_be_read_again(tmp_path: Path, question: str) -> None:
    path = tmp_path / "log.jsonl"
    log = RequestLog(path)
    for text in ("first", question, "last"):
        log.log_failure("id", "hierrouter", text, [], 502, "the model failed")
    log.close()
    lines = [line for _, line in json_lines(path)]
    assert [line["query"] for line in lines] == list(map(query_id, ("first", question, "last")))
    notes: list[str] = []
    traffic = read_traffic(path, 10, 0, notes.append)
    is_kept = lines[1]["question"] == question
    assert is_kept == ("left_out" not in lines[1]) == (traffic.lines == 3)
    assert is_kept == question.startswith(",")
    assert notes == []


def test_a_line_of_too_many_values_keeps_its_facts(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = RequestLog(path)
    log.log_forward("id", "hierrouter", "other", "reason", {})
    log._write({"id": "odd", "status": 200, "steps": [[]] * 1_000_001})
    log.close()
    [_, (_, line)] = json_lines(path)
    assert (line["id"], line["status"], "steps" in line) == ("odd", 200, False)
    assert line["left_out"] == "texts and steps: more than 1,000,000 values"


def test_a_log_without_lines(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a log without episodes"):
        read(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "none.jsonl", SHAPE)


# --- messages and lines of JSON become the question that models see

BRIEF = {"role": "system", "content": "Be brief."}
FOUR = {"role": "assistant", "content": "4"}


@pytest.mark.parametrize(
    ("messages", "question"),
    [
        ("two\n\nparagraphs ", "two\n\nparagraphs "),
        (user("User: ✓"), "User: ✓"),
        (user([{"type": "text", "text": "12"}, {"type": "text", "text": "+7"}]), "12+7"),
        ([*user("2+2?"), FOUR, *user("3+3?")], "User: 2+2?\n\nAssistant: 4\n\nUser: 3+3?"),
        ([*user("Hello"), BRIEF, *user("Bye")], "Be brief.\n\nUser: Hello\n\nUser: Bye"),
        ([BRIEF, *user("Hello")], "Be brief.\n\nHello"),
    ],
)
def test_one_message_is_its_own_text_and_several_a_transcript(messages: Any, question: str) -> None:
    assert question_of(messages) == question


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("", "empty question"),
        ("  \n", "empty question"),
        ([], "no message"),
        (user(""), "empty message"),
        (user(None), "content is no text"),
        (user([]), "content is no text"),
        (user([{"type": "image_url", "image_url": "x"}]), "type 'image_url'.*only text"),
        ([{"role": "tool", "content": "x"}], "a tool was called: messages.0."),
        ([{"content": "x"}], "unknown role None"),
        (["x"], "no object: messages.0."),
        ([*user("a"), FOUR], "last message is of role assistant"),
        ("x" * 2_000_001, "2,000,001 characters"),
    ],
)
def test_invalid_questions_are_refused(messages: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        question_of(messages)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"quest": "x"}, "neither of question and messages: f:1; give one of them"),
        ({"question": "x", "messages": []}, "both of question and messages: f:1"),
        ({"question": ["x"]}, "question is not a text: f:1"),
        ({"messages": []}, "no message: messages: f:1; give at least one"),
        ({"question": "x", "id": float("nan")}, "id is neither a text nor a whole number: f:1"),
    ],
)
def test_a_line_without_a_question_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        question_in(row, "f:1")
    assert question_in({"question": "x", "id": 7}, "f:1") == "x"
