"""The command line: parses, calls, prints.

One file a command. Nothing heavy is imported before a command's body runs, so `--help` and a
wrong flag answer at once.
"""
