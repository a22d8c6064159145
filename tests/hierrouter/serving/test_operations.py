"""Models that go and come back, a router that is exchanged, a log that is moved away."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

import hierrouter as hr
from hierrouter.engines import backend
from hierrouter.engines.generator import Response
from hierrouter.learning.config import Objective
from hierrouter.pools.files import load_pool
from hierrouter.replay.open_tree import OpenTree
from hierrouter.runs.folders import SERVICE
from hierrouter.serving.answering import Server as AnsweringServer
from hierrouter.serving.chat import ModelNames
from hierrouter.serving.logs import LogShape, read_log
from hierrouter.serving.router import Router
from hierrouter.serving.versions import Lineup, Service, Version, load_service, save_service
from hierrouter_cache.errors import InputError, WorldError
from tests.conftest import COMMAND, Run, Start, once, refused, works
from tests.hierrouter.serving.serving import (
    MODELS,
    Double,
    ask,
    figures_of,
    lines_of,
    over,
    run_in,
    served,
    user,
    with_server,
)
from tests.servers import MODEL, Reply, Server, completion, serving


@pytest.fixture(scope="session")
def other_run(testbed_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A router of the same pool that stops after one call, wherever it may."""

    def build(folder: Path) -> None:
        run_in(
            folder / "run", OpenTree(cache=testbed_cache).run(), Objective(40.0, allow_stop=True)
        )

    return once(tmp_path_factory, "cheap", build) / "run"


def version(router: Router, name: str = "test") -> Version:
    return Version(name, router, ModelNames.of(router.policy))


