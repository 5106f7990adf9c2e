"""Corpora: text as token shards on disk, written once as a stream, read at any place.

`documents` and `hub` say where text comes from, `survey` what of it is held out, `encoding` makes tokens,
`shards` keeps and reads them, `folder` is a corpus as a whole, `writing` makes one.
"""
