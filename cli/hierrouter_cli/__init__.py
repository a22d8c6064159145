"""The command line: it reads flags, calls the library and prints.

Each command has a function here, and its job is a declaration in the library (see
`hierrouter.declarations`). Nothing heavy is imported before a command's body runs, so that
`--help` and a wrong flag answer at once.
"""
