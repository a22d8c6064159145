"""Embedded texts: they come back for their digests, and no damage to them is silent."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hierrouter_cache import embeddings
from hierrouter_cache.embeddings import (
    ANSWERS,
    EmbeddingStore,
    embedding_fault,
    embedding_files,
    merge_embeddings,
)
from hierrouter_cache.embeddings import CONTEXTS as CONTEXT_TEXTS
from hierrouter_cache.errors import DamagedPart, IncompleteTree, WorldError
from hierrouter_cache.keys import digest
from hierrouter_cache.maintenance import quarantine
from hierrouter_cache.parts import sha16
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import sweep_drafts
from tests.cache import rows
from tests.cache.test_damage import HARMS, harmed

CONTEXTS = [digest(number) for number in range(300)]
ENDLESS = json.dumps({"encoder": "e", "texts": "contexts", "dim": 8, "x": "x" * 2**16}).encode()
VECTORS = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)


@pytest.fixture
def reader(tmp_path: Path) -> CacheReader:
    return CacheReader(rows.fill(tmp_path))


@pytest.fixture
def path(reader: CacheReader) -> Path:
    """The one file of an encoder's vectors."""
    (path,) = filled(reader).folder.iterdir()
    return path


def filled(reader: CacheReader, files: int = 1) -> EmbeddingStore:
    store = EmbeddingStore(reader, "e")
    for chosen in np.array_split(np.arange(300), files):
        store.append([CONTEXTS[row] for row in chosen], VECTORS[chosen])
    return store


def gathered(store: EmbeddingStore) -> NDArray[np.float32]:
    return store.vectors()[store.rows(store._reader.hashes(CONTEXTS))]


def require_all(reader: CacheReader) -> None:
    assert np.array_equal(gathered(EmbeddingStore(reader, "e")), VECTORS)


def put(folder: Path, array: NDArray[np.generic]) -> None:
    """A file of anything, under a name that fits its bytes."""
    data = io.BytesIO()
    np.save(data, array)
    dim = array.dtype["vector"].shape[0] if array.dtype.names else 8
    data.write(b'{"encoder": "e", "texts": "contexts", "dim": %d}' % dim)
    sha = sha16(data.getbuffer())
    (folder / f"emb-00000009-00000000-r{len(array)}-{sha}.npy").write_bytes(data.getbuffer())


@pytest.mark.parametrize("texts", [CONTEXT_TEXTS, ANSWERS])
def test_vectors_in_the_folder_of_another_encoder_or_text_are_refused(
    reader: CacheReader, path: Path, texts: str
) -> None:
    other = EmbeddingStore(reader, "e" if texts == ANSWERS else "another", texts)
    other.folder.mkdir()
    moved = path.rename(other.folder / path.name)
    wrong = f"damaged embedding file: {moved.name}: contexts by e with 8 numbers each, in the"
    with pytest.raises(DamagedPart, match=wrong):
        EmbeddingStore(reader, other.encoder, texts)
    assert quarantine(reader.root)[0][0] == moved.name


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b'{"encoder": "e", "texts": "contexts", "dim": 9}', "contexts by e with 9 numbers"),
        *(
            (said, "what follows its vectors is not readable")
            for said in (b"{", b"[]", b"{}", ENDLESS)
        ),
        (b"", "by an earlier version: collect again"),
    ],
)
def test_a_description_that_does_not_fit_or_is_not_there_is_refused(
    reader: CacheReader, path: Path, said: bytes, message: str
) -> None:
    bare = path.read_bytes().rpartition(b'{"encoder"')[0] + said
    path = path.rename(path.with_name(f"emb-00000000-00000000-r300-{sha16(bare)}.npy"))
    path.write_bytes(bare)
    with pytest.raises(DamagedPart, match=message):
        EmbeddingStore(reader, "e")


def test_vectors_come_back_for_their_contexts(reader: CacheReader) -> None:
    filled(reader, files=3)
    require_all(reader)
    assert not len(EmbeddingStore(reader, "e").missing(reader.hashes(CONTEXTS)))


@pytest.mark.parametrize("opened", ["anew", "as written"])
def test_one_file_is_mapped_and_not_copied(reader: CacheReader, opened: str) -> None:
    written = filled(reader)
    store = EmbeddingStore(reader, "e") if opened == "anew" else written
    owner: object = store.vectors()
    while not isinstance(owner, np.memmap):
        assert isinstance(owner, np.ndarray)
        owner = owner.base


def test_encoders_never_meet_and_answers_alone_never_meet_contexts(reader: CacheReader) -> None:
    contexts = filled(reader)
    assert contexts.folder.name == digest(["encoder", "e"])  # where caches of before have them
    another, answers = EmbeddingStore(reader, "another"), EmbeddingStore(reader, "e", ANSWERS)
    for store in (another, answers):
        assert len(store.missing(reader.hashes(CONTEXTS))) == 300
    with pytest.raises(IncompleteTree, match="300 states have no embedding"):
        another.rows(reader.hashes(CONTEXTS))
    answers.append(CONTEXTS, -VECTORS)
    require_all(reader)
    assert np.array_equal(gathered(EmbeddingStore(reader, "e", ANSWERS)), -VECTORS)
    assert merge_embeddings(reader.root) == 0


