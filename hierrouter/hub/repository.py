"""Repositories of the Hugging Face hub: what of them is on this machine, and the hub for the rest.

The hub's client keeps the files of each commit in a folder, `snapshots/COMMIT`. In `refs` it notes
the commit of a branch or tag that was fetched by its name, but nothing if files were fetched by
commit, as this package does. Of a repository that was fetched as a whole it keeps the listing, too.

Only `ask_commit` and `fetch` ask the hub. Each begins with one short request without retries, so
that a hub that is out of reach is noticed at once: the client alone would try for minutes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from time import monotonic
from typing import Any

MODEL = "model"
DATASET = "dataset"
DEFAULT_BRANCH = "main"
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")
COMMIT_CHARACTERS = 12  # of a commit in messages
REQUEST_TIMEOUT_S = 5.0
# For so long after a request without any reply no other one is made.
OUTAGE_SECONDS = 30.0
REFUSALS = (401, 403)  # HTTP statuses

# Tells whether the folder of a commit holds what is to be loaded.
IsUsable = Callable[[Path], bool]


class HubError(Exception):
    """A commit or files of a repository cannot be had; the message is the reason.

    Attributes:
        commits: the usable commits on this machine, none of which is known to be meant.
    """

    def __init__(self, reason: str, commits: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.commits = tuple(commits)


@dataclass(frozen=True)
class Repository:
    """A repository on the hub, and its folder in the cache of the hub's client.

    Attributes:
        id: owner and name.
        kind: `MODEL` or `DATASET`.
    """

    id: str
    kind: str = MODEL

    @property
    def folder(self) -> Path:
        """The folder, whether it exists or not."""
        from huggingface_hub import constants

        root = Path(constants.HF_HUB_CACHE).expanduser()
        return root / f"{self.kind}s--{self.id.replace('/', '--')}"

    @property
    def commits(self) -> tuple[str, ...]:
        """The commits with files on this machine, in the order of their names."""
        try:
            return tuple(sorted(path.name for path in (self.folder / "snapshots").iterdir()))
        except OSError:
            return ()

    def snapshot(self, commit: str) -> Path:
        """The folder of a commit, whether it exists or not."""
        return self.folder / "snapshots" / commit

    def named_commit(self, revision: str | None) -> str | None:
        """Return the commit that a revision names, as far as this machine knows.

        Args:
            revision: a branch, tag or commit; None for the default branch.

        Returns:
            The commit itself, or that of the branch or tag when it was fetched last; else None.
        """
        if is_commit(revision):
            return revision
        try:
            commit = (self.folder / "refs" / (revision or DEFAULT_BRANCH)).read_text().strip()
        except (OSError, ValueError):  # a name that no file can have
            return None
        return commit if commit in self.commits else None

    def listing(self, commit: str) -> list[str] | None:
        """Return the names of all files of a commit; None if they are not known here."""
        from huggingface_hub import errors, get_cached_repo_tree

        try:
            files = get_cached_repo_tree(self.id, repo_type=self.kind, revision=commit)
        except (errors.CachedRepoTreeNotFoundError, ValueError):
            return None
        return [file.path for file in files]

    def missing(self, commit: str, patterns: Sequence[str]) -> list[str] | None:
        """Return the files of a commit that are not on this machine.

        Args:
            commit: of the repository.
            patterns: of the names that count, as for `fnmatch`.

        Returns:
            Their names; None if it is not known which files there are.
        """
        files = self.listing(commit)
        if files is None:
            return None
        snapshot = self.snapshot(commit)
        return [
            name
            for name in files
            if any(fnmatch(name, pattern) for pattern in patterns)
            and not (snapshot / name).is_file()
        ]

    def local_commit(self, revision: str | None, is_usable: IsUsable) -> str | None:
        """Choose a commit without asking the hub.

        Args:
            revision: a branch, tag or commit; None for the default branch.
            is_usable: tells which commits can be loaded.

        Returns:
            The commit that the revision names; if nothing is named, the only usable one; None if
            that is not usable, or there are several.
        """
        usable = self.usable_commits(is_usable)
        commit = self.named_commit(revision)
        if commit is None and revision is None and len(usable) == 1:
            return usable[0]
        return commit if commit in usable else None

    def usable_commits(self, is_usable: IsUsable) -> list[str]:
        """The commits on this machine that can be loaded, in the order of their names."""
        return [commit for commit in self.commits if is_usable(self.snapshot(commit))]

    def resolve(self, revision: str | None, is_usable: IsUsable) -> str:
        """Choose the commit to load; the hub is asked only if this machine does not tell it.

        Args:
            revision: a branch, tag or commit; None for the default branch.
            is_usable: tells which commits can be loaded.

        Returns:
            The commit. Files of it may still have to be fetched.

        Raises:
            HubError: nothing usable is on this machine, or it is not known which commit is meant,
                and the hub does not help.
        """
        commit = self.local_commit(revision, is_usable)
        if commit:
            return commit
        try:
            return self.ask_commit(revision)
        except HubError as error:
            # Perhaps the rest can be fetched when the hub is back.
            commit = self.named_commit(revision)
            begun = self.commits
            if commit in begun:
                return commit
            if revision is None and commit is None and len(begun) == 1:
                return begun[0]
            others = [] if is_commit(revision) else self.usable_commits(is_usable)
            raise HubError(str(error), others) from error.__cause__

    def ask_commit(self, revision: str | None) -> str:
        """Ask the hub for the commit of a revision.

        Raises:
            HubError: the hub cannot be reached, or does not have it; caused by the client's error.
        """
        from huggingface_hub import HfApi

        outage.check()
        try:
            info = HfApi().repo_info(
                self.id, repo_type=self.kind, revision=revision, timeout=REQUEST_TIMEOUT_S
            )
        except Exception as error:  # its HTTP client's too, which is not the same in all versions
            reason = describe(error)
            if reason == UNREACHABLE:
                outage.begin()
            raise HubError(reason) from error
        commit = str(info.sha or "")
        if not is_commit(commit) or (is_commit(revision) and commit != revision):
            raise HubError(f"the hub answers with another commit, {commit or 'none'}")
        return commit

    def fetch(self, commit: str, patterns: Sequence[str]) -> Path:
        """Return the folder of a commit, with all files whose names match.

        The hub is asked only if a file is missing, or if it is not known which files there are. In
        that case the folder is returned as it is if the hub does not answer: look at its files.

        Args:
            commit: of the repository.
            patterns: of the names of the files, as for `fnmatch`.

        Raises:
            HubError: files are missing, and the hub does not send them; caused by the client's
                error.
        """
        from huggingface_hub import snapshot_download

        snapshot = self.snapshot(commit)
        missing = self.missing(commit, patterns)
        if missing == []:
            return snapshot
        try:
            self.ask_commit(commit)
            with client_bars(self.id) as bars:
                folder = snapshot_download(
                    self.id,
                    repo_type=self.kind,
                    revision=commit,
                    allow_patterns=list(patterns),
                    tqdm_class=bars,
                )
        except HubError:
            if missing is None and snapshot.is_dir():
                return snapshot
            raise
        except Exception as error:  # of the client, the network or the disk
            raise HubError(describe(error)) from error
        still_missing = self.missing(commit, patterns)
        if still_missing:
            raise HubError(f"the hub does not send {still_missing[0]}")
        return Path(folder)


def is_commit(revision: str | None) -> bool:
    """Tell whether a revision is a commit, and no branch or tag."""
    return revision is not None and COMMIT_PATTERN.fullmatch(revision) is not None


def short(commit: str) -> str:
    """The first characters of a commit, for messages."""
    return commit[:COMMIT_CHARACTERS]


OFFLINE = "HF_HUB_OFFLINE is set"
UNREACHABLE = "the hub cannot be reached"
NO_REPOSITORY = "the hub does not have it, or it is private"


def describe(error: BaseException) -> str:
    """Return in words why the hub did not send what was asked for."""
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return OFFLINE
    if isinstance(error, errors.HFValidationError):
        return "no repository can have this name"
    if isinstance(error, errors.GatedRepoError):
        return "it is gated: accept its licence on the hub, then set HF_TOKEN or `hf auth login`"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the hub does not have this revision"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in REFUSALS:  # a repository that does not exist, too, unless one is logged in
        return f"the hub refuses it (HTTP {status}): look at its id and at HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return NO_REPOSITORY
    if status is not None:
        return f"the hub is out of order (HTTP {status}): try again later"
    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__:
        return describe(error.__cause__)
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        return "the download broke off: " + " ".join(str(error).split())[:100]
    return UNREACHABLE


class _Outage:
    """Remembers that the hub gave no reply, so that it is not waited for again and again."""

    def __init__(self) -> None:
        self._ends = -1.0  # by `monotonic`

    def begin(self) -> None:
        self._ends = monotonic() + OUTAGE_SECONDS

    def check(self) -> None:
        """Raise a `HubError` while the outage lasts."""
        if monotonic() < self._ends:
            raise HubError(UNREACHABLE)


outage = _Outage()


# Downloads.

# Called with the bytes that are here, and the bytes in all. Threads of the client call it.
OnBytes = Callable[[int, int], None]
# Shows one download: it takes the name of the repository.
DownloadBar = Callable[[str], AbstractContextManager[OnBytes]]

_bars: list[DownloadBar] = []  # the last one shows downloads


@contextmanager
def show_downloads(bar: DownloadBar) -> Iterator[None]:
    """Have downloads shown by a bar while a block lasts, instead of by the hub's client.

    Args:
        bar: makes the context of one download.
    """
    _bars.append(bar)
    try:
        yield
    finally:
        _bars.remove(bar)


@contextmanager
def client_bars(repository: str) -> Iterator[type[Any] | None]:
    """Give what the hub's client takes as `tqdm_class` for one download.

    Args:
        repository: its name, for the bar.

    Yields:
        A class of bars that only report bytes; None, the client's own bars, if nobody else shows
        downloads.
    """
    if not _bars:
        yield None
        return
    with _bars[-1](repository) as on_bytes:
        yield _reporting_class(on_bytes)


def _reporting_class(on_bytes: OnBytes) -> type[Any]:
    """Return a class of the client's bars that reports bytes and writes nothing."""
    from huggingface_hub.utils.tqdm import tqdm

    class ReportingBar(tqdm):
        """A bar that is not shown. The one that counts the bytes on this disk reports them."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # The client has another bar for the bytes from the network, and one for files.
            is_network = str(kwargs.get("name", "")).endswith(".transfer")
            self._reports = kwargs.get("unit") == "B" and not is_network
            changes = {"disable": False, "file": io.StringIO()}
            super().__init__(*args, **{**kwargs, **changes})  # type: ignore[no-untyped-call]

        def display(self, *args: Any, **kwargs: Any) -> None:
            if self._reports and self.total:
                on_bytes(int(self.n), int(self.total))

    return ReportingBar


# Loading without the bars and lines of libraries.


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Load models without bars for weights, shards and files while a block lasts.

    They would be written over the bars of a command. Afterwards the libraries show again what they
    showed before: a caller's own downloads keep their bars. Files of the hub are fetched before,
    see `show_downloads`.
    """
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging

    shows_loading = logging.is_progress_bar_enabled()
    shows_downloads = not are_progress_bars_disabled()
    verbosity = logging.get_verbosity()
    with warnings.catch_warnings():
        # The hub's client warns if the user's environment switches its bars on or off for good.
        warnings.simplefilter("ignore")
        logging.disable_progress_bar()
        disable_progress_bars()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if shows_loading:
                logging.enable_progress_bar()
            # transformers switches the bars of the hub's client with its own.
            if shows_downloads:
                enable_progress_bars()
            else:
                disable_progress_bars()
