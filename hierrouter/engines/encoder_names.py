"""How users name encoders, and which commit of the hub a name means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hierrouter.engines.identity import holds_model, unknown_commit
from hierrouter.hub.repository import NO_REPOSITORY, HubError, Repository, is_commit
from hierrouter_cache.errors import InputError, WorldError, suggestion

BUILT_IN_ENCODER = "hashed-ngrams"
PAPER = "paper"
PAPER_ENCODER = "sentence-transformers/all-mpnet-base-v2"
PAPER_TOKENS = 512  # section 4; the default of the model is 384
COMMIT_SUFFIX_PATTERN = re.compile(r"@[0-9a-f]{40}(?=:|$)")
# MODEL, and perhaps @COMMIT, :TOKENS and :truncate, in this order.
ENCODER_NAME_PATTERN = re.compile(
    r"(?P<model>.+?)(@(?P<commit>[0-9a-f]{40}))?(:(?P<tokens>[1-9]\d{0,5}))?(?P<truncate>:truncate)?"
)
OFFLINE_HINT = f"give a saved model's folder, or --encoder {BUILT_IN_ENCODER}, which works offline"


class NoEncoder(WorldError):
    """An encoder cannot be loaded, or it is not known which commit of it is meant."""


def with_commit(name: str, commit: str) -> str:
    """Return the name of an encoder at a commit of the hub.

    Args:
        name: as for `find_encoder`.
        commit: "" leaves the name as it is.
    """
    if not commit:
        return name
    model, colon, rest = without_commit(name).partition(":")
    return f"{model}@{commit}{colon}{rest}"


def without_commit(name: str) -> str:
    """Return the name of an encoder without the commit in it."""
    return COMMIT_SUFFIX_PATTERN.sub("", name)


@dataclass(frozen=True)
class EncoderName:
    """A sentence-transformers model as a user names it.

    Attributes:
        text: the complete name.
        model: hub id or folder.
        commit: of the hub; None if the name has none.
        tokens: length of the model, instead of its default.
        truncates: cut a long context, as the paper does at 512 tokens; else average over windows
            of the model's length, so that the newest response is read.
    """

    text: str
    model: str
    commit: str | None = None
    tokens: int | None = None
    truncates: bool = False

    @classmethod
    def parse(cls, name: str) -> EncoderName:
        """Split a name into its parts.

        Raises:
            InputError: no model can have this name.
        """
        match = ENCODER_NAME_PATTERN.fullmatch(name)
        if match is None:
            raise InputError(
                f"no such encoder: {name!r}; take {BUILT_IN_ENCODER}, {PAPER}, or a model"
            )
        commit = match["commit"]
        if without_commit(name) == PAPER:
            return cls(name, PAPER_ENCODER, commit, PAPER_TOKENS, True)
        tokens = int(match["tokens"]) if match["tokens"] else None
        return cls(name, match["model"], commit, tokens, bool(match["truncate"]))

    @property
    def path(self) -> Path | None:
        """The folder that is named, whether it exists or not; None for a model of the hub."""
        path = Path(self.model).expanduser()
        is_path = path.is_absolute() or self.model.startswith(("./", "../", "~"))
        return path if is_path or path.is_dir() else None

    @property
    def folder(self) -> Path | None:
        """The folder of the model; None for a model of the hub.

        Raises:
            InputError: it does not exist.
        """
        path = self.path
        if path and not path.is_dir():
            raise InputError(
                f"encoder folder not found: {path}; give the folder of a saved encoder"
            )
        return path

    @property
    def repository(self) -> Repository:
        """The repository on the hub."""
        # Names without an owner are those of the library's own models.
        has_owner = "/" in self.model
        return Repository(self.model if has_owner else f"sentence-transformers/{self.model}")

    @property
    def suffix(self) -> str:
        """The end of an encoder's description, after the name of its content."""
        length = "" if self.tokens is None else f"-{self.tokens}"
        return f"{length}-{'truncate' if self.truncates else 'windows'}"

    def stored_commits(self, stored: Iterable[str]) -> list[str]:
        """Return the commits of this model among the descriptions of stored vectors, in order."""
        prefix = f"{self.repository.id}@"
        commits = set()
        for description in stored:
            commit = description.removeprefix(prefix).removesuffix(self.suffix)
            if is_commit(commit) and description == f"{prefix}{commit}{self.suffix}":
                commits.add(commit)
        return sorted(commits)

    def resolve(self, stored: Iterable[str]) -> str:
        """Choose the commit of the hub: that of the name, of stored vectors, or of this machine.

        Args:
            stored: as for `find_encoder`.

        Raises:
            InputError: the hub has no such model.
            NoEncoder: the model is not on this machine, or with several commits of which none is
                named, and the hub does not help.
        """
        if self.commit:
            return self.commit
        repository = self.repository
        commits = self.stored_commits(stored)
        if len(commits) == 1:
            return commits[0]
        try:
            if commits:
                local = repository.local_commit(None, holds_model)
                if local in commits:
                    return local
                raise HubError("vectors of each are stored", commits)
            return repository.resolve(None, holds_model)
        except HubError as error:
            raise self._not_resolved(error) from error

    def _not_resolved(self, error: HubError) -> InputError | WorldError:
        """Return the error for a name without a commit."""
        if error.commits:
            return NoEncoder(
                f"{unknown_commit(self.repository.id, None, error)}; give one by --encoder "
                f"{with_commit(self.text, 'COMMIT')}"
            )
        from huggingface_hub.errors import HFValidationError

        guess = suggestion(self.model, (BUILT_IN_ENCODER, PAPER), "").rstrip()  # did you mean ...?
        if isinstance(error.__cause__, HFValidationError) or str(error) == NO_REPOSITORY:
            # The name is wrong. With any other cause the network may be down.
            choices = (
                f"take {BUILT_IN_ENCODER}, {PAPER}, the folder of a saved model, "
                "or a model of the hub"
            )
            return InputError(f"no such encoder: {self.text}; {guess or choices}")
        if guess:
            return InputError(f"no such encoder: {self.text}; {guess}")
        return NoEncoder(f"encoder {self.text} is not on this machine: {error}; {OFFLINE_HINT}")
