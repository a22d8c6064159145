"""How a job is declared once, for Python and for the command line.

`declaration` makes a dataclass a declaration and describes its flags, `checks` holds the rules
for single values, and `flags` the flags that several jobs share. Importing them is cheap: no
numpy, no torch, so that `hierrouter --help` answers at once.
"""
