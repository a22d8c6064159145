"""Collection: every route of every query, once.

`datasets` gives queries, `backends` run models, `scheduler` walks the tree level by level and
commits what it learns as `rows` (`plan` says what was asked for, `summary` what came of it),
`encoders` embed what a policy will see (`views`).
"""
