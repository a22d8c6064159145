"""hierrouter: multi-hop routing on a cached tree.

The packages below it, in the order data flows: `collect` runs every route of every query once,
`replay` serves those transitions, `learn` trains a router on them, `evaluate` computes exact
values, `report` shows them. Nothing heavy is imported here.
"""

__version__ = "0.1.0.dev0"
