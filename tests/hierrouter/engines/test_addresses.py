"""Servers are judged by the address that is connected to, however it is written."""

import socket
import time
from contextlib import ExitStack
from ipaddress import ip_address
from typing import Any

import anyio
import pytest

from hierrouter.engines.addresses import ForbiddenAddress, RestrictedBackend, is_metadata, is_public
from hierrouter.engines.endpoint_client import Client
from hierrouter.engines.generator import Outage
from hierrouter.pools.pool import Endpoint
from tests.servers import Server, serving

METADATA = "169.254.169.254"

LINK_LOCAL = f"{METADATA} ::ffff:{METADATA} ::ffff:a9fe:a9fe 64:ff9b::a9fe:a9fe 169.254.0.1 fe80::1"
CLOUDS = "100.100.100.200 168.63.129.16 192.0.0.192 fd00:ec2::23 fd00:ec2::254 fd20:ce::254"
PUBLIC = "8.8.8.8 2606:4700::1111 64:ff9b::808:808"
LOCAL = "127.0.0.1 ::1 ::ffff:127.0.0.1 0.0.0.0"
PRIVATE = "10.1.2.3 192.168.0.9 172.16.0.1 fd12::1 100.64.0.1 64:ff9b::a01:203 64:ff9b:1::808:808"


@pytest.mark.parametrize("text", [*LINK_LOCAL.split(), *CLOUDS.split(), "2002:a9fe:a9fe::1"])
def test_metadata_and_link_local_addresses_in_any_spelling(text: str) -> None:
    assert is_metadata(ip_address(text))


@pytest.mark.parametrize("text", f"{PUBLIC} {LOCAL} {PRIVATE}".split())
def test_what_is_of_the_open_network(text: str) -> None:
    assert is_public(ip_address(text)) == (text in PUBLIC.split())
    assert not is_metadata(ip_address(text))


@pytest.mark.parametrize(
    "host",
    ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "::ffff:169.254.169.254"],
)
def test_other_spellings_are_judged_by_what_the_system_makes_of_them(host: str) -> None:
    with pytest.raises(ForbiddenAddress, match="link-local or metadata"):
        anyio.run(RestrictedBackend(False).connect_tcp, host, 80, 1.0)


def client_of(server: Server, host: str, public_only: bool = False) -> Client:
    url = f"http://{host}:{server.port}/v1"
    return Client(Endpoint(base_url=url, public_only=public_only), None)


async def listed(client: Client) -> object:
    try:
        return await client.list_models()
    finally:
        await client.close()


def lead(monkeypatch: pytest.MonkeyPatch, name: str, *addresses: str) -> None:
    """Answer for a name as a name server of others may."""
    real = socket.getaddrinfo

    def resolved(host: Any, port: Any, *more: Any, **named: Any) -> Any:
        if host in (name, name.encode()):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (it, port)) for it in addresses]
        return real(host, port, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


def test_a_name_that_leads_to_metadata_gets_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another address stands beside it."""
    lead(monkeypatch, "models.example", "127.0.0.1", METADATA)
    with serving(Server()) as server:
        with pytest.raises(Outage, match=r"models\.example is 169\.254\.169\.254, a link-local"):
            anyio.run(listed, client_of(server, "models.example"))
        assert server.seen == []


@pytest.mark.parametrize(
    ("host", "public_only", "said"),
    [
        ("2852039166", False, "link-local or metadata"),
        ("models.example", False, "link-local or metadata"),
        ("10.1.2.3", True, "private network.*--allow-endpoint 10.1.2.3"),
        ("unknown.invalid", True, "not known.*--allow-endpoint unknown.invalid"),
        ("unknown.invalid", False, None),
        ("8.8.8.8", True, None),
    ],
)
def test_a_proxy_is_asked_for_nothing_that_is_not_called(
    host: str, public_only: bool, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy itself is on this machine."""
    lead(monkeypatch, "models.example", METADATA)
    with serving(Server()) as server:
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
        client = client_of(server, host, public_only)
        if said is None:
            anyio.run(listed, client)
        else:
            with pytest.raises(Outage, match=said):
                anyio.run(listed, client)
        assert len(server.seen) == (said is None)


def test_an_address_that_does_not_answer_holds_the_next_one_up_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue of connections that is full answers nobody."""
    lead(monkeypatch, "models.example", "127.0.0.2", "127.0.0.1")
    with serving(Server()) as server, socket.socket() as silent, ExitStack() as waiting:
        silent.bind(("127.0.0.2", server.port))
        silent.listen(0)
        for _ in range(4):
            caller = waiting.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(silent.getsockname())
        began = time.monotonic()
        anyio.run(listed, client_of(server, "models.example"))
        assert time.monotonic() - began < 5 and len(server.seen) == 1


def test_a_stored_pool_reaches_this_machine_under_no_name() -> None:
    with serving(Server()) as server:
        for host in ("127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]"):
            with pytest.raises(Outage, match=r"on this machine or a private network.*--allow-end"):
                anyio.run(listed, client_of(server, host, public_only=True))
        assert server.seen == []
        anyio.run(listed, client_of(server, "127.0.0.1"))
        assert len(server.seen) == 1