def test_a_server_starts_with_a_model_that_is_down_and_notices_its_return(
    live_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hierrouter.serving.remote_model.CHECK_S", 0.1)
    messages: list[str] = []
    with serving(Server()) as upstream:
        pool = with_server(live_run, upstream, "facts", attempts=1)
        router = Router(live_run, pool, load=False)
        upstream.stop()
        router.load_models(messages.append)
        assert "facts cannot be asked now: cannot connect to 127.0.0.1" in messages[0]
        with served(router, reroute=True) as url:
            ready = httpx2.get(f"{url}/ready")
            assert ready.status_code == 200
            states = {"calc": "up", "text": "up", "facts": "down"}
            assert ready.json() == {"status": "degraded", "models": states}
            assert httpx2.get(f"{url}/live").json() == {"status": "ok"}
            assert ask(url).status_code == 200
            assert figures_of(url, "hierrouter_model_up")["facts"] == 0
            with serving(Server(), port=upstream.port):
                while httpx2.get(f"{url}/ready").json()["status"] != "ready":
                    time.sleep(0.05)
            assert figures_of(url, "hierrouter_model_up")["facts"] == 1


def answers_of(name: str) -> Callable[[str], Reply]:
    """Replies of a server with the testbed's model of this name."""
    generator = backend("transformers").load(
        next(spec for spec in load_pool("testbed").models if spec.name == name)
    )

    def reply(prompt: str) -> Reply:
        [(_, response)] = generator.generate([prompt])
        assert isinstance(response, Response)
        return Reply(completion(response.text, response.tokens_in, response.tokens_out))

    return reply


def test_another_model_behind_the_same_name_is_noticed(
    live_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The real weights answer; those that answer now one way, now another have not changed."""
    facts = answers_of("facts")
    text = answers_of("text")
    behind: list[tuple[Callable[[str], Reply], ...]] = [(facts,)]  # the last ones answer in turn
    log = tmp_path / "log"
    upstream = Server(lambda prompt, before: (replies := behind[-1])[before % len(replies)](prompt))

    def rounds(count: int) -> None:
        """Wait for this many checks of the canaries, counted by calls of the first one."""
        target = upstream.asked[first] + 2 * count
        until(lambda: upstream.asked[first] >= target)

    with serving(upstream):
        router = Router(live_run, with_server(live_run, upstream, "facts"))
        first = router.canaries["facts"][0].prompt
        with served(router, canary_minutes=1e-4, log=log) as url:
            rounds(2)
            assert httpx2.get(f"{url}/ready").json() == {
                "status": "ready",
                "models": dict.fromkeys(MODELS, "up"),
            }
            behind.append((facts, text))
            rounds(2)
            assert figures_of(url, "hierrouter_model_changed")["facts"] == 0
            behind.append((text,))
            until(lambda: "changed" in httpx2.get(f"{url}/ready").json())
            ready = httpx2.get(f"{url}/ready")
            assert (ready.status_code, ready.json()["changed"]) == (200, ["facts"])
            assert figures_of(url, "hierrouter_model_changed")["facts"] == 1
            behind.append((facts,))
            until(lambda: "changed" not in httpx2.get(f"{url}/ready").json())
    assert [line["event"] for line in lines_of(log)] == ["changed", "as collected"]
    assert "facts no longer answers as it did when it was collected" in caplog.text
    assert list(router.canaries) == ["facts"]  # the others are loaded here
    with pytest.raises(InputError, match="a log without episodes"):
        read_log(log, LogShape(MODELS, 2, [(1.0, 1.0)] * 3))


def test_with_all_models_down_there_is_no_start(live_run: Path) -> None:
    with serving(Server()) as upstream:
        pool = with_server(live_run, upstream)
    with pytest.raises(WorldError, match="cannot connect"):
        Router(live_run, pool, load=False).load_models(lambda message: None)


def test_a_model_that_goes_down_later_is_reported(live_run: Path) -> None:
    with serving(Server()) as upstream:
        pool = with_server(live_run, upstream, attempts=1)
        with served(Router(live_run, pool)) as url:
            assert ask(url).status_code == 200
            upstream.stop()
            for n in range(9):  # whichever model is asked first
                ask(url, messages=user(f"compute {n}+1"))
                ask(url, messages=user(f"reverse abc{n}"))
            assert "down" in httpx2.get(f"{url}/ready").json()["models"].values()


@contextmanager
def exchanging(first: Path, *others: Path, **settings: Any) -> Iterator[tuple[str, list[Path]]]:
    """A server, and the runs that its next reloads take."""
    coming = list(others)

    def make_next(current: Lineup) -> Lineup:
        run = coming.pop(0)
        return Lineup(version(current.current.router.sibling(run), str(run)))

    lineup = Lineup(version(Router(first), str(first)))
    with served(lineup.current.router, lineup=lineup, make_next=make_next, **settings) as url:
        yield url, coming


def reload(url: str) -> httpx2.Response:
    return httpx2.post(f"{url}/admin/reload", json={}, timeout=60)


def test_a_reload_takes_the_other_router_and_loses_nothing(live_run: Path, other_run: Path) -> None:
    """Thirty-two clients ask without a break; each answer is whole, and of one of the two."""
    runs = [other_run, live_run] * 4
    wrong: list[str] = []
    routes: set[str] = set()
    done = threading.Event()

    def client(number: int) -> int:
        count = 0
        while not done.is_set():
            reply = ask(url, messages=user(f"compute {number}+{count % 7}"))
            count += 1
            answer = reply.json()
            route = answer.get("hierrouter", {}).get("route", "")
            if reply.status_code != 200 or not answer["choices"][0]["message"]["content"]:
                wrong.append(reply.text)
            routes.add("one" if route.startswith(">") else "two")
        return count

    with exchanging(live_run, *runs) as (url, coming), ThreadPoolExecutor(32) as clients:
        counts = [clients.submit(client, n) for n in range(32)]
        for run in list(coming):
            time.sleep(0.2)
            reply = reload(url)
            assert reply.status_code == 200
            assert reply.json()["in_service"] == str(run)
        done.set()
        assert sum(count.result() for count in counts) > 32
    assert not wrong, wrong[0]
    assert routes == {"one", "two"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_router_that_is_retired_right_after_it_was_picked_answers(
    live_run: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """The next turn of the event loop retires it, before any task can begin to route."""
    pick = Lineup.pick

    def pick_and_retire(lineup: Lineup, question: str) -> Version:
        picked = pick(lineup, question)
        asyncio.get_running_loop().call_soon(picked.retire)
        return picked

    monkeypatch.setattr(Lineup, "pick", pick_and_retire)
    with served(over(live_run, Double())) as url:
        reply = ask(url, stream=stream)
    assert reply.status_code == 200, reply.text


def test_a_shadow_that_is_retired_right_after_the_answer_still_decides(
    live_run: Path, other_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = AnsweringServer.spawn

    def retire_and_spawn(server: AnsweringServer, work: Any) -> None:
        asyncio.get_running_loop().call_soon(lineup.candidate.retire)
        spawn(server, work)

    router = Router(live_run)
    lineup = Lineup(version(router, "old"), version(router.sibling(other_run), "new"))
    monkeypatch.setattr(AnsweringServer, "spawn", retire_and_spawn)
    log = tmp_path / "log"
    with served(router, lineup=lineup, log=log) as url:
        assert ask(url).status_code == 200
    [line] = lines_of(log)
    assert "error" not in line["shadow"]
    assert line["shadow"]["would"]


def test_a_router_of_another_pool_is_refused(
    live_run: Path, tmp_path: Path, testbed_cache: Path
) -> None:
    tree = OpenTree(cache=testbed_cache, models=("calc", "text")).run()
    run_in(tmp_path, tree, Objective(0.1))
    with exchanging(live_run, tmp_path, tmp_path / "nowhere") as (url, _):
        for message in ("the pool is not the policy's", "nowhere"):
            reply = reload(url)
            assert reply.status_code == 409
            error = reply.json()["error"]["message"]
            assert message in error
            assert error.endswith("the router in service stays")
            assert ask(url).status_code == 200
        versions = httpx2.get(f"{url}/admin/versions").json()
    assert versions == {"in_service": str(live_run), "candidate": None, "share": 0.0}


def test_the_thread_of_a_router_that_was_replaced_ends(live_run: Path, other_run: Path) -> None:
    def deciders() -> int:
        return sum(thread.name.startswith("router") for thread in threading.enumerate())

    with exchanging(live_run, *[other_run, live_run] * 6) as (url, coming):
        counts = []
        while coming:
            assert ask(url).status_code == 200
            assert reload(url).status_code == 200
            counts.append(deciders())
    assert max(counts) <= min(counts) + 1


def test_decisions_of_a_shadow_are_logged(live_run: Path, other_run: Path, tmp_path: Path) -> None:
    router = Router(live_run)
    lineup = Lineup(version(router, "old"), version(router.sibling(other_run), "new"))
    log = tmp_path / "log"
    with served(router, lineup=lineup, log=log) as url:
        routes = [ask(url).json()["hierrouter"]["route"], ask(url).json()["hierrouter"]["route"]]
        while len(lines_of(log)) < 2:
            time.sleep(0.01)
        assert figures_of(url, "hierrouter_answered_total")["old"] == 2
        assert figures_of(url, "hierrouter_shadow_total")["false"] >= 2
    for line, route in zip(lines_of(log), routes, strict=True):
        assert (line["policy"], line["route"]) == ("old", route)
        assert line["shadow"]["policy"] == "new"
        assert line["shadow"]["would"][0].endswith(">stop")


def test_a_candidate_answers_its_share_and_always_the_same_questions(
    live_run: Path, other_run: Path, tmp_path: Path
) -> None:
    router = Router(live_run)
    lineup = Lineup(version(router, "old"), version(router.sibling(other_run), "new"), share=0.3)
    log = tmp_path / "log"
    with served(router, lineup=lineup, log=log) as url:
        for n in [*range(60), *range(60)]:
            assert ask(url, messages=user(f"compute {n}+1")).status_code == 200
    lines = lines_of(log)
    policies = [line["policy"] for line in lines]
    assert policies[:60] == policies[60:]
    assert 6 <= policies[:60].count("new") <= 30
    assert all(line["route"].startswith(">") == (line["policy"] == "new") for line in lines)


def test_a_log_that_is_moved_away_goes_on_in_a_new_file(live_run: Path, tmp_path: Path) -> None:
    log, moved = tmp_path / "log", tmp_path / "log.1"
    with served(over(live_run, Double()), log=log) as url:
        ask(url)
        log.rename(moved)
        ask(url)
        log.unlink()
        ask(url)
    assert [len(lines_of(file)) for file in (moved, log)] == [1, 1]
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_deployed_service_is_stored_and_can_go_back(tmp_path: Path) -> None:
    assert load_service(tmp_path) is None
    service = Service("a").try_out("b", 0.1)
    save_service(service, tmp_path)
    assert load_service(tmp_path) == service
    assert service.put("b") == Service("b", before=("a",))
    assert service.put("b").go_back() == Service("a")
    assert service.go_back() == Service("a")
    with pytest.raises(InputError, match="no run was in service before a"):
        Service("a").go_back()
    for text in ("{", "[]", '{"run": 1, "before": []}', '{"run": "a", "share": 2, "before": []}'):
        (tmp_path / SERVICE).write_text(text)
        with pytest.raises(InputError, match=r"service.json is damaged"):
            load_service(tmp_path)


def address_of(process: Any, ending: str = " [^\n]*\n") -> str:
    return process.wait_for(rf"(http://127.0.0.1:\d+)/v1{ending}")


def first_route(url: str) -> str:
    reply = ask(url, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()["hierrouter"]["route"]


@pytest.fixture
def folder(live_run: Path, other_run: Path, tmp_path: Path) -> Path:
    """A place with two runs."""
    for name, run in (("old", live_run), ("new", other_run)):
        (tmp_path / name).symlink_to(run)
    return tmp_path


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 300  # a worker starts in seconds, on a busy machine in a minute
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_deploy_and_a_signal_put_another_router_in_service(
    folder: Path, start: Start, hierrouter: Run
) -> None:
    works(hierrouter("deploy", "old", cwd=folder))
    process = start("serve", "--port", "0", "--log", "log", cwd=folder)
    try:
        url = address_of(process)
        assert not first_route(url).startswith(">")
        stdout = works(hierrouter("deploy", "new", "--shadow", cwd=folder)).stdout
        assert stdout == "in service: old\ncandidate:  new, a shadow\n"
        os.kill(process.pid, signal.SIGHUP)
        until(lambda: httpx2.get(f"{url}/admin/versions").json()["candidate"] == "new")
        works(hierrouter("deploy", "new", "--share", "0.5", cwd=folder))
        assert reload(url).json() == {"in_service": "old", "candidate": "new", "share": 0.5}
        stdout = works(hierrouter("deploy", "new", cwd=folder)).stdout
        assert stdout == "in service: new\nbefore:     old\n"
        assert reload(url).json()["in_service"] == "new"
        assert first_route(url).startswith(">")
        works(hierrouter("deploy", "--back", cwd=folder))
        os.kill(process.pid, signal.SIGHUP)
        until(lambda: not first_route(url).startswith(">"))
        (folder / "runs" / SERVICE).write_text("{")
        os.kill(process.pid, signal.SIGHUP)
        process.wait_for(r"not reloaded, the router in service stays: service.json is (damaged)")
        (folder / "runs" / SERVICE).unlink()  # the newest run is no substitute
        reply = reload(url)
        assert reply.status_code == 409
        assert "service.json is gone" in reply.json()["error"]["message"]
        assert first_route(url)
    finally:
        process.send_signal(signal.SIGINT)
        process.result(timeout=60)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "nothing was deployed; name a run"),
        (["--back"], "nothing was deployed; name a run"),
        (["--shadow"], "that is not clear"),
        (["old", "--back"], "--back takes no run: old"),
        (["old", "--shadow", "--share", "0.1"], "that is not clear"),
        (["nowhere"], "nowhere"),
    ],
)
def test_deploy_refuses_bad_arguments(
    folder: Path, hierrouter: Run, flags: list[str], message: str
) -> None:
    assert message in refused(hierrouter("deploy", *flags, cwd=folder))
    assert not (folder / "runs" / SERVICE).exists()


def test_python_deploys_as_the_command_does(
    folder: Path, hierrouter: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="nothing was deployed"):
        hr.deploy()
    assert hr.deploy("old") == Service("old")
    assert hr.deploy("new", share=0.5) == Service("old", candidate="new", share=0.5)
    assert works(hierrouter("deploy", cwd=folder)).stdout.endswith("new, answers 50%\n")
    assert hr.deploy(back=True) == hr.deploy() == Service("old")
    with pytest.raises(InputError, match="not clear; give run=, or run= with shadow= or share= X"):
        hr.deploy(shadow=True)


def test_several_workers_share_the_address_and_are_exchanged_one_by_one(
    folder: Path, start: Start, hierrouter: Run
) -> None:
    works(hierrouter("deploy", "old", cwd=folder))
    process = start("serve", "--port", "0", "--workers", "2", "--log", "log", cwd=folder)
    try:
        url = address_of(process, " by 2 workers\n")
        assert not first_route(url).startswith(">")
        works(hierrouter("deploy", "new", cwd=folder))
        assert reload(url).status_code == 202
        routes: list[str] = []
        until(lambda: not routes.append(first_route(url)) and routes[-1].startswith(">"))
        assert sum(figures_of(url, "hierrouter_answered_total").values()) == len(routes) + 1
    finally:
        process.send_signal(signal.SIGTERM)
        process.result(timeout=60)
    assert len(lines_of(folder / "log")) == len(routes) + 1


def test_a_server_without_free_files_says_so_once_and_goes_on(folder: Path) -> None:
    """More clients than it may have files; those that it has taken are answered meanwhile."""
    limit = f"ulimit -n 256; exec {sys.executable} -m hierrouter_cli"
    words = ["sh", "-c", f"{limit} serve --port 0 --checkpoint new --canaries 0"]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if match := re.search(r"http://(127.0.0.1):(\d+)/v1 as", line):
                break
        assert match
        url = f"http://{match[1]}:{match[2]}"
        with httpx2.Client() as client, ExitStack() as idle:
            assert client.get(f"{url}/live").status_code == 200
            for _ in range(300):
                idle.enter_context(socket.create_connection((match[1], int(match[2]))))
            assert (
                "too many open files, so that new clients have to wait" in process.stderr.readline()
            )
            assert client.get(f"{url}/live").status_code == 200
        assert first_route(url).startswith(">")
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "serve: ended\n"


def test_workers_stay_with_their_router_and_end_with_their_parent(
    folder: Path, start: Start, hierrouter: Run
) -> None:
    """A damaged state, a worker that is killed, and then a parent that is killed."""
    works(hierrouter("deploy", "new", cwd=folder))
    process = start("serve", "--port", "0", "--workers", "2", cwd=folder)
    url = address_of(process, " by 2 workers\n")
    assert ask(url, timeout=300).status_code == 200  # by then a worker has loaded its models
    parent = psutil.Process(process.pid)

    def is_worker(child: psutil.Process) -> bool:
        try:
            return "spawn_main" in " ".join(child.cmdline())
        except psutil.Error:  # it has ended, and its parent has not noticed yet
            return False

    def workers() -> list[psutil.Process]:
        return [child for child in parent.children() if is_worker(child)]

    (folder / "runs" / SERVICE).write_text("{")
    assert reload(url).status_code == 202
    process.wait_for(r"not reloaded, the router in service stays: service.json is (damaged)")
    killed, other = workers()
    killed.kill()
    until(lambda: other in workers() and len(workers()) == 2 and killed not in workers())
    assert all(first_route(url).startswith(">") for _ in range(4))
    left = workers()
    process.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(left, timeout=60)
    for worker in alive:
        worker.kill()
    assert not alive
    with pytest.raises(httpx2.ConnectError):
        reload(url)
    process.result(timeout=60)


def test_workers_that_cannot_start_end_the_server_with_the_reason(
    folder: Path, start: Start
) -> None:
    process = start("serve", "--port", "0", "--workers", "2", "--checkpoint", "x", cwd=folder)
    done = process.result(timeout=60)
    assert done.returncode in (1, 2)
    assert "x" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [("cals", "no model of the pool: --otherwise cals; did you mean calc"), ("calc", "is loaded")],
)
def test_a_model_for_the_rest_must_be_on_a_server(
    folder: Path, hierrouter: Run, name: str, message: str
) -> None:
    flags = ("--port", "0", "--checkpoint", "old", "--otherwise", name)
    assert message in refused(hierrouter("serve", *flags, cwd=folder))


def test_a_server_for_models_elsewhere_loads_nothing_heavy(folder: Path) -> None:
    """In a new process: other tests begin with everything loaded."""
    with serving(Server()) as upstream:
        (folder / "pool.toml").write_text(
            "[pool]\nhops = 2\n"
            + "".join(
                f'[[models]]\nname = "{name}"\nmodel = "{MODEL}"\nbase_rate = {rate}\n'
                f'backend = "openai"\nendpoint = {{base_url = "{upstream.url}"}}\n'
                for name, rate in zip(MODELS, (0.03, 0.02, 0.03), strict=True)
            )
        )
        flags = ("--port", "0", "--checkpoint", "new", "--pool", "pool.toml")
        words = [*COMMAND, "serve", *flags]
        with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            for line in process.stderr:
                if match := re.search(r"(http://127.0.0.1:\d+)/v1 as", line):
                    break
            assert match
            assert first_route(match[1]).startswith(">")
            mapped = Path(f"/proc/{process.pid}/maps").read_text()
            process.send_signal(signal.SIGINT)
    heavy = ("torch", "scipy", "sklearn", "pandas", "transformers")
    assert [name for name in heavy if f"/{name}/" in mapped] == []
