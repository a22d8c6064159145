"""List what can be collected: the pools that come with the package, and the datasets.

Each job is declared once, see `hierrouter.declarations`. The modules that do the work are imported
when a job runs, because they need pyarrow.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.declarations import flags
from hierrouter.declarations.declaration import Flag, OnNote, declaration, ignore_note
from hierrouter.paper import PAPER_SEED

if TYPE_CHECKING:
    from hierrouter.pools.pool import Pool
    from hierrouter.questions.datasets import DatasetSummary, KnownDataset
    from hierrouter.tables import Table

DATA_FOLDER = Path("data")


@declaration
class ListPools:
    """List pools with their models.

    Attributes:
        pool: name or TOML file of the one to list; None is all that come with the package.
    """

    pool: flags.PoolToUse = None

    def run(self) -> dict[str, Pool]:
        """Load the pools; no network is asked.

        Returns:
            The pools by name.

        Raises:
            InputError: an unknown name, or a file that cannot be used.
        """
        from hierrouter.pools.files import load_pool, pool_names

        names = [self.pool] if self.pool else pool_names()
        return {name: load_pool(name) for name in names}


def pools_object(pools: dict[str, Pool]) -> dict[str, Any]:
    """Return pools by name as JSON values.

    "listing" has the details of each model, and "encoder_files" those of the encoder.

    Raises:
        InputError: a local folder of a model does not exist or holds no model.
    """
    from hierrouter.engines.listing import encoder_details, model_details

    objects = {}
    for name, pool in pools.items():
        models = (*pool.models, *pool.references)
        objects[name] = {
            **asdict(pool),
            "listing": [model_details(model) for model in models],
            "encoder_files": encoder_details(pool),
        }
    return objects


def pool_tables(pools: dict[str, Pool], instructions: bool) -> list[Table]:
    """Return a table for each pool.

    Args:
        pools: by name.
        instructions: whether to show the stage instruction of each hop.

    Raises:
        InputError: a local folder of a model does not exist or holds no model.
    """
    from hierrouter.engines.listing import pool_table

    return [pool_table(name, pool, instructions) for name, pool in pools.items()]


@declaration
class ShowDatasets:
    """Show questions and folds of datasets, as `collect` would draw them.

    Attributes:
        datasets: names or files; None only lists the known ones, see `known`.
        limit: the largest number of queries of each dataset; None is 300, and of a file all.
        seed: of the draw and of the folds.
        data: folder of the paper's datasets as files.
        group_by: field of a file's questions that takes the place of their dataset.
        show_signature: show the function that tests call below each question.
        show: number of questions of each dataset.
    """

    datasets: flags.DatasetsToDraw = None
    limit: flags.LimitToDraw = None
    seed: flags.Seed = PAPER_SEED
    data: flags.Data = DATA_FOLDER
    group_by: flags.GroupBy = None
    show_signature: flags.ShowSignature = False
    show: Annotated[int, Flag("--show", "N", "So many questions of each dataset.", minimum=0)] = 2

    def known(self) -> list[KnownDataset]:
        """Return the names that can be loaded, with their origins.

        Raises:
            InputError: a file in `data` cannot be read.
        """
        from hierrouter.questions.datasets import known_datasets

        return known_datasets(self.data)

    def run(self, on_note: OnNote = ignore_note) -> list[DatasetSummary]:
        """Load the datasets.

        Args:
            on_note: called with a line for each dataset from the hub, and with one on
                near-duplicates across folds.

        Returns:
            Folds and questions of each dataset.

        Raises:
            InputError: an unknown name, or a file with a bad row.
            WorldError: the hub is needed and cannot be reached.
        """
        from hierrouter.questions.datasets import describe, draw_queries

        queries, _ = draw_queries(
            self.datasets or (),
            self.limit,
            self.seed,
            self.data,
            on_note,
            show_signature=self.show_signature,
            group_by=self.group_by,
        )
        return describe(queries, self.show)
