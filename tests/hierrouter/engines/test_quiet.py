"""Loading a model shows nothing, and changes nothing for other users of the libraries."""

import sys
from pathlib import Path

import pytest
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
from huggingface_hub.utils import enable_progress_bars as enable_downloads
from transformers.utils import logging

from hierrouter.engines import backend
from hierrouter.engines.encoders import load_encoder
from hierrouter.hub.repository import quiet_loading
from hierrouter.pools.pool import ModelSpec
from tests.models import save_random_encoder


@pytest.mark.parametrize("shows_downloads", [True, False])
def test_libraries_show_afterwards_what_they_showed_before(shows_downloads: bool) -> None:
    shows_loading = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    hides_downloads = are_progress_bars_disabled()
    try:
        logging.enable_progress_bar()
        logging.set_verbosity_info()
        (enable_downloads if shows_downloads else disable_progress_bars)()
        with pytest.raises(ValueError, match="inside"), quiet_loading():
            assert not logging.is_progress_bar_enabled()
            assert logging.get_verbosity() == logging.ERROR
            assert are_progress_bars_disabled()
            raise ValueError("inside")
        assert logging.is_progress_bar_enabled()
        assert logging.get_verbosity() == logging.INFO
        assert are_progress_bars_disabled() is not shows_downloads
    finally:
        (logging.enable_progress_bar if shows_loading else logging.disable_progress_bar)()
        logging.set_verbosity(verbosity)
        (disable_progress_bars if hides_downloads else enable_downloads)()


def test_a_model_and_an_encoder_are_loaded_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_random_encoder(tmp_path / "encoder")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    logging.enable_progress_bar()
    capfd.readouterr()
    load_encoder(str(folder)).encode(["a text"])
    backend("transformers").load(ModelSpec("calc", "testbed:calc"))
    assert logging.is_progress_bar_enabled()  # else there would be nothing to keep quiet
    assert capfd.readouterr() == ("", "")
