"""CPU seconds of opening a cache of the paper's pool, over those of the testbed's at equal size.

    python benchmarks/opening_paper.py [--questions 20000] [--rounds 5]

The script makes two caches of --questions questions (12 calls each, `scale_cache.py`), with
vectors of every state. The encoder of one is built in. The other one has the paper's models, and
its vectors are those of a commit of their encoder on the hub. Neither models nor encoder are on the
machine, and no hub can be reached. Each cache is opened in new processes, in turn. Imports of
duckdb, numpy, pyarrow and pydantic do not count, all others do: an encoder that is loaded imports
torch. `unchanged` is with the tree that an earlier opening kept, `no tree kept` without it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from opening import HERE, MEASURE, PREPARE, settle
from scale_cache import BATCH, Maker, pool_of

from hierrouter.engines.encoder_names import BUILT_IN_ENCODER, PAPER, EncoderName
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import Identity, Pool
from hierrouter_cache.embeddings import merge_embeddings
from hierrouter_cache.maintenance import compact

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAPER_WIDTH = 768  # numbers of a vector of all-mpnet-base-v2
MAX_RATIO = 1.2
OPEN = PREPARE + "import pydantic\n"
OPEN += MEASURE.format(
    work="""from hierrouter.replay.open_tree import OpenTree
tree = OpenTree(cache=Path(sys.argv[1])).run()"""
)
OPEN += "assert not tree.unembedded, tree.unembedded\nassert 'torch' not in sys.modules\n"


def paper_pool() -> tuple[Pool, Mapping[str, Identity]]:
    """The paper's pool, whose first hop is a direct call, and what its models resolve to."""
    pool = load_pool(PAPER)
    pool = replace(pool, references=(), stage_prompts=pool_of(3, 2).stage_prompts)
    identities = {
        model.name: {"weights": f"{model.model}@{COMMIT}", "dtype": model.dtype}
        for model in pool.models
    }
    return pool, identities


def make_caches(folder: Path, questions: int) -> dict[str, Path]:
    """Make both caches, and return them by name."""
    testbed = replace(pool_of(3, 2), encoder=BUILT_IN_ENCODER)
    paper, identities = paper_pool()
    name = EncoderName.parse(PAPER)
    description = f"{name.repository.id}@{COMMIT}{name.suffix}"
    caches = {"testbed": folder / "testbed", "paper": folder / "paper"}
    makers = {
        "testbed": Maker(caches["testbed"], np.random.default_rng(0), testbed),
        "paper": Maker(caches["paper"], np.random.default_rng(0), paper, identities),
    }
    for maker in makers.values():
        for first in range(0, questions, BATCH):
            maker.batch(min(BATCH, questions - first))
    makers["testbed"].finish()
    makers["paper"].finish(description, PAPER_WIDTH)
    for root in caches.values():
        compact(root)
        merge_embeddings(root)
        settle(root)
    return caches


def cpu(root: Path, home: Path) -> float:
    """Open a cache in a new process, and return the CPU seconds that it prints."""
    path = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-c", OPEN, str(root)]
    return float(subprocess.check_output(command, env=environment, text=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="opening-paper-") as scratch:
        home = Path(scratch) / "home"
        caches = make_caches(Path(scratch), args.questions)
        for root in caches.values():
            cpu(root, home)  # hashes all files, and keeps the tree
        for label in ("unchanged", "no tree kept"):
            timings: dict[str, list[float]] = {name: [] for name in caches}
            for _ in range(args.rounds):
                for name, root in caches.items():
                    if label == "no tree kept":
                        for tree in root.glob("derived/trees/tree-*"):
                            tree.unlink()
                    timings[name].append(cpu(root, home))
            for name, seconds in timings.items():
                spread = f"({min(seconds):.3f}-{max(seconds):.3f})"
                print(f"{label:<14}{name:<9}{median(seconds):7.3f} CPU-s {spread}")
            ratio = median(timings["paper"]) / median(timings["testbed"])
            verdict = "within" if ratio <= MAX_RATIO else "ABOVE"
            print(f"{label:<14}paper / testbed {ratio:.2f}, {verdict} {MAX_RATIO}")


if __name__ == "__main__":
    main()
