"""Which addresses may be called, judged by what a name resolves to when the connection is made."""

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

import anyio
from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream, ConnectError
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


class JudgedBackend(AsyncNetworkBackend):
    """Connects as httpcore does, to addresses that were judged; each name is resolved here, once.

    Args:
        public_only: refuse this machine and private networks, too.
    """

    def __init__(self, public_only: bool) -> None:
        self._public_only = public_only
        self._connecting = AutoBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        """A connection to the first address that answers.

        Raises Forbidden: the name leads to an address that is not called.
        """
        try:
            with anyio.fail_after(timeout):
                found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, TimeoutError) as error:
            raise ConnectError(f"the name is not known: {host}") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for text in addresses:  # one of several is enough: nobody says which one is taken
            address = ip_address(text.partition("%")[0])
            if is_metadata(address):
                raise Forbidden(f"{host} is {text}, a link-local or metadata address, never called")
            if self._public_only and not is_public(address):
                raise Forbidden(
                    f"{host} is {text}, on this machine or a private network, and a stored pool "
                    f"names it; give --allow-endpoint {host}, or --pool"
                )
        problem: Exception = ConnectError(f"no address: {host}")
        for text in addresses:
            try:
                return await self._connecting.connect_tcp(
                    text, port, timeout, local_address, socket_options
                )
            except Exception as error:  # the next address may answer
                problem = error
        raise problem

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> AsyncNetworkStream:
        """Raises Forbidden: no server of a pool is a file."""
        raise Forbidden(f"a socket file is not called: {path}")

    async def sleep(self, seconds: float) -> None:
        """As httpcore's."""
        await self._connecting.sleep(seconds)


def judge_connections(client: Any, public_only: bool) -> None:
    """Let an httpx client connect through a `JudgedBackend`, by a proxy or not."""
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            transport._pool._network_backend = JudgedBackend(public_only)
