"""What is done to a place before the command: one module for each kind of file.

A row of the table names a function here, as `module.function`, and its further arguments. Each
takes the place first.
"""
