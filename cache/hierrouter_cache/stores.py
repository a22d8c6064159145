"""Places for a mirror of a cache: a folder, or an object store."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

from pyarrow import fs

from hierrouter_cache.errors import InputError, WorldError, open_plain
from hierrouter_cache.parts import PARQUET_ERRORS, PART_NAME_PATTERN, parts_folder
from hierrouter_cache.writer import commit, make_cache, no_steps

ARROW_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
# In these stores an object is visible only when it is complete.
OBJECT_STORE_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "s3a", "az", "adl")


@dataclass(frozen=True)
class FolderStore:
    """A folder on a disk. It is a cache itself, and can be opened as one.

    Attributes:
        root: the folder.
        url: empty, because a folder has no URL with secrets that messages must hide.
    """

    root: Path
    url: ClassVar[str] = ""

    def __str__(self) -> str:
        return str(self.root)

    def sizes(self) -> dict[str, int]:
        """Return the number of bytes of each part in the store, by name."""
        folder = parts_folder(self.root)
        if not folder.is_dir():
            return {}
        return {path.name: path.stat().st_size for path in folder.iterdir() if _is_part(path.name)}

    def read(self, name: str) -> bytes:
        """Return the bytes of one part."""
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
        files: the file system.
        folder: path of the folder; for some file systems the complete URL.
        is_atomic: whether a file is visible only when it is complete. If not, it is written under
            another name and moved.
        label: the URL without secrets, for people.
        url: the URL with secrets; a library may repeat it in an error.
    """

    files: fs.FileSystem
    folder: str = field(repr=False)
    is_atomic: bool
    label: str
    url: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.label

    def sizes(self) -> dict[str, int]:
        """Return the number of bytes of each part in the store, by name."""
        selector = fs.FileSelector(f"{self.folder}/parts", allow_not_found=True)
        infos = self.files.get_file_info(selector)
        return {info.base_name: info.size for info in infos if _is_part(info.base_name)}

    def read(self, name: str) -> bytes:
        """Return the bytes of one part."""
        with self.files.open_input_stream(f"{self.folder}/parts/{name}") as stream:
            data: bytes = stream.read()
        return data

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write one part."""
        target = f"{self.folder}/parts/{name}"
        if self.is_atomic:
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


# A place for parts outside of the cache. All methods raise OSError or an Arrow error on failure.
Store = FolderStore | ObjectStore


def store_at(url: str) -> Store:
    """Return the store at a URL.

    Args:
        url: a URL, or the path of a folder.

    Raises:
        InputError: no file system for this URL is known or installed.
        WorldError: the store cannot be reached.
    """
    if not url.strip():
        raise InputError("no such place for a mirror: it has no name; name a folder, or s3://...")
    scheme, separator, _ = url.partition("://")
    if not separator:
        return FolderStore(Path(url))
    if scheme == "file":
        return FolderStore(Path(unquote(urlsplit(url).path)))
    label = redact_url(url)
    try:
        if scheme in ARROW_SCHEMES:
            files, folder = fs.FileSystem.from_uri(url)
        else:
            files, folder = _fsspec_file_system(url)
    except (ValueError, ImportError, NotImplementedError) as error:
        raise InputError(
            f"no such place for a mirror: {label}: {_reason_without_secrets(error, url)}; "
            "name a folder, or s3://, gs://, abfs://"
        ) from error
    except PARQUET_ERRORS as error:
        raise store_error(label, error, url) from error
    is_atomic = scheme in OBJECT_STORE_SCHEMES
    return ObjectStore(files, folder.rstrip("/"), is_atomic, label, url)


def _fsspec_file_system(url: str) -> tuple[Any, str]:
    """Return (file system, folder) of a URL that fsspec understands."""
    from fsspec.core import url_to_fs

    files, folder = url_to_fs(url)
    return fs.PyFileSystem(fs.FSSpecHandler(files)), folder


def redact_url(url: str) -> str:
    """Return a URL without user, password and query, so that it can be displayed."""
    scheme, _, rest = url.partition("://")
    user, _, address = rest.rpartition("@")  # the last @: a password may contain a slash
    if "?" in user:
        # A query with an @ in it, or a password with a ? in it: these cannot be distinguished.
        return f"{scheme}://..."
    return f"{scheme}://{address.partition('?')[0]}"


def store_error(store: object, error: BaseException, url: str) -> WorldError:
    """Return the error to raise if a store fails; its message contains no secret.

    Args:
        store: the store, or its URL without secrets.
        error: what a library raised; its message may repeat the URL or a part of it.
        url: the URL with its secrets.
    """
    return WorldError(
        f"cannot use the mirror: {store}: {_reason_without_secrets(error, url)}; "
        "what is committed here is safe, rerun the same command to resume"
    )


def _reason_without_secrets(error: BaseException, url: str) -> str:
    """Return a library's message without the secrets of a URL that it repeats."""
    text = str(error)
    if url:
        text = text.replace(url, redact_url(url))
    user = url.partition("://")[2].rpartition("@")[0]
    password = user.partition(":")[2]
    query = url.partition("?")[2]
    for secret in (user, password, query):
        for form in (secret, unquote(secret), quote(secret)):
            if form:
                text = text.replace(form, "...")
    # Cut the text last: in a text that was cut before, half a secret would not be recognised.
    return " ".join(text.split())[:120] or type(error).__name__


def _is_part(name: str) -> bool:
    """Return whether it is the name of a part to copy; each place has its own seals."""
    return PART_NAME_PATTERN.fullmatch(name) is not None and name.partition("-")[0] != "seals"
