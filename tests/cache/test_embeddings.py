import io
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hierrouter_cache import embeddings
from hierrouter_cache.embeddings import ANSWERS, EmbeddingStore, embedding_fault, embedding_files
from hierrouter_cache.errors import DamagedPart, IncompleteTree, WorldError
from hierrouter_cache.keys import digest
from hierrouter_cache.maintenance import merge_embeddings
from hierrouter_cache.parts import sha16
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import sweep_drafts
from tests.cache.test_loading import fill

CONTEXTS = [digest(number) for number in range(300)]
VECTORS = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)


@pytest.fixture
def reader(tmp_path: Path) -> CacheReader:
    fill(tmp_path)
    return CacheReader(tmp_path)


def filled(reader: CacheReader, files: int = 1) -> EmbeddingStore:
    store = EmbeddingStore(reader, "e")
    for chosen in np.array_split(np.arange(300), files):
        store.append([CONTEXTS[row] for row in chosen], VECTORS[chosen])
    return store


def gathered(store: EmbeddingStore, reader: CacheReader) -> NDArray[np.float32]:
    return store.vectors()[store.rows(reader.hashes(CONTEXTS))]


def test_vectors_come_back_for_their_contexts(reader: CacheReader) -> None:
    filled(reader, files=3)
    store = EmbeddingStore(reader, "e")
    assert np.array_equal(gathered(store, reader), VECTORS)
    assert not len(store.missing(reader.hashes(CONTEXTS)))


@pytest.mark.parametrize("opened", ["anew", "as written"])
def test_one_file_is_mapped_and_not_copied(reader: CacheReader, opened: str) -> None:
    written = filled(reader)
    store = EmbeddingStore(reader, "e") if opened == "anew" else written
    owner: object = store.vectors()
    while not isinstance(owner, np.memmap):
        assert isinstance(owner, np.ndarray)
        owner = owner.base


def test_encoders_never_meet(reader: CacheReader) -> None:
    filled(reader)
    other = EmbeddingStore(reader, "another")
    assert len(other.missing(reader.hashes(CONTEXTS))) == 300
    with pytest.raises(IncompleteTree, match="300 states have no embedding"):
        other.rows(reader.hashes(CONTEXTS))


def test_answers_alone_never_meet_contexts(reader: CacheReader) -> None:
    contexts = filled(reader)
    answers = EmbeddingStore(reader, "e", ANSWERS)
    assert contexts.folder.name == digest(["encoder", "e"])  # where caches of before have them
    assert len(answers.missing(reader.hashes(CONTEXTS))) == 300
    answers.append(CONTEXTS, -VECTORS)
    assert np.array_equal(gathered(EmbeddingStore(reader, "e"), reader), VECTORS)
    assert np.array_equal(gathered(EmbeddingStore(reader, "e", ANSWERS), reader), -VECTORS)
    assert merge_embeddings(reader.root) == 0


def test_missing_keeps_the_order_and_says_each_once(reader: CacheReader) -> None:
    wanted = reader.hashes([CONTEXTS[5], CONTEXTS[2], CONTEXTS[5]])
    assert EmbeddingStore(reader, "e").missing(wanted).tolist() == wanted[:2].tolist()


def test_a_vector_that_is_not_finite_is_refused(reader: CacheReader) -> None:
    with pytest.raises(WorldError, match="not finite"):
        EmbeddingStore(reader, "e").append(["a" * 32], np.array([[np.nan]], np.float32))


def test_merged_files_are_one_file_as_numpy_saves_it(reader: CacheReader) -> None:
    filled(reader, files=4)
    merge_embeddings(reader.root)
    (file,) = embedding_files(reader.root)
    again = io.BytesIO()
    np.save(again, np.load(file.path))
    assert file.path.read_bytes() == again.getvalue()
    assert file.sha == sha16(again.getvalue())


def test_merged_files_hold_the_same(reader: CacheReader) -> None:
    filled(reader, files=4)
    filled(reader, files=1)  # the same contexts once more, by another process
    assert merge_embeddings(reader.root) == 4
    (file,) = embedding_files(reader.root)
    assert file.rows == 300
    assert np.array_equal(gathered(EmbeddingStore(reader, "e"), reader), VECTORS)


def damaged(sound: bytes, how: str, rng: np.random.Generator) -> bytes:
    data = bytearray(sound)
    if how == "flip":
        position = rng.integers(len(data))
        data[position] ^= 1 << rng.integers(8)
    elif how == "truncate":
        del data[rng.integers(len(data)) :]
    else:
        start = rng.integers(len(data)) & ~511
        data[start : start + 512] = bytes(len(data[start : start + 512]))
    return bytes(data)


