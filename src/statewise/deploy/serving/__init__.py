"""A server with the OpenAI protocol for completions and embeddings (extra `serve`).

One thread owns the models and decodes all requests together (`engine`); an asyncio loop speaks HTTP (`app`).
"""
