"""Which network addresses may be called.

A host name is checked by the addresses it resolves to, at the moment the connection is made:
a check of the name alone could be evaded by a name that resolves to a private address.
"""

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

import anyio
from httpcore2 import AsyncNetworkStream, ConnectError
from httpcore2._backends.auto import AutoBackend

Address = IPv4Address | IPv6Address
# Besides the link-local addresses, clouds serve credentials and settings to any caller here.
IPV4_METADATA = ("100.100.100.200", "168.63.129.16", "192.0.0.192")
IPV6_METADATA = ("fd00:ec2::23", "fd00:ec2::254", "fd20:ce::254")
METADATA_ADDRESSES = {ip_address(text) for text in (*IPV4_METADATA, *IPV6_METADATA)}
NAT64 = IPv6Network("64:ff9b::/96")
LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")  # the local network decides which addresses it maps to
STAGGER_S = 0.25  # delay before the next address of a name is tried, as RFC 8305 recommends


class ForbiddenAddress(Exception):
    """The address must not be called."""


def inner(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds, else the address itself."""
    if isinstance(address, IPv6Address):
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def is_metadata(address: Address) -> bool:
    """Tell whether an address, in any notation, is link-local or a cloud's metadata service."""
    embedded = inner(address)
    if embedded.is_link_local or address.is_link_local:
        return True
    return embedded in METADATA_ADDRESSES or address in METADATA_ADDRESSES


def is_public(address: Address) -> bool:
    """Tell whether an address is on the internet, not on this machine or in a private network."""
    return inner(address).is_global and address not in LOCAL_NAT64


async def resolve_allowed(host: str, timeout: float | None, public_only: bool) -> list[str]:
    """Resolve a name, and check that all its addresses may be called.

    One forbidden address is enough to reject the name, because it is open which one is used.

    Args:
        host: a name or an address.
        timeout: seconds for the resolution; None for no limit.
        public_only: whether private addresses are rejected, too.

    Returns:
        The addresses of the name, in the order of the resolver.

    Raises:
        ConnectError: the name cannot be resolved.
        ForbiddenAddress: an address of the name must not be called.
    """
    try:
        with anyio.fail_after(timeout):
            entries = await anyio.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise ConnectError(f"the name is not known: {host}") from error
    texts = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    for text in texts:
        address = ip_address(text.partition("%")[0])  # without the zone of a link-local address
        if is_metadata(address):
            raise ForbiddenAddress(
                f"{host} is {text}, a link-local or metadata address, never called"
            )
        if public_only and not is_public(address):
            raise ForbiddenAddress(
                f"{host} is {text}, on this machine or a private network, and a stored pool "
                f"names it; give --allow-endpoint {host}, or --pool"
            )
    return texts


class RestrictedBackend(AutoBackend):
    """Network backend of httpcore that connects to allowed addresses only.

    It resolves each name itself, once: a second resolution could return another address.

    Args:
        public_only: whether private addresses are rejected.
    """

    def __init__(self, public_only: bool) -> None:
        self._public_only = public_only

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **kwargs: Any
    ) -> AsyncNetworkStream:
        """Connect to the first address that answers, starting with a short delay between them.

        Args:
            host: a name or an address.
            port: the port.
            timeout: seconds for the resolution, and for each connection; None for no limit.
            *args: passed to httpcore.
            **kwargs: passed to httpcore.

        Returns:
            The stream of the connection; all others are closed.

        Raises:
            ConnectError: the name cannot be resolved, or no address answers.
            ForbiddenAddress: an address of the name must not be called.
        """
        addresses = await resolve_allowed(host, timeout, self._public_only)
        connect = super().connect_tcp  # `super()` does not work in a nested function
        streams: list[AsyncNetworkStream] = []
        problems: list[Exception] = []

        async def attempt(address: str, ended: anyio.Event) -> None:
            try:
                streams.append(await connect(address, port, timeout, *args, **kwargs))
                race.cancel_scope.cancel()
            except Exception as error:  # another address may answer
                problems.append(error)
            ended.set()

        try:
            async with anyio.create_task_group() as race:
                for address in addresses:
                    ended = anyio.Event()
                    race.start_soon(attempt, address, ended)
                    with anyio.move_on_after(STAGGER_S):
                        await ended.wait()
            if not streams:
                raise problems[-1]
            return streams.pop(0)
        finally:
            # Two attempts may have succeeded at the same moment.
            for unused in streams:
                await unused.aclose()


def restrict_connections(client: Any, public_only: bool) -> None:
    """Restrict an httpx client to allowed addresses, directly and through a proxy.

    A proxy belongs to the user and may be at any address. It makes the connection itself, so the
    host of each request is checked before the request is sent. A name that only the proxy can
    resolve is rejected for stored pools alone.

    Args:
        client: an `httpx2.AsyncClient`; it is changed in place.
        public_only: whether private addresses are rejected, as for stored pools.
    """
    proxies = [transport for transport in client._mounts.values() if transport is not None]
    client._transport._pool._network_backend = RestrictedBackend(public_only)
    for proxy in proxies:
        proxy._pool._network_backend = RestrictedBackend(public_only=False)

    async def check_host(request: Any) -> None:
        if client._transport_for_url(request.url) not in proxies:
            return
        host = request.url.raw_host.decode()
        try:
            await resolve_allowed(host, client.timeout.connect, public_only)
        except ConnectError as error:
            if public_only:
                raise ForbiddenAddress(
                    f"{error}; give --allow-endpoint {host}, or --pool"
                ) from None

    client.event_hooks["request"].append(check_host)
