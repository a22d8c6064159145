"""What failed is counted and logged, all of it."""

import json
from pathlib import Path

import httpx2
import pytest

from hierrouter.engines.generator import Failure, Response
from hierrouter.serving.models import OnText
from hierrouter.serving.router import Router
from tests.engines import Scripted, told
from tests.hierrouter.serving.serving import QUESTION, ask, served, with_server
from tests.servers import Reply, Server, completion, refusal, serving

MODELS = ["calc", "facts", "text"]


def counted(metrics: str) -> dict[str, float]:
    """Failed calls by model."""
    lines = [line for line in metrics.splitlines() if line.startswith("hierrouter_failed_calls_t")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


def test_every_model_that_failed_is_counted_and_logged(live_run: Path, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    engines = Scripted(lambda model, prompt: Failure("error", f"no {model}"))
    with served(Router(live_run, engines=engines), reroute=True, log=log) as url:
        found = ask(url)
        metrics = httpx2.get(f"{url}/metrics").text
    assert found.status_code == 502
    assert counted(metrics) == dict.fromkeys(MODELS, 1.0)
    [line] = map(json.loads, log.read_text().splitlines())
    *earlier, last = [model for model, _ in engines.asked]
    assert line["instead_of"] == [{"model": name, "reason": f"no {name}"} for name in earlier]
    assert line["error"] == f"{last} gave no answer: no {last}"


def test_an_answer_that_broke_off_hides_no_failure_before_it(
    live_run: Path, tmp_path: Path
) -> None:
    """The last hop: one model refuses, the next breaks off after its first words."""
    log = tmp_path / "requests.jsonl"
    with Router(live_run) as router:
        first = router.route(QUESTION).hops[0]

    def script(prompt: str, before: int) -> Reply:
        if not upstream.requests[-1].get("stream", False):
            return Reply(completion(first.response))
        streams = sum(request.get("stream", False) for request in upstream.requests)
        return refusal(400) if streams == 1 else Reply(completion("one two three"), cut=True)

    with serving(Server(script)) as upstream:
        pool = with_server(live_run, upstream, attempts=1)
        with served(Router(live_run, pool), reroute=True, log=log) as url:
            ask(url, stream=True)
            metrics = httpx2.get(f"{url}/metrics").text
    [line] = map(json.loads, log.read_text().splitlines())
    [refused] = line["instead_of"]
    assert "broke off" in line["error"]
    assert counted(metrics)[refused["model"]] == 1
    assert len(counted(metrics)) == 2


class Breaks:
    """A model that answers once."""

    asked = 0

    async def answer(self, prompt: str, on_text: OnText | None = None) -> Response:
        Breaks.asked += 1
        if Breaks.asked > 1:
            raise ZeroDivisionError
        return told("m", prompt)

    def count(self, prompt: str) -> int:
        return 1

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("stream", [False, True])
def test_calls_before_an_error_that_nobody_expected_are_logged(
    live_run: Path, tmp_path: Path, stream: bool
) -> None:
    log = tmp_path / "requests.jsonl"
    Breaks.asked = 0
    router = Router(live_run, load=False)
    router.models = dict.fromkeys(MODELS, Breaks())
    with served(router, log=log) as url:
        answer = ask(url, stream=stream)
        # Refused, so of no concern to the log.
        assert ask(url, hierrouter={"alpha": 0.7}).status_code == 400
    assert answer.status_code == 500
    [line] = map(json.loads, log.read_text().splitlines())
    assert (line["status"], line["error"]) == (500, "unexpected: ZeroDivisionError")
    assert len(line["steps"]) == 1
