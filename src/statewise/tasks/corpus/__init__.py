"""Corpora: text as token shards on disk, written once as a stream, with random access.

`documents` reads text, `survey` splits it, `encoding` tokenizes it, `shards` stores the tokens, `folder` is a
whole corpus, `writing` makes one.
"""
