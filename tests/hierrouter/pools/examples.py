"""A pool file, and what its models resolve to."""

GOOD = """
[pool]
hops = 2
stage_prompts = ["plan", "solve"]
[[models]]
name = "a"
model = "org/a"
base_rate = 0.002
[[models]]
name = "b"
model = "org/b"
base_rate = 0.003
generation = { max_new_tokens = 64 }
[[references]]
name = "big"
model = "org/big"
base_rate = 0.01
"""
IDENTITIES = {name: {"weights": name, "engine": "e", "dtype": "auto"} for name in ("a", "b", "big")}
