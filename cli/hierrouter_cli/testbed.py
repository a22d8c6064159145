"""`hierrouter testbed`: the recipe of the three specialists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierrouter_cli import console, options
from hierrouter_cli.help_page import GroupPage, add

app = typer.Typer(cls=GroupPage, help="The three tiny specialists of the testbed.")


@app.callback()
def testbed() -> None:
    """The three tiny specialists of the testbed."""


@add(app, "testbed train")
def train(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the three models.")
    ] = Path("testbed-models"),
    seed: options.Seed = 0,
) -> None:
    """Rebuild the three models from nothing; about a quarter of an hour on one core."""
    from hierrouter.testbed import MODELS
    from hierrouter.testbed.train import train_specialist

    for name in MODELS:
        with console.bar(f"train {name}") as show:

            def on_step(step: int, steps: int, loss: float) -> None:
                show(step, steps, f"loss {loss:.3f}")

            train_specialist(name, out / name, seed, on_step)
        console.put(f"{out / name}\n")
