"""What a person could type, command by command.

Each command's help ends with these lines. The tests parse every one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "quickstart": ("hierrouter quickstart", "hierrouter quickstart --limit 60 --out first"),
    "doctor": ("hierrouter doctor", "hierrouter doctor --cache caches/paper --format json"),
    "collect": (
        "hierrouter collect --datasets gsm8k,math --dry-run",
        "hierrouter collect --datasets my.jsonl --pool my.toml --cache caches/my",
    ),
    "train": ("hierrouter train --alpha 0.02", "hierrouter train --algo exact --budget 1.1"),
    "sweep-alpha": ("hierrouter sweep-alpha", "hierrouter sweep-alpha --alphas 1,2,3 --seeds 3"),
    "report": (
        "hierrouter report",
        "hierrouter report --split validation --format md",
        "hierrouter report --prices today.toml --figures pdf --out report",
    ),
    "explain": ("hierrouter explain --worst 10", "hierrouter explain arith-0017 --format md"),
    "explore": ("hierrouter explore --split validation", "hierrouter explore --out tree.html"),
    "compare": (
        "hierrouter compare --split validation",
        "hierrouter compare --baselines knn,cascade --sets A",
    ),
    "off-policy": (
        "hierrouter off-policy --simulate uniform",
        "hierrouter off-policy --log requests.jsonl",
    ),
    "route": (
        'hierrouter route "What is 12 + 30?"',
        "hierrouter route --file questions.jsonl --reroute",
    ),
    "serve": (
        "hierrouter serve --port 8100 --log requests.jsonl",
        "hierrouter serve --host 0.0.0.0 --api-key-env SERVE_KEY --name cheap=0.5",
    ),
    "cache info": ("hierrouter cache info", "hierrouter cache info --incomplete --format json"),
    "cache verify": ("hierrouter cache verify --rescore",),
    "cache repair": ("hierrouter cache repair --cache caches/my",),
    "cache compact": ("hierrouter cache compact",),
    "cache sql": (
        'hierrouter cache sql "select dataset, count(*) from queries group by dataset"',
        'hierrouter cache sql "select * from nodes" --format csv',
    ),
    "cache import": (
        "hierrouter cache import answers.csv --format table --cache caches/answers",
        "hierrouter cache import backup.jsonl",
    ),
    "cache export": (
        "hierrouter cache export --out backup.jsonl",
        "hierrouter cache export --format routerbench --out bench.csv",
    ),
    "cache push": ("hierrouter cache push s3://bucket/cache",),
    "cache pull": ("hierrouter cache pull s3://bucket/cache --cache caches/shared",),
    "pools": ("hierrouter pools", "hierrouter pools --pool my.toml"),
    "datasets": ("hierrouter datasets", "hierrouter datasets --datasets riddle --show 3 --near"),
    "testbed train": ("hierrouter testbed train --out my-testbed",),
}
