"""Embedded texts: derived data that lies beside the truth."""

import contextlib
import hashlib
import io
import json
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter_cache.chain import TRIES, Hashed
from hierrouter_cache.errors import CacheError, DamagedPart, IncompleteTree, WorldError, reason_of
from hierrouter_cache.keys import DIGEST_LENGTH, digest
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.parts import file_sha16, require_damage
from hierrouter_cache.reader import CacheReader, first_match
from hierrouter_cache.writer import writable, write_derived

NAME = re.compile(
    r"emb-(?P<seq>\d{8})-(?P<writer>[0-9a-f]{8})-r(?P<rows>\d+)-(?P<sha>[0-9a-f]{16})\.npy"
)
CHUNK = 16_384  # rows looked at or written together
MAX_DESCRIPTION = 1 << 16  # bytes behind the vectors


@dataclass(frozen=True)
class EmbeddingFile:
    """One file of vectors, as its name describes it."""

    path: Path
    rows: int
    sha: str


def embedding_files(root: Path) -> list[EmbeddingFile]:
    """All embedding files of a cache, of every encoder, in name order."""
    return [
        EmbeddingFile(path, int(match["rows"]), match["sha"])
        for path in sorted(root.glob("derived/*/emb-*.npy"))
        if (match := NAME.fullmatch(path.name))
    ]


def embedding_fault(file: EmbeddingFile) -> str | None:
    """What is wrong with an embedding file, or None; reads every byte, holds none of them.

    A file that is gone was merged into another one: nothing is wrong with it.
    """
    try:
        found = _look(file)
        if isinstance(found, str):
            return found
        if file_sha16(file.path) != file.sha:
            return f"checksum mismatch, expected {file.rows} rows as written"
    except FileNotFoundError:
        return None
    if not all(
        np.isfinite(found["vector"][at : at + CHUNK]).all() for at in range(0, len(found), CHUNK)
    ):
        return f"NaN or infinity, expected {file.rows} rows of finite numbers"
    return None


def require_sound(file: EmbeddingFile) -> None:
    """Refuse a damaged embedding file; raises DamagedPart: it is not what its name promises."""
    if why := embedding_fault(file):
        raise _damaged(file, why)


