"""Embeddings of texts: derived data in separate files beside the parts."""

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

from hierrouter_cache.chain import MAX_LISTINGS, HashRecord
from hierrouter_cache.errors import CacheError, DamagedPart, IncompleteTree, WorldError, reason_of
from hierrouter_cache.keys import DIGEST_LENGTH, digest
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.parts import file_sha16, require_damage, require_linked_file
from hierrouter_cache.reader import CacheReader, first_match
from hierrouter_cache.writer import writable, write_derived

EMBEDDING_NAME_PATTERN = re.compile(
    r"emb-(?P<seq>\d{8})-(?P<writer>[0-9a-f]{8})-r(?P<rows>\d+)-(?P<sha>[0-9a-f]{16})\.npy"
)
ROWS_PER_CHUNK = 16_384  # rows that are checked or written together
MAX_DESCRIPTION = 1 << 16  # bytes of the description that follows the vectors


@dataclass(frozen=True)
class EmbeddingFile:
    """One file of vectors, as its name describes it.

    Attributes:
        path: the file.
        rows: number of vectors.
        sha: first 16 hexadecimal digits of the SHA-256 of its bytes.
    """

    path: Path
    rows: int
    sha: str


def embedding_files(root: Path) -> list[EmbeddingFile]:
    """Return all embedding files of a cache, of every encoder, in name order."""
    files = []
    for path in sorted(root.glob("derived/*/emb-*.npy")):
        match = EMBEDDING_NAME_PATTERN.fullmatch(path.name)
        if match:
            files.append(EmbeddingFile(path, int(match["rows"]), match["sha"]))
    return files


def stored_encoders(root: Path) -> list[str]:
    """Return the descriptions of the encoders whose vectors a cache has, in order.

    Files that are damaged, or by an earlier version, are left out.
    """
    folders: dict[Path, EmbeddingFile] = {}
    for file in embedding_files(root):
        folders.setdefault(file.path.parent, file)
    descriptions = set()
    for file in folders.values():
        with contextlib.suppress(FileNotFoundError):  # it was merged into another one
            rows = _open_rows(file)
            if not isinstance(rows, str):
                descriptions.add(str(json.loads(_read_description(file, rows))["encoder"]))
    return sorted(descriptions)


def embedding_fault(file: EmbeddingFile) -> str | None:
    """Return what is wrong with an embedding file, or None.

    Every byte is read; only a few are held in memory. A file that does not exist any more is not
    at fault: it was merged into another one.
    """
    try:
        rows = _open_rows(file)
        if isinstance(rows, str):
            return rows
        if file_sha16(file.path) != file.sha:
            return f"checksum mismatch, expected {file.rows} rows as written"
    except FileNotFoundError:
        return None
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        if not np.isfinite(rows["vector"][start : start + ROWS_PER_CHUNK]).all():
            return f"NaN or infinity, expected {file.rows} rows of finite numbers"
    return None


def require_sound(file: EmbeddingFile) -> None:
    """Require that an embedding file is sound.

    Raises:
        DamagedPart: it is damaged.
    """
    fault = embedding_fault(file)
    if fault:
        raise _damaged_file(file, fault)


