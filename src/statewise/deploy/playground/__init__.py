"""A page that shows a model reading and writing token by token, beside what its task knows to be true.

`observer` makes traces of models, `page` the web page that draws them, also with recorded traces as one file, and
`routes` serves both. Imports `deploy.serving`, whose server has the page at `/`.
"""