def _look(file: EmbeddingFile) -> NDArray[np.void] | str:
    """The rows, mapped; or why these are none."""
    try:
        if not stat.S_ISREG(file.path.lstat().st_mode):
            return "not a regular file"
        # "c": nobody writes, and torch takes it without a copy; a write would not reach the file.
        rows: NDArray[np.void] = np.load(file.path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged header takes numpy's parser of Python anywhere
        require_damage(error, file.path)
        return f"not readable ({reason_of(error, 60)}), expected {file.rows} rows"
    if not _is_ours(rows.dtype) or rows.shape != (file.rows,):
        return f"expected {file.rows} rows of context and vector, found {rows.shape}"
    return _foreign(file, rows) or rows


def _foreign(file: EmbeddingFile, rows: NDArray[np.void]) -> str | None:
    """Whether a file says that its vectors belong elsewhere, or not whose they are."""
    said = _description(file, rows)
    if not said:
        return "does not say whose vectors it has, by an earlier version: collect again"
    try:
        whose = json.loads(said)
        encoder, texts, dim = (whose[key] for key in ("encoder", "texts", "dim"))
    except (ValueError, TypeError, KeyError, RecursionError):
        return "what follows its vectors is not readable"
    found = file.path.parent.name, rows.dtype["vector"].shape
    if found == (_folder_name(encoder, texts), (dim,)):
        return None
    return f"{texts} by {encoder!s:.80} with {dim} numbers each, in the folder of others"


def _description(file: EmbeddingFile, rows: NDArray[np.void]) -> bytes:
    """What stands behind the mapped rows of a file: whose vectors they are, as JSON."""
    with file.path.open("rb") as stream:
        stream.seek(getattr(rows, "offset", 0) + rows.nbytes)
        return stream.read(MAX_DESCRIPTION)


def _folder_name(encoder: str, texts: str) -> str:
    return digest(["encoder", encoder, *([] if texts == CONTEXTS else [texts])])


def _is_ours(found: np.dtype[Any]) -> bool:
    """Whether a row is a digest and a vector: of others Arrow would read beyond the end."""
    if found.names != ("context", "vector"):
        return False
    context, vector = found["context"], found["vector"]
    return context == f"S{DIGEST_LENGTH}" and vector.base == "<f4" and vector.ndim == 1


def mapped(file: EmbeddingFile) -> NDArray[np.void]:
    """The rows, mapped.

    Raises FileNotFoundError: they were merged into another file; DamagedPart: they are not what the
    file's name promises.
    """
    found = _look(file)
    if isinstance(found, str):
        raise _damaged(file, found)
    return found


def _damaged(file: EmbeddingFile, why: str) -> DamagedPart:
    return DamagedPart(
        f"damaged embedding file: {file.path.name}: {why}; move it aside with "
        f"`hierrouter cache repair --cache {file.path.parents[2]}`, it is then made again"
    )


def require_one_width(arrays: Sequence[NDArray[np.void]], folder: Path) -> None:
    """Refuse vectors of two widths; raises DamagedPart: there are some."""
    if len({rows.dtype for rows in arrays}) > 1:
        raise DamagedPart(
            f"embedding files of different dim: {folder}; delete the folder and run "
            "`hierrouter collect` again"
        )


def write_rows(
    folder: Path, seq: int, arrays: Sequence[NDArray[np.void]], description: bytes
) -> EmbeddingFile | None:
    """Commit all rows as one file; None where the cache cannot be written to, and is left as it is.

    The description follows the rows, where numpy does not look, and the hash covers it.

    Mapped rows are read twice, for the name and for the file, and never held together. Raises
    WorldError: the disk is full or failed.
    """
    if not writable(folder.parents[1]):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorldError(
            f"cannot write embeddings: {folder}: {error.strerror}; make room or mend the disk"
        ) from error
    rows, total = sum(len(array) for array in arrays), hashlib.sha256()
    for piece in chain(_pieces(arrays), [description]):
        total.update(piece)
    sha = total.hexdigest()[:16]
    name = f"emb-{seq:08d}-{secrets.token_hex(4)}-r{rows}-{sha}.npy"
    write_derived(folder.parents[1], folder / name, chain(_pieces(arrays), [description]))
    return EmbeddingFile(folder / name, rows, sha)


def _pieces(arrays: Sequence[NDArray[np.void]]) -> Iterator[bytes]:
    """The bytes that `np.save` makes of all rows together, a few rows at a time."""
    header = io.BytesIO()
    description = np.lib.format.dtype_to_descr(arrays[0].dtype)
    rows = sum(len(array) for array in arrays)
    np.lib.format.write_array_header_1_0(
        header, {"descr": description, "fortran_order": False, "shape": (rows,)}
    )
    yield header.getvalue()
    for array in arrays:
        for at in range(0, len(array), CHUNK):
            yield array[at : at + CHUNK].tobytes()


# What the texts of a folder are, and what their digests are of.
CONTEXTS = "contexts"  # a question and all answers so far; `next_context`
ANSWERS = "answers"  # one answer alone; `text_digest`


class EmbeddingStore:
    """Vectors by digest of a text, for one encoder and one kind of text.

    Args:
        reader: the open cache; digests are looked up by its hashes.
        encoder: the encoder's description; with `texts` it decides the folder, so vectors of two
            encoders never meet.
        texts: `CONTEXTS` or `ANSWERS`.

    Raises:
        DamagedPart: a file is not what its name promises.
    """

    def __init__(self, reader: CacheReader, encoder: str, texts: str = CONTEXTS) -> None:
        self.encoder = encoder
        self.texts = texts
        self.folder = reader.root / "derived" / _folder_name(encoder, texts)
        self._reader = reader
        self._unwritten: list[NDArray[np.void]] = []
        self._map()

    def _map(self) -> None:
        """Map every file; look again where one was merged away between two looks."""
        for _ in range(TRIES):
            self._indexed: list[NDArray[np.uint64]] = []
            self._unchecked = self._listed()
            try:
                self._arrays = [*map(mapped, self._unchecked), *self._unwritten]
                return
            except FileNotFoundError:
                continue
        raise CacheError(f"the embeddings change all the time: {self.folder}; try again later")

    @property
    def _known(self) -> NDArray[np.uint64]:
        """The hash of each row's digest, made when it is asked for."""
        for rows in self._arrays[len(self._indexed) :]:
            self._indexed.append(self._reader.hashes(_as_arrow(rows["context"])))
        return np.concatenate([np.empty(0, np.uint64), *self._indexed])

    @property
    def files(self) -> list[str]:
        """Names of the files that hold the vectors, in the order of `vectors()`."""
        return [file.path.name for file in self._listed()]

    def _listed(self) -> list[EmbeddingFile]:
        """Those of its own that lie there now."""
        files = embedding_files(self._reader.root)
        return [file for file in files if file.path.parent == self.folder]

    def missing(self, contexts: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """uint64[n]: those of `contexts` that have no vector yet, once each, in order."""
        flat = contexts.ravel()
        absent = flat[first_match(flat, self._known) < 0]
        distinct, first = np.unique(absent, return_index=True)
        return distinct[np.argsort(first)]

    def append(self, contexts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Store float32[len(contexts), dim] for good; in a read-only cache, for this process.

        Raises WorldError: a vector is not finite, or the disk is full or failed.

        `contexts`: digests; `vectors`: one row a context.
        """
        if not np.isfinite(vectors).all():
            raise WorldError(
                f"the encoder gives vectors that are not finite: {self.encoder}; take another"
            )
        here = self._arrays[0]["vector"].shape[1] if self._arrays else vectors.shape[1]
        if here != vectors.shape[1]:
            raise WorldError(
                f"the encoder gives {vectors.shape[1]} numbers, here are vectors of {here}: "
                f"{self.encoder}; it is another one by now, give it another name"
            )
        rows = np.empty(
            len(contexts),
            dtype=[("context", f"S{DIGEST_LENGTH}"), ("vector", "<f4", (vectors.shape[1],))],
        )
        rows["context"] = list(contexts)
        rows["vector"] = vectors
        whose = {"encoder": self.encoder, "texts": self.texts, "dim": vectors.shape[1]}
        said = json.dumps(whose).encode()
        written = write_rows(self.folder, len(self._arrays), [rows], said)
        if written is None:
            self._unwritten.append(rows)
        # What is on the disk need not be held: all files together may be larger than the memory.
        with contextlib.suppress(FileNotFoundError):  # merged into another one already
            rows = mapped(written) if written else rows
        self._arrays.append(rows)

    def rows(self, contexts: NDArray[np.uint64]) -> NDArray[np.int64]:
        """int64[*contexts.shape]: row of `vectors()` of each context.

        Raises IncompleteTree: a context has no vector; DamagedPart: a file is not what its name
        promises.
        """
        self._check()
        place = first_match(contexts, self._known)
        if (place < 0).any():
            raise IncompleteTree(
                f"{np.count_nonzero(place < 0)} states have no embedding: {self.folder}; "
                "run `hierrouter collect` again"
            )
        return place

    def vectors(self) -> NDArray[np.float32]:
        """float32[rows, dim]: all vectors; mapped where one file holds them, else a copy.

        Raises DamagedPart: a file is not what its name promises; nothing of it is handed on.
        """
        self._check()
        require_one_width(self._arrays, self.folder)
        vectors = [rows["vector"] for rows in self._arrays]
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)

    def _check(self) -> None:
        """Hash every file, before anything of it is handed on, but for those that were before."""
        if not all(file.path.exists() for file in self._unchecked):
            self._map()  # merged meanwhile; the vectors are the same
        if not self._unchecked:
            return
        noted = Hashed(self._reader.root, self.folder)
        for file in self._unchecked:
            with contextlib.suppress(FileNotFoundError):  # merged meanwhile: it is mapped
                seen, told = noted.told(file.path)
                if told is None:
                    require_sound(file)
                    noted.add(file.path, seen, True)
        noted.save()
        self._unchecked = []


def _as_arrow(contexts: NDArray[np.bytes_]) -> pa.Array:
    """The digests as Arrow text, one copy."""
    packed = np.ascontiguousarray(contexts)
    offsets = np.arange(len(packed) + 1, dtype=np.int64) * DIGEST_LENGTH
    return pa.Array.from_buffers(
        pa.large_string(), len(packed), [None, pa.py_buffer(offsets), pa.py_buffer(packed)]
    )


def merge_embeddings(root: Path) -> int:
    """Merge the files of each encoder into one, so that it is mapped and not copied.

    Returns how many files there are fewer. Raises DamagedPart: a file is not what its name
    promises; nothing of that encoder is touched; CacheLocked: a collector or a compaction is at
    work.
    """
    with collector_lock(root):
        folders: dict[Path, list[EmbeddingFile]] = {}
        for file in embedding_files(root):
            folders.setdefault(file.path.parent, []).append(file)
        return sum(_merge_files(folder, files) for folder, files in folders.items())


def _merge_files(folder: Path, files: Sequence[EmbeddingFile]) -> int:
    if len(files) < 2:
        return 0
    for file in files:
        require_sound(file)
    arrays = [mapped(file) for file in files]
    require_one_width(arrays, folder)
    said = _description(files[0], arrays[0])
    if not write_rows(folder, len(files), _first_of_each(arrays), said):
        return 0
    try:
        for file in reversed(files):
            file.path.unlink()
    except OSError as error:
        raise WorldError(
            f"cannot remove a merged file: {error}; run `cache compact` again"
        ) from error
    return len(files) - 1


def _first_of_each(arrays: Sequence[NDArray[np.void]]) -> list[NDArray[np.void]]:
    """The rows but for those whose digest stood before; copied only where there is one."""
    contexts = np.concatenate([rows["context"] for rows in arrays])
    first = np.zeros(len(contexts), bool)
    first[np.unique(contexts, return_index=True)[1]] = True
    kept = np.split(first, np.cumsum([len(rows) for rows in arrays])[:-1])
    return [rows if here.all() else rows[here] for rows, here in zip(arrays, kept, strict=True)]
