"""Settings that a model's files or a server's defaults bring in change no answer unnoticed."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hierrouter.engines import backend
from hierrouter.engines.generator import Answer, Confidence, Failure, Outage, Response
from hierrouter.engines.identity import ignored_settings, served_identity
from hierrouter.pools.pool import Endpoint, Generation, ModelSpec
from hierrouter.questions.datasets import load_queries
from hierrouter.questions.shipped import model_path
from hierrouter_cache.errors import WorldError
from tests.engines import answers_in_order
from tests.models import save_random_model
from tests.servers import Reply, Server, good, refusal, serving
from tests.vllm import Vllm

PENALTY = 1.3
# As Qwen2.5's, which has a penalty of 1.05.
SHIPPED = {
    "do_sample": True,
    "repetition_penalty": PENALTY,
    "temperature": 0.7,
    "top_k": 1,
    "top_p": 0.8,
    "min_p": 0.5,
}
TOKENS = 16
GREEDY = Generation(TOKENS)
PENALISED = replace(GREEDY, repetition_penalty=PENALTY)
DRAWN = Generation(TOKENS, temperature=0.9, seed=1)
QUESTIONS = [query.question for query in load_queries(["testbed"], 2, 42, Path())]
PROMPTS = [prompt for prompt in QUESTIONS if len(prompt) < 200]


def with_settings(folder: Path, **settings: Any) -> Path:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("plain") / "m", "qwen2")


def copy_of(plain: Path, folder: Path, **settings: Any) -> Path:
    return with_settings(Path(shutil.copytree(plain, folder / "m")), **settings)


def spec(folder: Path, generation: Generation = GREEDY) -> ModelSpec:
    return ModelSpec("m", str(folder), 0.1, dtype="float32", generation=generation)


def texts(answers: list[Answer]) -> list[str]:
    return [answer.text for answer in answers if isinstance(answer, Response)]


def answers_here(folder: Path, generation: Generation = GREEDY) -> list[Answer]:
    return answers_in_order(backend("transformers").load(spec(folder, generation)), PROMPTS)


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": PENALTY},
        {"min_new_tokens": 9},
        {"min_length": 60},
        {"suppress_tokens": list(range(20, 60))},
        {"no_repeat_ngram_size": 1},
        {"exponential_decay_length_penalty": [2, 1.5]},
        {"forced_eos_token_id": 1},
        {"max_new_tokens": 3, "max_length": 4},
        {"return_dict_in_generate": True, "output_scores": True},
        {"stop_strings": ["a", "e"]},
        {"prompt_lookup_num_tokens": 3},
        {"max_time": 1e-6},
        {"num_beams": 4, "guidance_scale": 2.0},
        {"watermarking_config": {"greenlist_ratio": 0.5}},
        {"cache_implementation": "static"},
        SHIPPED,
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_comes_with_a_local_model_changes_no_answer(
    plain: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    folder = copy_of(plain, tmp_path, **settings)
    assert answers_here(folder) == answers_here(plain)
    assert len(set(texts(answers_here(plain)))) > 10


@pytest.mark.parametrize(
    "settings",
    ["[]", "null", '{"pad_token_id": "p"}', '{"eos_token_id": [[1]]}', "[" * 5_000],
    ids=range(5),
)
def test_a_settings_file_of_another_shape_is_named_with_its_model(
    plain: Path, tmp_path: Path, settings: str
) -> None:
    folder = copy_of(plain, tmp_path)
    (folder / "generation_config.json").write_text(settings)
    with pytest.raises(WorldError, match="model m"):
        backend("transformers").load(spec(folder))


def test_only_a_model_with_such_settings_has_another_identity(plain: Path, tmp_path: Path) -> None:
    """So caches of all others stay valid."""
    identify = backend("transformers").identify
    assert set(identify(spec(plain))) == {"engine", "device", "weights", "dtype"}
    assert set(identify(spec(model_path("testbed:calc")))) == {
        "engine",
        "device",
        "weights",
        "dtype",
    }
    harmless = {"temperature": 0.7, "top_k": 20, "do_sample": True, "repetition_penalty": 1.0}
    folder = copy_of(plain, tmp_path, **harmless)
    assert ignored_settings(spec(folder)) == {}
    assert "sampling" not in identify(spec(folder))
    with_settings(folder, **SHIPPED, a_setting_of_tomorrow=3)
    assert ignored_settings(spec(folder)) == {
        "a_setting_of_tomorrow": 3,
        "repetition_penalty": PENALTY,
    }
    assert identify(spec(folder))["sampling"] == "neutral"


def test_settings_of_an_older_model_stand_with_its_architecture(
    plain: Path, tmp_path: Path
) -> None:
    folder = copy_of(plain, tmp_path)
    (folder / "generation_config.json").unlink()
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "repetition_penalty": PENALTY}))
    assert ignored_settings(spec(folder)) == {"repetition_penalty": PENALTY}


def test_a_penalty_that_the_pool_sets_is_heeded_and_is_another_call(plain: Path) -> None:
    penalised = answers_here(plain, PENALISED)
    assert penalised != answers_here(plain)
    assert PENALISED.settings == {**GREEDY.settings, "repetition_penalty": PENALTY}
    assert replace(DRAWN, repetition_penalty=PENALTY).settings != DRAWN.settings
    assert "repetition_penalty" not in DRAWN.settings  # keys of older caches


@pytest.fixture
def server(plain: Path, tmp_path: Path) -> Iterator[Vllm]:
    """vLLM with its default, which applies the settings that come with the model."""
    folder = copy_of(plain, tmp_path, **SHIPPED)
    with serving(Vllm(folder=folder)) as server:
        assert isinstance(server, Vllm)
        yield server


def there(server: Vllm, generation: Generation = GREEDY) -> ModelSpec:
    endpoint = Endpoint(server.url)
    return ModelSpec(
        "m", server.name, 0.1, backend="openai", generation=generation, endpoint=endpoint
    )


def answers_there(server: Vllm, generation: Generation = GREEDY) -> list[Answer]:
    return answers_in_order(backend("openai").load(there(server, generation)), PROMPTS)


def without_settings(server: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send what OpenAI's protocol asks for alone."""
    from hierrouter.engines.endpoint import Caller

    monkeypatch.setattr(Caller, "_fixed_settings", lambda *_: {})


