"""Tasks on text: documents, subword tokenizers, stories with an ending to fill in."""
