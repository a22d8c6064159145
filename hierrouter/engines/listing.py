"""A pool as a table: its models, their prices, and which of their files are on this machine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hierrouter.engines.encoder_names import BUILT_IN_ENCODER, EncoderName
from hierrouter.engines.encoders import default_encoder
from hierrouter.engines.identity import (
    holds_model,
    holds_tokenizer,
    local_folder,
    named_folder,
    saved_folder,
    weight_files,
)
from hierrouter.engines.sentence_encoder import ENCODER_PATTERNS
from hierrouter.hub.repository import Repository, short
from hierrouter.pools.pool import OPENAI, START, Action, ModelSpec, Pool, Role, size_in_name
from hierrouter.tables import Column, Line, Table, short_number

# Where the files of weights, a tokenizer or an encoder are. The JSON of `hierrouter pools` holds
# these words.
FILES_PRESENT = "here"
FILES_PARTIAL = "in part"
FILES_ABSENT = "not here"
FILES_AMBIGUOUS = "several commits"  # none of which is named
WEIGHTS_SERVED = "served"
WEIGHTS_WITHOUT_URL = "no base_url"
ENCODER_BUILT_IN = "built in"
# Names that architectures give their context window in `config.json`.
WINDOW_KEYS = ("max_position_embeddings", "n_positions")
POOL_COLUMNS = (
    "model",
    "parameters",
    "price",
    "max new",
    "window",
    "weights",
    "tokenizer",
    "source",
)
TOKENIZER_PATTERNS = ("tokenizer*", "*.model", "vocab*", "merges.txt", "*tokens*.json", "*.jinja")
UNKNOWN_SIZE = "unknown"


def model_details(model: ModelSpec) -> dict[str, Any]:
    """Describe a model beyond what its pool file states; the hub is not asked.

    Args:
        model: a model of a pool.

    Returns:
        "name"; "parameters", the model's size, None if neither the pool nor a name states it;
        "window", tokens of prompt and response together, the least of the pool's and the model's
        own, None if neither is known on this machine; "weights": "here", "in part", "not here",
        "several commits" if none of them is named, "served" by an endpoint, or "no base_url" for an
        endpoint without an address; "tokenizer": likewise, None if no tokenizer is needed; and
        "commit", that of the hub's files, None if there is none.

    Raises:
        InputError: a local folder does not exist or holds no model.
    """
    details = _served_files(model) if model.backend == OPENAI else _local_files(model)
    folder = details.pop("folder")
    windows = (model.window, _window(folder) if folder else None)
    return {
        "name": model.name,
        "parameters": model.parameters
        or size_in_name(model.name)
        or size_in_name(Path(model.model).name),
        "window": min((window for window in windows if window), default=None),
        **details,
    }


def _served_files(model: ModelSpec) -> dict[str, Any]:
    """Describe the files of a served model: only a tokenizer that counts tokens may be needed."""
    endpoint = model.endpoint
    tokenizer = None
    if endpoint and endpoint.tokenizer:
        folder = named_folder(replace(model, model=endpoint.tokenizer))
        if folder is None:
            repository = Repository(endpoint.tokenizer)
            commit = repository.local_commit(None, holds_tokenizer)
            folder = repository.snapshot(commit) if commit else None
        tokenizer = FILES_PRESENT if folder and holds_tokenizer(folder) else FILES_ABSENT
    return {
        "folder": None,
        "weights": WEIGHTS_SERVED if endpoint and endpoint.base_url else WEIGHTS_WITHOUT_URL,
        "tokenizer": tokenizer,
        "commit": None,
    }


def _local_files(model: ModelSpec) -> dict[str, Any]:
    """Describe the files of a model that this machine would load."""
    folder = saved_folder(model)
    is_on_hub = local_folder(model) is None
    commit = folder.name if folder and is_on_hub else None
    if folder is None:
        repository = Repository(model.model)
        is_ambiguous = is_on_hub and len(repository.usable_commits(holds_model)) > 1
        weights = tokenizer = FILES_AMBIGUOUS if is_ambiguous else FILES_ABSENT
    else:
        files = weight_files(folder)
        is_complete = bool(files) and all(file.is_file() for file in files)
        weights = FILES_PRESENT if is_complete else FILES_PARTIAL
        tokenizer = _tokenizer(folder, Repository(model.model) if is_on_hub else None)
    return {"folder": folder, "weights": weights, "tokenizer": tokenizer, "commit": commit}


def _tokenizer(folder: Path, repository: Repository | None) -> str:
    """Tell whether the files of a tokenizer are here.

    Args:
        folder: of the model.
        repository: of a model on the hub, whose listing tells which files there are.
    """
    if not holds_tokenizer(folder):
        return FILES_ABSENT
    missing = repository.missing(folder.name, TOKENIZER_PATTERNS) if repository else []
    return FILES_PARTIAL if missing else FILES_PRESENT


def encoder_details(pool: Pool) -> dict[str, Any]:
    """Describe the encoder that a pool uses unless the user names another one.

    Args:
        pool: the pool.

    Returns:
        "name"; "model", its hub id or folder, None if it is built in; "files": "built in", "here",
        "in part", "not here" or "several commits"; and "commit", that of the hub's files.
    """
    name = default_encoder(pool)
    if name == BUILT_IN_ENCODER:
        return {"name": name, "model": None, "files": ENCODER_BUILT_IN, "commit": None}
    parsed = EncoderName.parse(name)
    if parsed.path:
        files = FILES_PRESENT if holds_model(parsed.path) else FILES_ABSENT
        return {"name": name, "model": parsed.model, "files": files, "commit": None}
    repository = parsed.repository
    commit = parsed.commit or repository.local_commit(None, holds_model)
    if commit and holds_model(repository.snapshot(commit)):
        missing = repository.missing(commit, ENCODER_PATTERNS)
        files = FILES_PARTIAL if missing else FILES_PRESENT
    else:
        commit = None
        count = len(repository.usable_commits(holds_model))
        files = FILES_AMBIGUOUS if count > 1 else FILES_ABSENT
        if not count and repository.commits:
            files = FILES_PARTIAL
    return {"name": name, "model": repository.id, "files": files, "commit": commit}


def _window(folder: Path) -> int | None:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    # Models that also read images keep the language model's settings one level down.
    text_config = config.get("text_config") or config
    return next((text_config[key] for key in WINDOW_KEYS if key in text_config), None)


def pool_table(name: str, pool: Pool, instructions: bool) -> Table:
    """Make the table of a pool: a row for each model, then one for each reference model.

    Args:
        name: the pool's name, for the title.
        pool: the pool.
        instructions: whether a note lists the stage instruction of each hop.

    Returns:
        The table.

    Raises:
        InputError: a local folder does not exist or holds no model.
    """
    notes = [_encoder_note(pool)]
    notes += [f"{role.name}: {_places(role)}" for role in pool.roles]
    if instructions:
        for hop in range(pool.hops):
            notes.append(f"hop {hop + 1}: {pool.instruction(hop) or 'nothing'}")
        for action in pool.actions:
            if action.instruction is not None:
                notes.append(f"{action.name}: {action.instruction or 'nothing'}")
    actions = f"{len(pool.roles)} actions, " if pool.roles else ""
    count = "token" if pool.per_tokens in (None, 1) else f"{pool.per_tokens:,} tokens"
    return Table(
        title=f"{name}: {len(pool.models)} models, {actions}{pool.hops} hops; "
        f"prices in {pool.currency} per {count}",
        columns=tuple(Column(title) for title in POOL_COLUMNS),
        rows=(
            *(_row(model, "models") for model in pool.models),
            *(_row(model, "references") for model in pool.references),
            *(_action_row(action) for action in pool.actions if action.role),
        ),
        note="  ".join(notes),
    )


def _encoder_note(pool: Pool) -> str:
    details = encoder_details(pool)
    model = details["model"]
    name = details["name"]
    if model and model != name:
        name += f" ({model})"
    commit = f", commit {short(details['commit'])}" if details["commit"] else ""
    return f"encoder {name}: {details['files']}{commit}"


def _places(role: Role) -> str:
    """Where an action is offered, in words."""
    places = []
    if role.at is not None:
        places.append(f"at hop {', '.join(map(str, role.at))}")
    if role.after is not None:
        places.append(f"after {', '.join(role.after or (START,))}")
    return " ".join(places) or "everywhere"


def _action_row(action: Action) -> Line:
    """The row of an action: its price, its settings, and its model."""
    rate = action.model.price().rate
    prices = dict.fromkeys((rate.tokens_in, rate.tokens_out))
    cells = (
        action.name,
        "",
        "/".join(f"{price:g}" for price in prices),
        action.model.generation.max_new_tokens,
        "",
        "",
        "",
        action.model.name,
    )
    return Line("actions", cells)


def _row(model: ModelSpec, group: str) -> Line:
    details = model_details(model)
    rate = model.price().rate
    size = UNKNOWN_SIZE
    if details["parameters"]:  # billions are "B" in the names of models
        size = short_number(details["parameters"]).replace("G", "B")
    # One price if tokens of prompt and response cost the same.
    prices = dict.fromkeys((rate.tokens_in, rate.tokens_out))
    cells = (
        model.name,
        size,
        "/".join(f"{price:g}" for price in prices),
        model.generation.max_new_tokens,
        details["window"],
        details["weights"],
        details["tokenizer"] or "",
        model.model,
    )
    return Line(group, cells)
