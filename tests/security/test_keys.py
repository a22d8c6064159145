"""A key is sent to the server that it is for, and found nowhere else."""

import json
import shutil
from pathlib import Path

import httpx2
import pyarrow.parquet as pq
import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.questions.query import Query
from hierrouter.replay.open_tree import OpenTree
from hierrouter.runs.bundle import bundle_of, save_bundle
from hierrouter.serving.router import Router
from tests.hierrouter.serving.serving import served, with_server
from tests.servers import Reply, Server, completion, refusal, serving

UPSTREAM, OWN = "sk-CANARY-upstream-g0h1j2k3", "sk-CANARY-own-g0h1j2k3"


def text_of(file: Path) -> str:
    """What a file holds, unpacked."""
    if file.suffix == ".parquet":
        metadata = pq.read_metadata(file).metadata
        return f"{pq.read_table(file).to_pylist()} {metadata}"
    return file.read_bytes().decode("latin-1")


def test_no_key_is_found_anywhere(
    live_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """The server even says it, in an answer, in pieces of a stream and in a refusal."""
    monkeypatch.setenv("HR_KEY", UPSTREAM)

    def script(prompt: str, before: int) -> Reply:
        said = f"your key is {UPSTREAM}"
        return refusal(400, said) if "refuse" in prompt else Reply(completion(said))

    run, said = shutil.copytree(live_run, tmp_path / "run"), []
    with serving(Server(script)) as server:
        pool = with_server(run, server, api_key_env="HR_KEY", attempts=1)
        questions = ["compute 1+1", "compute 2+2", "refuse"]
        queries = [Query(text, "mine", text, ("2",), "train") for text in questions]
        fill_cache(pool, queries[:2], tmp_path / "cache")
        summary = fill_cache(pool, queries, tmp_path / "cache")
        assert sum(summary.failed.values()) > 0
        cache = tmp_path / "cache"
        tree = OpenTree(cache=cache, allow_incomplete=True).run()
        save_bundle(bundle_of(cache, tree), run)
        log = tmp_path / "requests.jsonl"
        with served(Router(run, pool), key=OWN, log=log) as url:
            for key in (OWN, "sk-other"):
                client = httpx2.Client(headers={"Authorization": f"Bearer {key}"}, timeout=60)
                for text in questions:
                    for stream in (False, True):
                        body = {"messages": [{"role": "user", "content": text}], "stream": stream}
                        found = client.post(f"{url}/v1/chat/completions", json=body)
                        said += [found.text, str(found.headers)]
                said += [client.get(url + path).text for path in ("/metrics", "/v1/models")]
        assert {headers["authorization"] for headers in server.seen} == {f"Bearer {UPSTREAM}"}
    assert any("your key is ***" in text for text in said)
    said += [*capfd.readouterr(), *map(text_of, filter(Path.is_file, tmp_path.rglob("*")))]
    assert len(said) > 30
    assert not [text for text in said if "CANARY" in text or "g0h1" in text]
    assert "your key is ***" in json.dumps(said)
