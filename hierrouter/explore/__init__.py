"""A page that lets a person play with a cache.

`data` gathers what the page holds, `page` writes it; the arithmetic of the page is JavaScript, in
`templates`.
"""
