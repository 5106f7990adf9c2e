"""The two-stream transformer straight from the paper: token by token, with sets of keys. What `own` adds is ours."""

import math

import torch
from torch.nn import functional as F


def seen_by(variant, window, kind, i, omega=None):
    """The keys (kind, k) that the token of that kind reads at place i, as the paper says (equation 5 for sps); with
    `omega` those of the persistent stream under its restriction (figure 5b)."""
    oldest = 0 if omega is None else max(0, i - omega)
    inputs = {("x", k) for k in range(oldest, i + 1)}
    recent_inputs = {("x", k) for k in range(max(0, i - window), i + 1)}
    last = i + 1 if kind == "p" else i
    predictions = {("p", k) for k in range(oldest, last)}
    recent_predictions = {("p", k) for k in range(max(0, i - window), last)}
    return {
        "standard": inputs,
        "sps": inputs | recent_predictions,
        "double_memory": inputs | predictions,
        "delayed_state": recent_inputs | predictions,
        "reverse_sps": recent_inputs | predictions,
        "strict": inputs,
    }[variant]


def normed(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def turned(x, place, width):
    """One head's vector at a place, rotated: plane j is coordinates j and j + width / 2."""
    angles = place * 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)  # float32, as the model's are
    first, second = x[..., : width // 2], x[..., width // 2 :]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


def from_the_paper(backbone, row, documents=None, parameters=None, omega=None, attention=None):
    """(T, D) states and readouts of one row, token by token; `parameters(token)` gives those of a token, by name;
    `omega`: see `seen_by`. Fills `attention` with (H,) weights by (layer, query, key)."""
    config, variant = backbone.config, backbone.config.variant if backbone.separated else "standard"
    of = parameters or (lambda token: dict(backbone.named_parameters()))
    documents = documents if documents is not None else [0] * len(row)
    starts = [next(k for k in range(len(row)) if documents[k] == documents[i]) for i in range(len(row))]
    tokens = [(kind, i) for i in range(len(row)) for kind in (("x",) if variant == "standard" else ("x", "p"))]
    W, learned = config.width // config.heads, config.positions == "learned"
    x = {
        (kind, i): of((kind, i))["embedding.weight"][row[i] if kind == "x" else backbone.vocabulary]
        for kind, i in tokens
    }
    if config.prediction_start == "own":
        for kind, i in tokens:
            if kind == "p":
                x[kind, i] = x[kind, i] + of((kind, i))["embedding.weight"][row[i]]
    if learned:
        x = {(kind, i): x[kind, i] + of((kind, i))["positions.weight"][i - starts[i]] for kind, i in tokens}
    for layer in range(config.layers):
        w = {
            token: {name.removeprefix(f"blocks.{layer}."): value for name, value in of(token).items()}
            for token in tokens
        }
        q, k, v = {}, {}, {}
        for token in tokens:
            given = normed(x[token], w[token]["attention_norm.weight"])
            mixed = (w[token]["attention.in_proj.weight"] @ given).view(3, config.heads, W)
            place = token[1] - starts[token[1]]
            q[token], k[token], v[token] = mixed
            if not learned:
                q[token], k[token] = turned(q[token], place, W), turned(k[token], place, W)
        new = {}
        for kind, i in tokens:
            keys = [
                s
                for s in tokens
                if s in seen_by(variant, config.window, kind, i, omega) and documents[s[1]] == documents[i]
            ]
            scores = torch.stack([(q[kind, i] * k[s]).sum(-1) / math.sqrt(W) for s in keys])
            if attention is not None:
                attention |= {(layer, (kind, i), s): weight for s, weight in zip(keys, scores.softmax(0))}
            seen = (scores.softmax(0)[..., None] * torch.stack([v[s] for s in keys])).sum(0)
            mine = w[kind, i]
            middle = x[kind, i] + mine["attention.out_proj.weight"] @ seen.reshape(-1)
            gate, up = (mine["mlp.in_proj.weight"] @ normed(middle, mine["mlp_norm.weight"])).chunk(2)
            new[kind, i] = middle + mine["mlp.out_proj.weight"] @ (F.silu(gate) * up)
        x = new
    out = {
        kind: torch.stack([normed(x[kind, i], of((kind, i))["norm.weight"]) for i in range(len(row))])
        for kind in ("x", "p")
        if (kind, 0) in x
    }
    state, readout = {
        "standard": "xx",
        "sps": "xp",
        "double_memory": "xp",
        "delayed_state": "pp",
        "reverse_sps": "px",
        "strict": "xp",
    }[variant]
    return out[state], out[readout]
