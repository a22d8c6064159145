"""A report's rows: values of `evaluate`, with intervals.

In: the folds, routers and baselines of a report. Out: the frozen rows of `report.analysis`.
`analyse` makes all of them; each other file makes those of one section. Not covered: definitions
(`evaluate`), tables and figures (`report`).
"""
