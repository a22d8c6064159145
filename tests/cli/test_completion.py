"""What a shell offers, asked as bash asks."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hierrouter.learning.baselines.registry import BASELINES
from hierrouter.learning.config import PRESETS
from hierrouter.pools.files import CALLED, pool_names
from hierrouter.questions.datasets import dataset_names
from hierrouter.questions.scoring import SCORERS
from hierrouter.replay.opening import VIEWS
from hierrouter.reports.figures import FORMATS
from hierrouter_cache.tree import SPLITS
from hierrouter_cli import options
from tests.conftest import environment

TYPED = {
    "hierrouter doc": ["doctor"],
    "hierrouter train --pool ": ["cpu", "paper", "testbed"],
    "hierrouter report --format j": ["json"],
    "hierrouter collect --datasets arith,fa": ["arith,fact"],
    "hierrouter train --checkp": [],
}

# Runs the program as a shell does, and its own script as a person pastes it.
SCRIPT = """
hierrouter() { "$PYTHON" -m hierrouter_cli "$@"; }
eval "$(hierrouter --show-completion)"
complete -p hierrouter >&2
for typed in "$@"; do
    COMP_WORDS=($typed); [[ "$typed" == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=($(COMP_WORDS="$typed" COMP_CWORD=$COMP_CWORD \\
        _HIERROUTER_COMPLETE=complete_bash hierrouter))
    echo "$typed|${COMPREPLY[*]}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_flags_and_names(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", SCRIPT, "bash", *TYPED],
        cwd=tmp_path,
        env={**environment(), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "complete -o default -F _hierrouter_completion hierrouter" in done.stderr
    offered = dict(line.split("|") for line in done.stdout.splitlines())
    assert {typed: names.split() for typed, names in offered.items()} == TYPED


def test_the_offered_words_are_those_there_are() -> None:
    assert sorted(options.POOLS) == sorted(pool_names())
    assert sorted(options.BASELINES) == sorted(BASELINES)
    assert sorted(options.DATASETS) == sorted(dataset_names())
    assert sorted(options.SCORERS) == sorted([*SCORERS, "given"])
    assert sorted(options.BACKENDS) == sorted(CALLED)
    assert sorted(options.FIGURES) == sorted(FORMATS)
    assert tuple(SPLITS) == options.FOLDS
    assert tuple(VIEWS) == options.STATES
    assert {*options.PRESETS} == {name for name, _ in PRESETS}
    assert {*options.ALGORITHMS} == {algo for _, algo in PRESETS}