def sure(answers: list[Answer]) -> list[Confidence | None]:
    return [answer.confidence for answer in answers if isinstance(answer, Response)]


@pytest.mark.parametrize("generation", [GREEDY, PENALISED], ids=["greedy", "penalised"])
def test_vllm_gives_the_answers_of_the_weights(
    server: Vllm, monkeypatch: pytest.MonkeyPatch, generation: Generation
) -> None:
    """Texts, counts, ends and log-probabilities; left to its default it gives others."""
    here = answers_here(server.folder, generation)
    answers = answers_there(server, generation)
    assert answers == here
    for mine, its in zip(sure(here), sure(answers), strict=True):
        assert mine and its
        assert its.tokens == mine.tokens
        assert its.total == pytest.approx(mine.total, abs=1e-3)
    without_settings(server, monkeypatch)
    left_to_itself = answers_there(server, generation)
    assert (left_to_itself == here) == (generation == PENALISED)  # it has the same penalty


def test_vllm_draws_from_the_models_own_distribution(
    server: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its default only the likeliest token would ever be drawn."""
    drawn = texts(answers_there(server, DRAWN))
    server.generation_config = "vllm"
    vars(server).pop("defaults")
    without_settings(server, monkeypatch)
    assert texts(answers_there(server, DRAWN)) == drawn
    server.generation_config = "auto"
    vars(server).pop("defaults")
    greedy = texts(answers_there(server, DRAWN))
    assert sum(map(str.__eq__, drawn, greedy)) < 5


def test_what_is_sent_to_vllm(server: Vllm) -> None:
    answers_there(server)
    greedy = server.requests[-1]
    assert greedy["repetition_penalty"] == 1.0
    assert "min_tokens" not in greedy  # its default is 0, which no model changes
    assert "top_k" not in greedy
    answers_there(server, DRAWN)
    assert (server.requests[-1]["top_k"], server.requests[-1]["min_p"]) == (-1, 0.0)


def test_a_ceiling_that_comes_with_the_model_cuts_and_the_answer_says_so(server: Vllm) -> None:
    """No request can lift it: the documentation says so."""
    with_settings(server.folder, max_new_tokens=2)
    answers = answers_there(server)
    assert {answer.tokens_out for answer in answers if isinstance(answer, Response)} <= {1, 2}
    assert any(
        isinstance(answer, Response) and answer.finish_reason == "length" for answer in answers
    )


def test_errors_of_vllm(server: Vllm) -> None:
    server.window = 40
    [answer] = answers_in_order(backend("openai").load(there(server)), ["word " * 60])
    assert isinstance(answer, Failure)
    assert (answer.status, "maximum context length is 40" in answer.detail) == ("too_long", True)
    unknown = replace(there(server), model="org/other")
    with pytest.raises(Outage, match=r"org/other is not served.*which serves org/model"):
        backend("openai").load(unknown)
    wrong = Generation(TOKENS, temperature=50.0)
    server.window = 512
    refused = error_of(server, wrong)
    assert "temperature must be in [0, 2]" in refused.detail


def error_of(server: Vllm, generation: Generation) -> Failure:
    [answer] = answers_in_order(backend("openai").load(there(server, generation)), PROMPTS[:1])
    assert isinstance(answer, Failure)
    return answer


STRICT = {
    "OpenAI": "Unrecognized request argument supplied: {0}",
    "all at once": "Unexpected fields in the request: {{{all}}}",
    "Mistral": "[{{'type': 'extra_forbidden', 'loc': ['body', '{0}'], 'msg': 'not permitted'}}]",
}
OPENAIS_OWN = {
    "model",
    "messages",
    "temperature",
    "max_tokens",
    "logprobs",
    "top_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
}


@pytest.mark.parametrize("words", STRICT.values(), ids=STRICT)
@pytest.mark.parametrize("generation", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.usefixtures("short_waits")
def test_a_server_that_refuses_a_setting_is_not_sent_it_again(
    words: str, generation: Generation
) -> None:
    server = Server()

    def strict(prompt: str, before: int) -> Reply:
        request = server.requests[-1]
        unknown = sorted(request.keys() - OPENAIS_OWN)
        if unknown:
            listed = ", ".join(map(repr, unknown))
            return refusal(400, words.format(unknown[0], all=listed))
        return good(prompt)

    server.script = strict
    with serving(server):
        endpoint = Endpoint(server.url, concurrency=1)
        model = ModelSpec(
            "m", "served", 0.1, backend="openai", generation=generation, endpoint=endpoint
        )
        answers = answers_in_order(backend("openai").load(model), ["a", "b", "c"])
    assert len(texts(answers)) == 3
    refused = len(server.requests) - 3
    assert refused <= 4  # by the first prompt alone
    assert server.requests[-1].keys() <= OPENAIS_OWN


def test_the_identity_of_a_served_model_says_what_was_asked_for() -> None:
    model = ModelSpec("m", "x", 0.1, backend="openai", endpoint=Endpoint("http://127.0.0.1:1/v1"))
    assert served_identity(model)["sampling"] == "neutral"
