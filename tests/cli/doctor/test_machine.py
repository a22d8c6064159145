"""Devices, and a hub that answers, does not, or is switched off."""

import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hierrouter_cli.doctor_checks import devices, hub
from tests.conftest import environment

ASK = (
    "from hierrouter_cli.doctor_checks import hub; print(*[f.state + ' ' + f.text for f in hub()])"
)


def test_cores_memory_and_every_gpu_are_told() -> None:
    found = {each.subject: each.text for each in devices()}
    assert "cores" in found["cpu"] and "GiB" in found["cpu"]
    assert len(found) == 1 + (torch.cuda.device_count() or 1)


def test_a_hub_that_is_switched_off_is_a_note() -> None:
    (found,) = hub()
    assert (found.state, "HF_HUB_OFFLINE" in found.text) == ("note", True)


def asked(endpoint: str) -> str:
    env = {**environment(), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint}
    done = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True)
    return done.stdout


def test_a_hub_that_is_not_there_is_a_note() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert asked(f"http://127.0.0.1:{nobody.getsockname()[1]}").startswith("note not reached (")


@contextmanager
def answering() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"id": "a/b", "sha": "0"}')

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_hub_that_answers_is_reached() -> None:
    with answering() as endpoint:
        assert asked(endpoint) == "ok reached; models and datasets can be fetched\n"