def test_missing_keeps_the_order_and_says_each_once(reader: CacheReader) -> None:
    wanted = reader.hashes([CONTEXTS[5], CONTEXTS[2], CONTEXTS[5]])
    assert EmbeddingStore(reader, "e").missing(wanted).tolist() == wanted[:2].tolist()


def test_a_vector_that_is_not_finite_is_refused(reader: CacheReader) -> None:
    with pytest.raises(WorldError, match="not finite"):
        EmbeddingStore(reader, "e").append(["a" * 32], np.array([[np.nan]], np.float32))


def test_merged_files_are_one_file_as_numpy_saves_it(reader: CacheReader) -> None:
    filled(reader, files=4)
    filled(reader, files=1)  # the same contexts once more, by another process
    assert merge_embeddings(reader.root) == 4
    (file,) = embedding_files(reader.root)
    assert file.rows == 300
    again = io.BytesIO()
    np.save(again, np.load(file.path))
    assert file.path.read_bytes().startswith(again.getvalue())
    require_all(reader)


@pytest.mark.parametrize("how", HARMS)
def test_a_hundred_damages_and_none_is_silent(reader: CacheReader, path: Path, how: str) -> None:
    sound = path.read_bytes()
    (file,) = embedding_files(reader.root)
    for data in harmed(sound, how):
        path.write_bytes(data)
        assert embedding_fault(file)
        with pytest.raises(DamagedPart, match=f"damaged embedding file: {path.name}"):
            EmbeddingStore(reader, "e").vectors()
    path.write_bytes(sound)
    require_all(reader)


def test_no_damage_of_a_header_is_a_trace(reader: CacheReader, path: Path) -> None:
    sound = path.read_bytes()
    (file,) = embedding_files(reader.root)
    for at in range(128):
        for byte in (0, ord("(")):
            path.write_bytes(bytes([*sound[:at], byte, *sound[at + 1 :]]))
            assert embedding_fault(file) or byte == sound[at]


def test_another_width_is_refused(reader: CacheReader, path: Path) -> None:
    """Before it is stored, and where another process has stored it."""
    with pytest.raises(
        WorldError, match="gives 5 numbers, here are vectors of 8: e; it is another"
    ):
        EmbeddingStore(reader, "e").append(["a" * 32], np.ones((1, 5), np.float32))
    other = np.zeros(1, [("context", "S32"), ("vector", "<f4", (5,))])
    put(path.parent, other)
    with pytest.raises(DamagedPart, match="embedding files of different dim"):
        EmbeddingStore(reader, "e").vectors()


def test_numbers_that_are_not_finite_are_refused(reader: CacheReader, path: Path) -> None:
    spoilt = np.load(path)
    spoilt["vector"][7, 3] = np.nan
    path.unlink()
    put(path.parent, spoilt)
    with pytest.raises(DamagedPart, match="NaN or infinity"):
        EmbeddingStore(reader, "e").vectors()


def test_files_merged_under_an_open_store_change_nothing(
    reader: CacheReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what it could not write."""
    for chosen in (slice(100), slice(100, 200)):
        EmbeddingStore(reader, "e").append(CONTEXTS[chosen], VECTORS[chosen])
    store = EmbeddingStore(reader, "e")
    with monkeypatch.context() as read_only:
        read_only.setattr(embeddings, "writable", lambda root: False)  # nothing is refused to root
        store.append(CONTEXTS[200:], VECTORS[200:])
        assert merge_embeddings(reader.root) == 0
    assert merge_embeddings(reader.root) == 1
    assert np.array_equal(gathered(store), VECTORS)


def test_a_folder_that_is_a_file_is_said_in_one_line(reader: CacheReader) -> None:
    (reader.root / "derived").write_text("x")
    with pytest.raises(WorldError, match="cannot write embeddings"):
        filled(reader)


def test_drafts_lie_where_they_are_swept(
    reader: CacheReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts: list[Path] = []
    real = Path.replace

    def replace(path: Path, target: Path) -> Path:
        drafts.append(path)
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    filled(reader)
    (draft,) = drafts
    dead = draft.with_name(draft.name.replace(f".{os.getpid()}.", f".{2**22 + 1}."))
    dead.touch()
    sweep_drafts(reader.root)
    assert list((reader.root / "tmp").iterdir()) == []


def test_a_read_only_cache_is_used_for_this_process(
    reader: CacheReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # tests may run as root
    assert np.array_equal(gathered(filled(reader)), VECTORS)
    assert embedding_files(reader.root) == []
