"""What tests of exports share: loading by transformers, and equality of logits."""

import torch

from statewise.data_types import Batch

TEXTS = ["Story 1: the cat", "Story 7: a boat,", "it sank. 3 dogs"]


def load(folder):
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def whole_rows(model, rows=5):
    """(rows, T) whole sequences of the task."""
    return torch.from_numpy(model.task.held_out(rows).tokens)


def ours_of(model, tokens):
    return model.predictor().logits(Batch.plain(tokens))


def same(found, wanted, share=1e-5):
    """Equal up to `share` of the largest logit, or of 1."""
    torch.testing.assert_close(found, wanted, rtol=0, atol=share * max(1.0, float(wanted.abs().max())))
