"""`cache push` and `pull` against S3's own interface, as moto serves it in a process of its own."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierrouter_cache.chain import sound_parts
from hierrouter_cache.stores import store_at
from tests.cli.conftest import Place
from tests.conftest import python_with
from tests.servers import free_port, running

MOTO = ("moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty folder in a bucket."""
    folder = tmp_path_factory.mktemp("moto")
    port = free_port()
    command = [python_with(*MOTO).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with running(command, f"http://127.0.0.1:{port}/moto-api/", folder / "log"):
        made = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
        urllib.request.urlopen(made).close()
        where = f"scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{port}"
        yield f"s3://bucket/cache?{where}"


def test_a_cache_goes_to_a_bucket_and_comes_back(
    bucket: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    place.does("collect --datasets riddle --limit 2 --cache here --remote", bucket)
    assert "copied" in place.does("cache push --cache here", bucket).stdout  # the scores
    place.does("cache pull --cache there", bucket)
    found = parts(place / "there")
    assert found == parts(place / "here")
    assert {name.partition("-")[0] for name in found} > {"calls", "queries"}
    assert "0 parts" in place.does("cache push --cache there", bucket).stdout
    store = store_at(bucket)
    torn = next(name for name in found if name.startswith("calls"))
    store.write(torn, found[torn][:-9])
    said = place.refuses("cache pull --cache other", bucket, code=3)
    assert f"damaged part in the mirror: s3://bucket/cache: {torn}: checksum mismatch" in said
    assert "1 part" in place.does("cache push --cache here", bucket).stdout
    assert store.read(torn) == found[torn]
    missing = bucket.replace("//bucket", "//nowhere")
    said = place.refuses("cache push --cache here", missing, code=1)
    assert "cannot use the mirror: s3://nowhere/cache: " in said


def parts(cache: Path) -> dict[str, bytes]:
    return {part.path.name: part.path.read_bytes() for part in sound_parts(cache)}
