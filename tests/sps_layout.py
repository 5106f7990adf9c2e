"""The models of the State-Prediction Separation paper in its own layout: streams interleaved, rotary planes of
neighbouring coordinates, a dense mask."""

import torch
from torch.nn import functional as F


def random_checkpoint(config, seed=0):
    """Tensors by their names."""
    generator = torch.Generator().manual_seed(seed)
    D, inner = config["hidden_size"], config["intermediate_size"]

    def drawn(*shape, mean=0.0):
        return mean + 0.3 * torch.randn(shape, generator=generator, dtype=torch.float32).to(torch.get_default_dtype())

    tensors = {
        "transformer.wte.weight": drawn(config["vocab_size"], D),
        "transformer.output_norm.weight": drawn(D, mean=1.0),
    }
    for layer in range(config["n_layer"]):
        tensors |= {
            f"transformer.h.{layer}.attn.c_attn.weight": drawn(3 * D, D),
            f"transformer.h.{layer}.attn.c_proj.weight": drawn(D, D),
            f"transformer.h.{layer}.attention_norm.weight": drawn(D, mean=1.0),
            f"transformer.h.{layer}.mlp_norm.weight": drawn(D, mean=1.0),
            f"transformer.h.{layer}.mlp.gate_proj.weight": drawn(inner, D),
            f"transformer.h.{layer}.mlp.up_proj.weight": drawn(inner, D),
            f"transformer.h.{layer}.mlp.down_proj.weight": drawn(D, inner),
        }
    return tensors


def dense_mask(variant, window, places, kinds, documents):
    """(N, N) bool over interleaved tokens at `places` (N,), of `kinds` (N,): 0 an input, 1 a prediction."""
    query, key = places[:, None], places[None]
    asks, asked = kinds[:, None], kinds[None]
    causal = (key < query) | ((key == query) & (asked <= asks))  # an input comes before its prediction
    near = query - key <= window
    persistent = {"standard": 0, "sps": 0, "strict": 0, "delayed_state": 1, "reverse_sps": 1}.get(variant)
    if variant == "double_memory":
        kept = torch.ones_like(causal)
    elif variant == "strict":
        kept = (asked == 0).expand_as(causal)
    else:
        kept = (asked == persistent) | near
    return causal & kept & (documents[:, None] == documents[None])


def turned(x, places, base=10000.0):
    """(H, N, W): the planes are coordinates 2 j and 2 j + 1."""
    W = x.shape[-1]
    angles = places[:, None].float() * base ** (-torch.arange(0, W, 2, dtype=torch.float32) / W)
    cosine, sine = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1).flatten(-2)


def normed(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def logits(tensors, config, tokens, variant):
    """(T, vocab_size) logits behind each of `tokens` (T,); a text ends with `eos_token_id`."""
    D, H, T = config["hidden_size"], config["n_head"], len(tokens)
    streams = 1 if variant == "standard" else 2
    ended = (tokens == config["eos_token_id"]).long()
    documents = (ended.cumsum(0) - ended).repeat_interleave(streams)
    places = torch.arange(T).repeat_interleave(streams)
    kinds = torch.arange(streams).repeat(T)
    ids = torch.where(kinds == 0, tokens[places], config.get("predict_token_id") or 0)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), 1 + ended[:-1].nonzero()[:, 0]])
    within = places - starts[documents]  # a rotation sees distances alone; so they are rounded as ours are
    mask = dense_mask(variant, config.get("window_size") or 0, places, kinds, documents)
    x = tensors["transformer.wte.weight"][ids]
    for layer in range(config["n_layer"]):
        w = {name.removeprefix(f"transformer.h.{layer}."): tensor for name, tensor in tensors.items()}
        mixed = normed(x, w["attention_norm.weight"]) @ w["attn.c_attn.weight"].T
        query, key, value = (part.view(-1, H, D // H).transpose(0, 1) for part in mixed.split(D, dim=-1))
        scores = turned(query, within) @ turned(key, within).transpose(-1, -2) / (D // H) ** 0.5
        seen = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value
        x = x + seen.transpose(0, 1).reshape(-1, D) @ w["attn.c_proj.weight"].T
        inner = normed(x, w["mlp_norm.weight"])
        inner = F.silu(inner @ w["mlp.gate_proj.weight"].T) * (inner @ w["mlp.up_proj.weight"].T)
        x = x + inner @ w["mlp.down_proj.weight"].T
    read = 0 if variant in ("standard", "reverse_sps") else 1
    return normed(x[kinds == read], tensors["transformer.output_norm.weight"]) @ tensors["transformer.wte.weight"].T
