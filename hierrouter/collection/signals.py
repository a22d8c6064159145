"""How sure models were of answers that were stored without: they read them again.

No answer is made anew, and none is changed.
"""

from collections import Counter
from pathlib import Path

import pyarrow as pa

from hierrouter.collection.plan import logprob_columns, stages_of
from hierrouter.collection.progress import Progress
from hierrouter.collection.scheduler import blaming
from hierrouter.engines import backend, generator, identify
from hierrouter.pools.pool import Pool
from hierrouter_cache.errors import Interrupted
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.parts import SIGNALS
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter, sweep_drafts

ROWS_PER_PART = 2_048
NAMES = (("call", "key"), ("outcome", "outcome"))  # of a row of `signals`, and of its call
UNSURE = """
SELECT key, outcome, prompt, response, tokens_out, finish_reason FROM calls
ANTI JOIN signals s ON s.call = calls.key AND s.outcome = calls.outcome
WHERE logprob_sum IS NULL AND step IN (SELECT step FROM wanted)
"""


def fill_signals(
    pool: Pool,
    root: Path,
    progress: Progress | None = None,
    stop: generator.Stop = generator.never,
    engines: generator.Engines = backend,
) -> Counter[str]:
    """Store how sure the models of a pool are of every answer of theirs that lacks it.

    Returns how many answers were "read", "retokenised" (their text has other tokens now than when
    it was generated, so nothing is known of them), and "unreadable": a server answers, and does not
    read. Raises Interrupted: `stop` said so; CacheLocked, CacheError: as `fill_cache`; WorldError:
    a model or the disk failed; what was committed is safe.
    """
    progress, counts = progress or Progress(), Counter[str]()
    direct, levels = stages_of(pool, pool.tree_spec(identify(pool.everyone, engines)))
    residency = generator.Residency(engines)
    with collector_lock(root):
        sweep_drafts(root)
        reader, writer = CacheReader(root), PartWriter(root)
        for model in pool.everyone:
            stages = [*direct, *(stage for level in levels for stage in level)]
            steps = {stage.step for stage in stages if stage.model == model}
            due = reader.sql(UNSURE, wanted=pa.table({"step": sorted(steps)})).to_pylist()
            if not due:
                continue
            with blaming(model):
                reads = getattr(residency.generator(model), "reread", None)
                if reads is None:
                    counts["unreadable"] += len(due)
                    continue
                progress.on_level(f"reread {model.name}", len(due))
                for start in range(0, len(due), ROWS_PER_PART):
                    part = due[start : start + ROWS_PER_PART]
                    rows = [
                        {name: part[place][of] for name, of in NAMES} | logprob_columns(sure)
                        for place, sure in reads(part)
                    ]
                    counts["read"] += len(rows)
                    counts["retokenised"] += len(part) - len(rows)
                    if rows:
                        writer.append("signals", pa.Table.from_pylist(rows, schema=SIGNALS))
                    progress.on_calls(len(part), sum(one["tokens_out"] for one in part), 0.0)
                    if stop():
                        raise Interrupted(
                            f"interrupted: {counts['read']} answers read; "
                            "rerun the same command to go on"
                        )
            residency.release(model.name)
    return counts
