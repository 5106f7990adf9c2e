import functools
import json

import pytest
import torch
from doubles import small_corpus, spread_weights

from statewise.deploy.export import tokenizer
from statewise.model.model import new_model
from statewise.model.recipes import read_recipe


@pytest.fixture(scope="session", autouse=True)
def tokenizers_once():
    """Most exports are of the same task: its tokenizer is compared with it once."""
    compare, found = tokenizer.is_exact, {}

    @functools.wraps(compare)
    def is_exact(content, task):
        key = content, type(task), repr(task.config)
        if key not in found:
            found[key] = compare(content, task)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "is_exact", is_exact)
        yield


@pytest.fixture(scope="module")
def of_text(tmp_path_factory):
    """A model of text whose likely tokens include the end of text."""
    corpus = small_corpus(tmp_path_factory.mktemp("text"))
    recipe = {
        "task": {"name": "text", "path": str(corpus.folder), "context": 32},
        "backbone": {"name": "gpt", "width": 16, "heads": 2, "layers": 2},
        "objective": "next_latent",
    }
    model = new_model(read_recipe(json.dumps(recipe)))
    spread_weights(model.objective)
    with torch.no_grad():
        model.objective.backbone.embedding.weight[model.task.end] *= 2
    return model
