"""Routers, learned and usual.

`config` says what to learn, `network` holds what learns, `loop` goes from epoch to epoch, by `ppo`
or `exact`; `value` needs none. `training` gives a router for one alpha, `sweep` for all. `run` does
both as a user asks for them, in a folder of `run_folders`; in it lies what `checkpoint` writes, and
what `bundle` adds for live questions. `selection` finds the run that a command shows.
"""
