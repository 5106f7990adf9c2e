"""Corpora: text as token shards on disk, written once as a stream, with random access.

`documents` reads text, `survey` splits it, `encoding` tokenizes it, `folder` is a corpus on disk, `writing`
makes one. Of `tasks` it imports `own_files` and `text.bpe`.
"""
