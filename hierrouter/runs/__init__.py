"""Trainings on disk, and which of them a command uses.

`train` declares what can be asked for, `training` makes runs of it, `run` holds finished ones.
`folders` holds the record of a run, `checkpoint` its weights, `progress` the state of an unfinished
training, `bundle` what live questions need besides. `selection` finds the run that a command shows,
`freshness` says whether a run fits its cache, `look_log` logs looks at the test fold, `evaluate`
values any policy exactly, `integrity` checks every file.
"""
