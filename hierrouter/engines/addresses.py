"""Which addresses may be called, judged by what a name resolves to when the connection is made."""

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

import anyio
from httpcore2 import AsyncNetworkStream, ConnectError
from httpcore2._backends.auto import AutoBackend

Address = IPv4Address | IPv6Address
# Where clouds serve credentials and settings to whoever asks, beside the link-local addresses.
CLOUDS = ("100.100.100.200", "168.63.129.16", "192.0.0.192")
METADATA = {*map(ip_address, (*CLOUDS, "fd00:ec2::23", "fd00:ec2::254", "fd20:ce::254"))}
NAT64 = IPv6Network("64:ff9b::/96")
LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")  # leads where its network decides
STAGGER_S = 0.25  # from one address of a name to the next, as RFC 8305 advises


class Forbidden(Exception):
    """An address that is not called."""


def inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, or itself."""
    if isinstance(address, IPv6Address):
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def is_metadata(address: Address) -> bool:
    """Whether it is link-local, or a known address of a cloud's metadata, however it is written."""
    meant = inner(address)
    return meant.is_link_local or address.is_link_local or {meant, address} & METADATA != set()


def is_public(address: Address) -> bool:
    """Whether it is an address of the open network: not this machine's, and of no private one."""
    return inner(address).is_global and address not in LOCAL_NAT64


async def judged(host: str, timeout: float | None, public_only: bool) -> list[str]:
    """The addresses of a name; raises ConnectError: it is not known, Forbidden: one is not called.

    One of several is enough: nobody says which one is taken.
    """
    try:
        with anyio.fail_after(timeout):
            found = await anyio.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise ConnectError(f"the name is not known: {host}") from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for text in addresses:
        address = ip_address(text.partition("%")[0])
        if is_metadata(address):
            raise Forbidden(f"{host} is {text}, a link-local or metadata address, never called")
        if public_only and not is_public(address):
            raise Forbidden(
                f"{host} is {text}, on this machine or a private network, and a stored pool "
                f"names it; give --allow-endpoint {host}, or --pool"
            )
    return addresses


class JudgedBackend(AutoBackend):
    """Connects as httpcore does, to judged addresses; each name is resolved here, once."""

    def __init__(self, public_only: bool) -> None:
        self._public_only = public_only

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *more: Any, **named: Any
    ) -> AsyncNetworkStream:
        """A connection to the address that answers first; each has a short start on the next.

        Raises Forbidden: the name leads to an address that is not called.
        """
        addresses = await judged(host, timeout, self._public_only)
        connect, streams = super().connect_tcp, list[AsyncNetworkStream]()
        problems = list[Exception]()

        async def attempt(text: str, ended: anyio.Event) -> None:
            try:
                streams.append(await connect(text, port, timeout, *more, **named))
                race.cancel_scope.cancel()
            except Exception as error:  # another address may answer
                problems.append(error)
            ended.set()

        try:
            async with anyio.create_task_group() as race:
                for text in addresses:
                    ended = anyio.Event()
                    race.start_soon(attempt, text, ended)
                    with anyio.move_on_after(STAGGER_S):
                        await ended.wait()
            if not streams:
                raise problems[-1]
            return streams.pop(0)
        finally:
            for unused in streams:
                await unused.aclose()


def judge_connections(client: Any, public_only: bool) -> None:
    """Let an httpx client call only what may be called, itself or through a proxy.

    A proxy is the user's own, and may be anywhere. It connects for us, so what it is asked for is
    judged before; a name that only the proxy knows is refused in stored pools alone.
    """
    proxies = [transport for transport in client._mounts.values() if transport is not None]
    client._transport._pool._network_backend = JudgedBackend(public_only)
    for proxy in proxies:
        proxy._pool._network_backend = JudgedBackend(public_only=False)

    async def judge(request: Any) -> None:
        if client._transport_for_url(request.url) in proxies:
            host = request.url.raw_host.decode()
            try:
                await judged(host, client.timeout.connect, public_only)
            except ConnectError as error:
                if public_only:
                    raise Forbidden(f"{error}; give --allow-endpoint {host}, or --pool") from None

    client.event_hooks["request"].append(judge)
