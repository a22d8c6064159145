"""Off-policy estimation: a policy's value from a log.

In: episodes that one policy played, with the probabilities it had for what it did. Out: what
another policy would earn. `log_file` reads and writes the episodes, `log` holds them as arrays,
`states` what was seen at their states; `estimators` and `fitted` see these two and no tree.
`simulate` plays logs on a tree, where the truth is known, and `study` scores estimators on them.
"""
