"""A server with the OpenAI protocol for completions and embeddings (extra `serve`).

One thread owns the models and decodes all requests together (`engine`, `batch`, `choosing`); an asyncio loop speaks
HTTP (`server`, `guard`, `app`, `answers`). Imports no other part of `deploy`.
"""
