"""Where a mirror of a cache can lie: a folder or an object store."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from hierrouter_cache.errors import InputError, WorldError, open_plain
from hierrouter_cache.parts import NAME, parts_folder
from hierrouter_cache.writer import commit, make_cache, no_steps

OF_ARROW = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
# What is written there is seen by nobody before it is whole.
OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss", "s3a", "az", "adl")


@dataclass(frozen=True)
class FolderStore:
    """A folder on a disk; it is a cache itself, and can be opened as one."""

    root: Path
    url: ClassVar[str] = ""  # nothing to hide

    def __str__(self) -> str:
        return str(self.root)

    def sizes(self) -> dict[str, int]:
        """The bytes of each part that is there, by name."""
        folder = parts_folder(self.root)
        if not folder.is_dir():
            return {}
        return {path.name: path.stat().st_size for path in folder.iterdir() if _is_part(path.name)}

    def read(self, name: str) -> bytes:
        """The bytes of one part."""
        with open_plain(parts_folder(self.root) / name) as file:
            return file.read()

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Commit one part, as a collector does."""
        if not parts_folder(self.root).is_dir() or not (self.root / "tmp").is_dir():
            make_cache(self.root)
        commit(self.root, name, memoryview(data), no_steps)


@dataclass(frozen=True)
class ObjectStore:
    """A folder of a file system that is not the machine's own.

    Attributes:
        whole: whether what is written is seen by nobody before it is whole; if not, it is written
            under another name and moved.
        shown: the URL without secrets, for people.
        url: the URL as it was given; a library may repeat it when it fails.
    """

    files: fs.FileSystem
    folder: str = field(repr=False)  # of some file systems the whole URL
    whole: bool
    shown: str
    url: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.shown

    def sizes(self) -> dict[str, int]:
        """The bytes of each part that is there, by name."""
        found = self.files.get_file_info(
            fs.FileSelector(f"{self.folder}/parts", allow_not_found=True)
        )
        return {info.base_name: info.size for info in found if _is_part(info.base_name)}

    def read(self, name: str) -> bytes:
        """The bytes of one part."""
        with self.files.open_input_stream(f"{self.folder}/parts/{name}") as stream:
            data: bytes = stream.read()
        return data

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Put one part."""
        target = f"{self.folder}/parts/{name}"
        if self.whole:
            self._put(target, data)
            return
        for folder in ("parts", "tmp"):
            self.files.create_dir(f"{self.folder}/{folder}", recursive=True)
        draft = "/".join([self.folder, "tmp", f"{name}.{secrets.token_hex(4)}.tmp"])
        self._put(draft, data)
        self.files.move(draft, target)

    def _put(self, path: str, data: bytes | memoryview) -> None:
        with self.files.open_output_stream(path) as stream:
            stream.write(data)


# Parts at another place. All methods raise OSError or an Arrow error where it fails.
Store = FolderStore | ObjectStore


def store_at(url: str) -> Store:
    """The store at a URL, or in a folder.

    Raises InputError: no file system for it is known or installed; WorldError: it cannot be
    reached.
    """
    if not url.strip():
        raise InputError("no such place for a mirror: it has no name; name a folder, or s3://...")
    scheme, mark, _ = url.partition("://")
    if not mark:
        return FolderStore(Path(url))
    if scheme == "file":
        return FolderStore(Path(unquote(urlsplit(url).path)))
    try:
        files, folder = fs.FileSystem.from_uri(url) if scheme in OF_ARROW else _of_fsspec(url)
    except (ValueError, ImportError, NotImplementedError) as error:
        raise InputError(
            f"no such place for a mirror: {without_secrets(url)}: {_reason(error, url)}; "
            "name a folder, or s3://, gs://, abfs://"
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise unreachable(without_secrets(url), error, url) from error
    whole = scheme in OBJECT_STORES
    return ObjectStore(files, folder.rstrip("/"), whole, without_secrets(url), url)


def _of_fsspec(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    files, folder = url_to_fs(url)
    return fs.PyFileSystem(fs.FSSpecHandler(files)), folder


def without_secrets(url: str) -> str:
    """A URL as it may be shown: without user, password and query."""
    scheme, _, rest = url.partition("://")
    user, _, place = rest.rpartition("@")  # a secret may hold a slash
    if "?" in user:
        return f"{scheme}://..."  # nobody can tell where a query with an @ in it begins
    return f"{scheme}://{place.partition('?')[0]}"


def unreachable(place: object, error: BaseException, url: str) -> WorldError:
    """The error to raise where a store fails; no secret of its `url` is in it.

    `place`: the store, or its URL without secrets; `error`: what a library raised; it may repeat
    the URL, or a part of it.
    """
    return WorldError(
        f"cannot use the mirror: {place}: {_reason(error, url)}; "
        "what is committed here is safe, rerun the same command to resume"
    )


def _reason(error: BaseException, url: str) -> str:
    """What a library says, without the secrets of a URL that it repeats, wholly or in part."""
    text = str(error).replace(url, without_secrets(url)) if url else str(error)
    user = url.partition("://")[2].rpartition("@")[0]
    for secret in (user, user.partition(":")[2], url.partition("?")[2]):
        for form in (secret, unquote(secret), quote(secret)):
            text = text.replace(form, "...") if form else text
    return " ".join(text.split())[:120] or type(error).__name__  # cut last: half a URL stays


def _is_part(name: str) -> bool:
    """Seals are none: each place has its own."""
    return NAME.fullmatch(name) is not None and name.partition("-")[0] != "seals"
