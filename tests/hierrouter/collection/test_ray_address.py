"""Addresses of Ray clusters, and heads that do not answer."""

import importlib.util
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierrouter.collection.cluster import parse_ray_address, require_head, require_listener
from hierrouter.collection.collect import Collect
from hierrouter_cache.errors import InputError, WorldError
from tests.conftest import COMMAND, spawned
from tests.servers import Server, good, serving

LIMIT_S = 20.0


@pytest.mark.parametrize(
    ("address", "head"),
    [
        ("auto", None),
        ("head:6379", ("head", 6379)),
        ("10.0.0.5:6379", ("10.0.0.5", 6379)),
        ("[::1]:6379", ("::1", 6379)),
        ("ray://head:10001", ("head", 10001)),
        ("ray://head", ("head", 10001)),
    ],
)
def test_an_address_is_auto_or_that_of_a_head(address: str, head: tuple[str, int] | None) -> None:
    assert parse_ray_address(address) == head
    Collect(engine="ray", ray_address=address).check()


NO_ADDRESSES = """
head Auto local :6379 head: head:x head:0 head:65536 head:123456 http://head:6379 ray:// [::1:1
ray://user@head:1 head:6379/x
"""


@pytest.mark.parametrize("address", [*NO_ADDRESSES.split(), "a b:1", ""])
def test_anything_else_is_refused(address: str) -> None:
    with pytest.raises(InputError, match=r"not a cluster: --ray-address .*; use auto, HOST:PORT"):
        Collect(engine="ray", ray_address=address).check()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of something that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def free_port() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def require_refusal(address: str) -> None:
    """A dead head is named in one line, in time."""
    began = time.monotonic()
    with pytest.raises(WorldError, match="no Ray cluster: ") as error:
        require_listener(address)
        require_head(address)
    assert time.monotonic() - began < LIMIT_S
    message = str(error.value)
    assert message.startswith(f"no Ray cluster: {address}: ")
    assert message.endswith("; start one with `ray start --head`")
    assert "\n" not in message


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_head_that_is_gone_is_named_at_once(scheme: str) -> None:
    began = time.monotonic()
    require_refusal(scheme + free_port())
    assert time.monotonic() - began < 5


def test_a_name_that_no_machine_has_is_named() -> None:
    require_refusal("no-such-host.invalid:6379")


@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="ray is not installed")
@pytest.mark.parametrize("scheme", ["", pytest.param("ray://", marks=pytest.mark.slow)])
def test_what_is_no_head_is_named_in_time(scheme: str, silent: str) -> None:
    require_refusal(scheme + silent)
    with serving(Server(good)) as server:
        require_refusal(scheme + server.address)


def test_the_command_ends_with_a_line_and_1(tmp_path: Path) -> None:
    address = free_port()
    words = f"collect --datasets arith --limit 1 --engine ray --ray-address {address}"
    done = spawned(*COMMAND, *words.split(), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: no Ray cluster: {address}: ")
    assert done.stdout == ""
