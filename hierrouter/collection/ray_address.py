"""The address of a Ray cluster, and whether its head answers.

Ray itself tries for minutes to reach a head that is gone, and ends the whole process if something
else listens there. So the head is tried from another process first, with a limit of seconds.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from typing import NamedTuple

from hierrouter_cache.errors import InputError, WorldError

AUTO = "auto"  # the cluster that this machine belongs to
CLIENT_SCHEME = "ray://"
CLIENT_PORT = 10001  # Ray's default for connections from outside of a cluster
ADDRESS_PATTERN = re.compile(
    r"(?P<scheme>ray://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(:(?P<port>\d{1,5}))?"
)
ERROR_PATTERN = re.compile(r"[\w.]*(Error|Exception): (?P<message>.+)")
MAX_PORT = 65_535
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 12.0  # from the import of Ray on, which may take long on a slow disk
# The program of the other process; it writes a byte when Ray is imported.
PROBE = """
import sys, ray
sys.stdout.buffer.write(b".")
sys.stdout.flush()
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
"""


class HeadAddress(NamedTuple):
    """Where the head of a cluster listens."""

    host: str
    port: int


def parse_ray_address(address: str) -> HeadAddress | None:
    """Read the address of a cluster.

    Args:
        address: "auto", "HOST:PORT", or "ray://HOST" with a port or without one.

    Returns:
        The head's address; None for "auto".

    Raises:
        InputError: it is no such address.
    """
    if address == AUTO:
        return None
    match = ADDRESS_PATTERN.fullmatch(address)
    port = None
    if match and match["port"]:
        port = int(match["port"])
    elif match and match["scheme"]:
        port = CLIENT_PORT
    if match is None or port is None or not 0 < port <= MAX_PORT:
        raise InputError(
            f"not a cluster: --ray-address {address}; use auto, HOST:PORT of its head, or "
            f"{CLIENT_SCHEME}HOST:{CLIENT_PORT}"
        )
    return HeadAddress(match["host"].strip("[]"), port)


def require_listener(address: str) -> None:
    """Refuse a cluster if nothing listens at the address of its head.

    Args:
        address: as for `parse_ray_address`.

    Raises:
        InputError: it is no such address.
        WorldError: nothing listens there.
    """
    head = parse_ray_address(address)
    if head is None:
        return
    try:
        socket.create_connection(head, CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise no_cluster(address, error.strerror or "it does not answer") from error


def require_head(address: str) -> None:
    """Refuse a cluster whose head does not answer within seconds; ray must be installed.

    Another process connects, which may hang or be ended by Ray.

    Args:
        address: as for `parse_ray_address`.

    Raises:
        WorldError: what listens there is no head of a cluster, or none is found.
    """
    command = [sys.executable, "-c", PROBE, address]
    with subprocess.Popen(  # noqa: S603 - our own interpreter and program
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.read(1)
        try:
            _, errors = process.communicate(timeout=ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            reason = f"no answer of a head within {ANSWER_TIMEOUT_S:g} s"
            raise no_cluster(address, reason) from error
    if process.returncode:
        raise no_cluster(address, _last_error(errors.decode(errors="replace")))


def _last_error(errors: str) -> str:
    """Return the message of the error that ended a Python program."""
    lines = errors.strip().splitlines()
    match = ERROR_PATTERN.fullmatch(lines[-1]) if lines else None
    return match["message"] if match else "Ray ended without an error"


def no_cluster(address: str, reason: str) -> WorldError:
    """Return the error for a cluster that cannot be reached."""
    return WorldError(
        f"no Ray cluster: {address}: {reason[:160]}; start one with `ray start --head`"
    )
