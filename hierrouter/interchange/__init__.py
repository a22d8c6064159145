"""Interchange: caches to files that others read, and back.

`formats` lists the formats. `jsonl` carries a whole cache. `table`, `llmrouter` and `routerbench`
give `Answer`s; `answers` gathers them and `storing` stores them as the trees of a cache. `direct`
is what peers can take of a cache; `llmrouter`, `routerbench` and `routellm` write it in their
columns; `peers` knows which module does what. `merge` adds rows to a cache.
"""
