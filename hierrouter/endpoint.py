"""A server that answers for a model.

Plain values, what they may be, and the one place that reads a key from the environment. Not
covered: calling it (`hierrouter.collect.backends.endpoint`), reading it from a pool file
(`hierrouter.pool_file`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import ip_address
from math import isfinite
from urllib.parse import SplitResult, urlsplit

from hierrouter_cache.errors import InputError

OPENAI = "openai"  # the backend of models that a server answers for
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEY = re.compile(r"[!-~]+")  # what an HTTP header takes
URL = re.compile(r"[!-~]+")
MOST_CALLERS = 1_000
MOST_ATTEMPTS = 20
LONGEST_TIMEOUT_S = 86_400.0


@dataclass(frozen=True)
class Endpoint:
    """Where an OpenAI-compatible server is and how it is called.

    Attributes:
        base_url: up to and with the version, e.g. `http://127.0.0.1:8000/v1`; empty where the
            command line names it.
        api_key_env: the environment variable that holds the key; None where none is wanted.
        deployment: names what is served, for the model's identity; None is the base_url. With
            a name of its own a server keeps its answers when it moves to another address.
        answers_as: the model that answers must name; None is the one that is asked for.
        tokenizer: folder or hub id; counts tokens where the server sends no usage.
        concurrency: calls under way at once.
        timeout_s: seconds for one call, from the connection to the last byte.
        attempts: how often one call is made before it has failed.
        insecure: send the key over plain http to another machine.
    """

    base_url: str = ""
    api_key_env: str | None = None
    deployment: str | None = None
    answers_as: str | None = None
    tokenizer: str | None = None
    concurrency: int = 16
    timeout_s: float = 600.0
    attempts: int = 5
    insecure: bool = False

    @property
    def address(self) -> str:
        """host:port, for messages."""
        parts = urlsplit(self.base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return f"{_bracketed(parts.hostname or '')}:{port}"

    def check(self, place: str) -> None:
        """Refuse what cannot be called, or not safely.

        Args:
            place: where the endpoint stands, for messages.

        Raises:
            InputError: with the field and what is expected there; never with a secret.
        """
        self._check_numbers(place)
        for name in ("deployment", "answers_as", "tokenizer"):
            if getattr(self, name) == "":
                raise InputError(f"{name} must not be empty: {place}")
        if self.api_key_env is not None:
            _require_variable(self.api_key_env, place)
        if not self.base_url:
            return
        parts = _checked_url(self.base_url, place)
        risky = parts.scheme == "http" and not is_loopback(parts.hostname or "")
        if self.api_key_env and risky and not self.insecure:
            raise InputError(
                f"the key in {self.api_key_env} would go over plain http: {place}; "
                "use https, or insecure = true (--insecure)"
            )

    def _check_numbers(self, place: str) -> None:
        if not 1 <= self.concurrency <= MOST_CALLERS:
            raise InputError(
                f"concurrency must be 1 to {MOST_CALLERS}, got {self.concurrency}: {place}"
            )
        if not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise InputError(f"attempts must be 1 to {MOST_ATTEMPTS}, got {self.attempts}: {place}")
        if not (isfinite(self.timeout_s) and 0 < self.timeout_s <= LONGEST_TIMEOUT_S):
            raise InputError(
                f"timeout_s must be above 0 and at most {LONGEST_TIMEOUT_S:g} seconds, "
                f"got {self.timeout_s:g}: {place}"
            )

    def key(self, place: str) -> str | None:
        """The key, from the environment; None where none is wanted.

        Raises:
            InputError: see `key_in`.
        """
        return None if self.api_key_env is None else key_in(self.api_key_env, place)


def key_in(variable: str, place: str) -> str:
    """The key that an environment variable holds.

    Args:
        place: what wants it, for messages.

    Raises:
        InputError: no variable has this name, it is not set, or it holds what no header takes.
    """
    _require_variable(variable, place)
    value = os.environ.get(variable, "").strip()
    if not value:
        raise InputError(f"{variable} is not set: {place}; it must hold the API key")
    if not KEY.fullmatch(value):
        raise InputError(f"{variable} holds characters that no key has: {place}; set it again")
    return value


def _require_variable(name: str, place: str) -> None:
    """Without repeating it: a key may have been given in its place."""
    if not VARIABLE.fullmatch(name):
        raise InputError(
            f"api_key_env must be the name of an environment variable: {place}; not the key itself"
        )


def _checked_url(url: str, place: str) -> SplitResult:
    """The parts of a base_url; nothing of it is repeated in a message before it is known clean."""
    example = "e.g. http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(url)
        host = parts.port != 0 and parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if not host or not URL.fullmatch(url) or parts.scheme not in ("http", "https"):
        raise InputError(f"base_url must be http:// or https:// and a host: {place}; {example}")
    if parts.username is not None or parts.password is not None:
        raise InputError(f"base_url must hold no user and password: {place}; use api_key_env")
    if parts.query or parts.fragment:
        raise InputError(f"base_url must end after the path: {place}; {example}")
    if _is_link_local(host):
        raise InputError(f"base_url {host} is a link-local http address: {place}; {example}")
    return parts


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"  # some machines ask a server where names below it lead


def _is_link_local(host: str) -> bool:
    """Where clouds serve credentials to whoever asks."""
    try:
        return ip_address(host).is_link_local
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
