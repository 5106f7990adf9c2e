"""Tasks on text: documents, subword tokenizers, stories with an ending to fill in. Of `tasks` it imports `base`,
`corpus` and `own_files`.
"""
