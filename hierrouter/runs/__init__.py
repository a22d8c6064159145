"""Trainings on disk, and which of them a command uses.

`run` trains in a folder, resumably; `folders` holds the record of a run, `checkpoint` the weights,
`bundle` what live questions need besides. `selection` finds the run that a command shows,
`evaluate` values a policy exactly, `integrity` checks every file.
"""