def _open_rows(file: EmbeddingFile) -> NDArray[np.void] | str:
    """Map the rows of a file into memory; return what is wrong with the file if that fails.

    Raises:
        FileNotFoundError: the file does not exist.
        CacheError: it is a link to a file that is not here.
        WorldError: the disk failed.
    """
    try:
        if not stat.S_ISREG(file.path.stat().st_mode):
            return "not a regular file"
        # Mode "c" is copy-on-write. The rows are not written to, but torch takes only writable
        # arrays without a copy, and a write in this mode would not reach the file.
        rows: NDArray[np.void] = np.load(file.path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        require_linked_file(file.path)
        raise
    except Exception as error:  # numpy parses the header as Python; damage may cause any error
        require_damage(error, file.path)
        return f"not readable ({reason_of(error, 60)}), expected {file.rows} rows"
    if not _has_row_layout(rows.dtype) or rows.shape != (file.rows,):
        return f"expected {file.rows} rows of context and vector, found {rows.shape}"
    return _description_fault(file, rows) or rows


def _description_fault(file: EmbeddingFile, rows: NDArray[np.void]) -> str | None:
    """Return what is wrong with a file's description, or None.

    The description must fit the folder and the vectors, so that vectors of two encoders are never
    mixed.
    """
    data = _read_description(file, rows)
    if not data:
        return "does not say whose vectors it has, by an earlier version: collect again"
    try:
        description = json.loads(data)
        encoder = description["encoder"]
        texts = description["texts"]
        dim = description["dim"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return "what follows its vectors is not readable"
    fits_folder = file.path.parent.name == _folder_name(encoder, texts)
    if fits_folder and rows.dtype["vector"].shape == (dim,):
        return None
    return f"{texts} by {encoder!s:.80} with {dim} numbers each, in the folder of others"


def _read_description(file: EmbeddingFile, rows: NDArray[np.void]) -> bytes:
    """Return the JSON that follows the mapped rows of a file and says what they are of."""
    with file.path.open("rb") as stream:
        stream.seek(getattr(rows, "offset", 0) + rows.nbytes)
        return stream.read(MAX_DESCRIPTION)


def _folder_name(encoder: str, texts: str) -> str:
    # Contexts are not named: the first version had no other texts, and its folders are still used.
    return digest(["encoder", encoder, *([] if texts == CONTEXTS else [texts])])


def _has_row_layout(dtype: np.dtype[Any]) -> bool:
    """Return whether a row is a digest and a vector; Arrow would read others out of bounds."""
    if dtype.names != ("context", "vector"):
        return False
    context = dtype["context"]
    vector = dtype["vector"]
    return context == f"S{DIGEST_LENGTH}" and vector.base == "<f4" and vector.ndim == 1


def map_rows(file: EmbeddingFile) -> NDArray[np.void]:
    """Map the rows of a file into memory.

    Raises:
        FileNotFoundError: they were merged into another file.
        DamagedPart: the file is damaged.
    """
    rows = _open_rows(file)
    if isinstance(rows, str):
        raise _damaged_file(file, rows)
    return rows


def _damaged_file(file: EmbeddingFile, fault: str) -> DamagedPart:
    return DamagedPart(
        f"damaged embedding file: {file.path.name}: {fault}; move it aside with "
        f"`hierrouter cache repair --cache {file.path.parents[2]}`, it is then made again"
    )


def require_one_width(arrays: Sequence[NDArray[np.void]], folder: Path) -> None:
    """Require that all vectors have the same length.

    Args:
        arrays: rows of several files.
        folder: their folder.

    Raises:
        DamagedPart: they have different lengths.
    """
    if len({rows.dtype for rows in arrays}) > 1:
        raise DamagedPart(
            f"embedding files of different dim: {folder}; delete the folder and run "
            "`hierrouter collect` again"
        )


def write_rows(
    folder: Path, seq: int, arrays: Sequence[NDArray[np.void]], description: bytes
) -> EmbeddingFile | None:
    """Commit rows as one file.

    The description follows the rows, and the hash covers it; numpy does not read so far. Mapped
    rows are read twice, for the hash in the name and for the file, so that they need not be held
    in memory together.

    Args:
        folder: folder of the encoder, below `derived` of a cache.
        seq: sequence number of the file.
        arrays: the rows, in order.
        description: JSON that says what the rows are of.

    Returns:
        The file; None if the cache is not writable, and nothing was written.

    Raises:
        WorldError: the disk is full or failed.
    """
    root = folder.parents[1]
    if not writable(root):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorldError(
            f"cannot write embeddings: {folder}: {error.strerror}; make room or mend the disk"
        ) from error
    total = hashlib.sha256()
    for piece in chain(_npy_pieces(arrays), [description]):
        total.update(piece)
    rows = sum(len(array) for array in arrays)
    sha = total.hexdigest()[:16]
    path = folder / f"emb-{seq:08d}-{secrets.token_hex(4)}-r{rows}-{sha}.npy"
    write_derived(root, path, chain(_npy_pieces(arrays), [description]))
    return EmbeddingFile(path, rows, sha)


def _npy_pieces(arrays: Sequence[NDArray[np.void]]) -> Iterator[bytes]:
    """Yield the bytes that `np.save` would write for all rows together, a few rows at a time."""
    header = io.BytesIO()
    rows = sum(len(array) for array in arrays)
    np.lib.format.write_array_header_1_0(
        header,
        {
            "descr": np.lib.format.dtype_to_descr(arrays[0].dtype),
            "fortran_order": False,
            "shape": (rows,),
        },
    )
    yield header.getvalue()
    for array in arrays:
        for start in range(0, len(array), ROWS_PER_CHUNK):
            yield array[start : start + ROWS_PER_CHUNK].tobytes()


# The kinds of texts that are embedded, each in folders of its kind.
CONTEXTS = "contexts"  # a question and all responses so far, by the digest `next_context`
ANSWERS = "answers"  # one response alone, by the digest `text_digest`


class EmbeddingStore:
    """Vectors by digest of a text, for one encoder and one kind of text.

    Args:
        reader: the open cache; digests are looked up by its hashes.
        encoder: description of the encoder. The folder depends on it and on `texts`, so vectors of
            two encoders are never mixed.
        texts: `CONTEXTS` or `ANSWERS`.

    Attributes:
        encoder: as passed.
        texts: as passed.
        folder: the folder of the files.

    Raises:
        DamagedPart: a file is damaged.
        CacheError: the files keep changing.
    """

    def __init__(self, reader: CacheReader, encoder: str, texts: str = CONTEXTS) -> None:
        self.encoder = encoder
        self.texts = texts
        self.folder = reader.root / "derived" / _folder_name(encoder, texts)
        self._reader = reader
        self._unwritten: list[NDArray[np.void]] = []
        self._map_files()

    def _map_files(self) -> None:
        """Map every file; start again if a file was merged after it was listed."""
        for _ in range(MAX_LISTINGS):
            self._hashes_of_arrays: list[NDArray[np.uint64]] = []
            self._unchecked = self._list_files()
            try:
                self._arrays = [*map(map_rows, self._unchecked), *self._unwritten]
                return
            except FileNotFoundError:
                continue
        raise CacheError(f"the embeddings change all the time: {self.folder}; try again later")

    @property
    def _hashes(self) -> NDArray[np.uint64]:
        """uint64[rows]: hash of each row's digest; computed when it is needed first."""
        for rows in self._arrays[len(self._hashes_of_arrays) :]:
            self._hashes_of_arrays.append(self._reader.hashes(_as_arrow(rows["context"])))
        return np.concatenate([np.empty(0, np.uint64), *self._hashes_of_arrays])

    @property
    def files(self) -> list[str]:
        """Names of the files that hold the vectors, in the order of `vectors()`."""
        return [file.path.name for file in self._list_files()]

    def _list_files(self) -> list[EmbeddingFile]:
        files = embedding_files(self._reader.root)
        return [file for file in files if file.path.parent == self.folder]

    def missing(self, contexts: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Find the contexts that have no vector yet.

        Args:
            contexts: uint64, any shape, hashes of digests.

        Returns:
            uint64[n], each of them once, in order.
        """
        flat = contexts.ravel()
        absent = flat[first_match(flat, self._hashes) < 0]
        distinct, first_positions = np.unique(absent, return_index=True)
        return distinct[np.argsort(first_positions)]

    def append(self, contexts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Store vectors on the disk; if the cache is read-only, only in this process.

        Args:
            contexts: digests of the texts.
            vectors: float32[len(contexts), dim], one row for each digest.

        Raises:
            WorldError: a vector is not finite or has another length than those stored, or the disk
                is full or failed.
        """
        if not np.isfinite(vectors).all():
            raise WorldError(
                f"the encoder gives vectors that are not finite: {self.encoder}; take another"
            )
        dim = vectors.shape[1]
        stored_dim = self._arrays[0]["vector"].shape[1] if self._arrays else dim
        if stored_dim != dim:
            raise WorldError(
                f"the encoder gives {dim} numbers, here are vectors of {stored_dim}: "
                f"{self.encoder}; it is another one by now, give it another name"
            )
        rows = np.empty(
            len(contexts), dtype=[("context", f"S{DIGEST_LENGTH}"), ("vector", "<f4", (dim,))]
        )
        rows["context"] = list(contexts)
        rows["vector"] = vectors
        description = json.dumps({"encoder": self.encoder, "texts": self.texts, "dim": dim})
        file = write_rows(self.folder, len(self._arrays), [rows], description.encode())
        if file is None:
            self._unwritten.append(rows)
        else:
            # Map the file instead of holding the rows: all files together may be larger than the
            # memory. If another process has merged the file already, hold them all the same.
            with contextlib.suppress(FileNotFoundError):
                rows = map_rows(file)
        self._arrays.append(rows)

    def rows(self, contexts: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Find the row of `vectors()` of each context.

        Args:
            contexts: uint64, any shape, hashes of digests.

        Returns:
            int64 of the same shape.

        Raises:
            IncompleteTree: a context has no vector.
            DamagedPart: a file is damaged.
        """
        self._check_files()
        rows = first_match(contexts, self._hashes)
        if (rows < 0).any():
            raise IncompleteTree(
                f"{np.count_nonzero(rows < 0)} states have no embedding: {self.folder}; "
                "run `hierrouter collect` again"
            )
        return rows

    def vectors(self) -> NDArray[np.float32]:
        """Return float32[rows, dim], all vectors; mapped if one file holds them all, else a copy.

        Raises:
            DamagedPart: a file is damaged; none of its vectors are returned.
        """
        self._check_files()
        require_one_width(self._arrays, self.folder)
        vectors = [rows["vector"] for rows in self._arrays]
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)

    def _check_files(self) -> None:
        """Hash every file before its vectors are used; skip files that are on record as sound.

        Raises:
            DamagedPart: a file is damaged.
        """
        if not all(file.path.exists() for file in self._unchecked):
            self._map_files()  # a merge has replaced them by a file with the same vectors
        if not self._unchecked:
            return
        record = HashRecord(self._reader.root, self.folder)
        for file in self._unchecked:
            # A file that is merged right now has been mapped before, so its rows are still here.
            with contextlib.suppress(FileNotFoundError):
                stamps, note = record.look_up(file.path)
                if note is None:
                    require_sound(file)
                    record.add(file.path, stamps, True)
        record.save()
        self._unchecked = []


def _as_arrow(digests: NDArray[np.bytes_]) -> pa.Array:
    """Return digests as Arrow text; they are copied once."""
    packed = np.ascontiguousarray(digests)
    offsets = np.arange(len(packed) + 1, dtype=np.int64) * DIGEST_LENGTH
    return pa.Array.from_buffers(
        pa.large_string(), len(packed), [None, pa.py_buffer(offsets), pa.py_buffer(packed)]
    )


def merge_embeddings(root: Path) -> int:
    """Merge the files of each encoder into one, so that it can be mapped without a copy.

    Args:
        root: the cache's folder.

    Returns:
        By how many the number of files decreased.

    Raises:
        DamagedPart: a file is damaged; no file of that encoder was changed.
        CacheLocked: a collector or a compaction is at work.
        WorldError: the disk is full or failed.
    """
    with collector_lock(root):
        files_of_folders: dict[Path, list[EmbeddingFile]] = {}
        for file in embedding_files(root):
            files_of_folders.setdefault(file.path.parent, []).append(file)
        return sum(_merge_files(folder, files) for folder, files in files_of_folders.items())


def _merge_files(folder: Path, files: Sequence[EmbeddingFile]) -> int:
    """Merge the files of a folder; return by how many their number decreased."""
    if len(files) < 2:
        return 0
    for file in files:
        require_sound(file)
    arrays = [map_rows(file) for file in files]
    require_one_width(arrays, folder)
    description = _read_description(files[0], arrays[0])
    if not write_rows(folder, len(files), _drop_duplicates(arrays), description):
        return 0
    try:
        for file in reversed(files):
            file.path.unlink()
    except OSError as error:
        raise WorldError(
            f"cannot remove a merged file: {error}; run `cache compact` again"
        ) from error
    return len(files) - 1


def _drop_duplicates(arrays: Sequence[NDArray[np.void]]) -> list[NDArray[np.void]]:
    """Drop every row whose digest an earlier row has; copy an array only if it has such a row."""
    contexts = np.concatenate([rows["context"] for rows in arrays])
    is_first = np.zeros(len(contexts), bool)
    is_first[np.unique(contexts, return_index=True)[1]] = True
    ends = np.cumsum([len(rows) for rows in arrays])
    masks = np.split(is_first, ends[:-1])
    return [rows if mask.all() else rows[mask] for rows, mask in zip(arrays, masks, strict=True)]
