"""Reports: tables, figures, one self-contained page.

`build` turns outcomes into a `Report`; `tables`, `figures` and `page` show it; `render` and
`serialise` write it down. Everything is returned, nothing is printed.
"""
