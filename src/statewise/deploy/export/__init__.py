"""Models in formats that other libraries load (folders of Hugging Face, GGUF files), and models of checkpoints of
other code (`sps_checkpoint`).

`export` chooses the format. `layouts` says which models are a known architecture, and how tensors correspond. Only
`registered` imports transformers at its top level. Imports no other part of `deploy`.
"""