@pytest.mark.parametrize("how", ["flip", "truncate", "zero block"])
def test_a_hundred_damages_and_none_is_silent(reader: CacheReader, how: str) -> None:
    filled(reader)
    (file,) = embedding_files(reader.root)
    sound = file.path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(100):
        file.path.write_bytes(damaged(sound, how, rng))
        assert embedding_fault(file)
        with pytest.raises(DamagedPart, match=f"damaged embedding file: {file.path.name}"):
            EmbeddingStore(reader, "e").vectors()
    file.path.write_bytes(sound)
    assert np.array_equal(gathered(EmbeddingStore(reader, "e"), reader), VECTORS)


def test_no_damage_of_a_header_is_a_trace(reader: CacheReader) -> None:
    (file,) = embedding_files(filled(reader).folder.parents[1])
    sound = file.path.read_bytes()
    for at in range(128):
        for byte in (0, ord("(")):
            file.path.write_bytes(bytes([*sound[:at], byte, *sound[at + 1 :]]))
            assert embedding_fault(file) or byte == sound[at]


def test_another_width_is_refused(reader: CacheReader) -> None:
    filled(reader)
    EmbeddingStore(reader, "e").append(["a" * 32], np.ones((1, 5), np.float32))
    with pytest.raises(DamagedPart, match="embedding files of different dim"):
        EmbeddingStore(reader, "e").vectors()


def test_a_file_of_something_else_is_refused(reader: CacheReader) -> None:
    folder = filled(reader).folder
    np.save(folder / "x.npy", np.ones(7))
    data = (folder / "x.npy").read_bytes()
    (folder / "x.npy").rename(folder / f"emb-00000009-00000000-r7-{sha16(data)}.npy")
    with pytest.raises(DamagedPart, match="expected 7 rows of context and vector"):
        EmbeddingStore(reader, "e").vectors()


def test_numbers_that_are_not_finite_are_refused(reader: CacheReader) -> None:
    (file,) = embedding_files(filled(reader).folder.parents[1])
    rows = np.load(file.path)
    rows["vector"][7, 3] = np.nan
    np.save(file.path.with_name("x.npy"), rows)
    data = file.path.with_name("x.npy").read_bytes()
    file.path.unlink()
    name = f"emb-00000000-00000000-r{len(rows)}-{sha16(data)}.npy"
    file.path.with_name("x.npy").rename(file.path.with_name(name))
    with pytest.raises(DamagedPart, match="NaN or infinity"):
        EmbeddingStore(reader, "e").vectors()


def test_a_link_to_a_file_of_vectors_is_none(reader: CacheReader) -> None:
    (file,) = embedding_files(filled(reader).folder.parents[1])
    file.path.rename(reader.root / "elsewhere.npy")
    file.path.symlink_to(reader.root / "elsewhere.npy")
    with pytest.raises(DamagedPart, match="not a regular file"):
        EmbeddingStore(reader, "e").vectors()


def test_files_merged_under_an_open_store_change_nothing(reader: CacheReader) -> None:
    filled(reader, files=3)
    store = EmbeddingStore(reader, "e")
    merge_embeddings(reader.root)
    assert np.array_equal(gathered(store, reader), VECTORS)


def test_what_could_not_be_written_outlives_a_merge_by_somebody_else(
    reader: CacheReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for chosen in (slice(100), slice(100, 200)):
        EmbeddingStore(reader, "e").append(CONTEXTS[chosen], VECTORS[chosen])
    store = EmbeddingStore(reader, "e")
    with monkeypatch.context() as read_only:
        read_only.setattr(embeddings, "writable", lambda root: False)  # nothing is refused to root
        store.append(CONTEXTS[200:], VECTORS[200:])
    assert merge_embeddings(reader.root) == 1
    assert np.array_equal(gathered(store, reader), VECTORS)


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
    assert [draft.parent for draft in drafts] == [reader.root / "tmp"]
    dead, living = (
        drafts[0].with_name(drafts[0].name.replace(f".{os.getpid()}.", f".{pid}."))
        for pid in (2**22 + 1, os.getppid())
    )
    dead.touch()
    living.touch()
    sweep_drafts(reader.root)
    assert list((reader.root / "tmp").iterdir()) == [living]


def test_a_read_only_cache_is_used_for_this_process(
    reader: CacheReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # tests may run as root
    store = filled(reader)
    assert np.array_equal(gathered(store, reader), VECTORS)
    assert embedding_files(reader.root) == []
