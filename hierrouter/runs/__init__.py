"""Trainings on disk, and which of them a command uses.

`train` declares what can be asked for, `training` makes runs of it, `run` holds finished ones.
`folders` holds the record of a run, `checkpoint` its weights, `progress` the state of an unfinished
training, `epochs` checkpoints of single epochs, `bundle` what live questions need besides;
`curve_logs` sends learning curves to other programs. `selection` finds the run that a command
shows, `freshness` says whether a run fits its cache, `look_log` logs looks at the test fold,
`evaluate` values any policy exactly, `integrity` checks every file.
"""
