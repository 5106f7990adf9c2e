"""What no machine can hold is refused at once, with a sentence and before anything is written."""

import numpy as np
import pytest
import torch

from statewise.cli import main

TRAIN = ["train", "path-star-small", "--out", "{out}/run", "--trainer.device=cpu"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*TRAIN, "--backbone.width=1000000000"], "memory"),
        ([*TRAIN, "--backbone.width=1000000000000000"], "memory"),
        ([*TRAIN, "--backbone.width=100000000000000000000"], "backbone.width must be below"),
        ([*TRAIN, "--backbone.layers=1000000000"], "backbone.layers must be at least 1 and at most 10,000"),
        ([*TRAIN, "--backbone.layers=0"], "backbone.layers must be at least 1"),
        (
            [*TRAIN, "--backbone=recurrent", "--backbone.layers=1000000"],
            "backbone.layers must be at least 1 and at most",
        ),
        (
            [*TRAIN, "--backbone=belief_slots", "--backbone.warmup=100000"],
            "backbone.warmup must be at least 0 and at most",
        ),
        *(
            ([*TRAIN, f"--objective={name}", "--objective.horizon=1000000"], "objective.horizon 1,000,000 is beyond")
            for name in ("next_latent", "multi_token", "latent_multi_token", "joint_multi_token")
        ),
        *(
            ([*TRAIN, f"--task.{name}=100000000"], f"task.{name} is 100,000,000: so many sequences")
            for name in ("training_graphs", "held_out_graphs")
        ),
        *(
            (
                ["train", recipe, "--out", "{out}/run", f"--task.{name}=10000000", *more],
                f"task.{name} is 10,000,000: so many",
            )
            for recipe, name, *more in (
                ("recall-small", "held_out_sequences"),
                ("hmm-rrxor", "held_out_sequences", "--task.length=1000"),
                ("parity", "held_out_sequences"),
                ("countdown-small", "held_out_problems", "--task.pauses=100"),
                ("countdown-small", "training_problems", "--task.pauses=100"),
                ("strips-traces", "held_out_traces", "--task.max_length=100"),
                ("city-small", "held_out_rides", "--task.held_out_moves=40"),
            )
        ),
        (
            ["train", "recall-small", "--out", "{out}/run", "--task.chunk=1000000", "--task.held_out_sequences=9"],
            "trainer.batch_size is 128: so many",
        ),
        ([*TRAIN, "--task.nodes=100000000000"], "task.nodes must be at most 1,000,000"),
        ([*TRAIN, "--task.held_out_graphs=100000000000"], "task.held_out_graphs must be at least 1 and at most"),
        ([*TRAIN, "--trainer.batch_size=100000000000"], "trainer.batch_size must be at most"),
        ([*TRAIN, "--trainer.threads=100000000000"], "trainer.threads must be at most"),
        ([*TRAIN, "--trainer.learning_rate=.inf"], "trainer.learning_rate must be"),
        ([*TRAIN, "--trainer.weight_decay=.nan"], "trainer.weight_decay must be at least 0, not nan"),
        ([*TRAIN, "--seed=100000000000000000000000"], "seed must be at least 0"),
        ([*TRAIN, "--seeds=1-100000000000"], "at most 10,000 seeds"),
        ([*TRAIN, "--seeds=1,2", "--jobs=-1"], "--jobs must be at least 1"),
        (["generate", "{out}/none", "--prompt=1", "--decoder=beam", "--beams=9000000"], "beams must be at least 1 and"),
        (["data", "city", "--rows=100000000000", "--out", "{out}/city"], "at most 1,000,000 crossings"),
        (["data", "city", "--rows=-5", "--out", "{out}/city"], "--rows must be at least 2"),
        (["data", "text", "{out}", "--tokenizer=bpe:100000000000", "--out", "{out}/c"], "at most 16,777,216 tokens"),
        (["strips", "traces", "blocksworld:100000000000", "--num=1", "--out", "{out}/t.csv"], "must be at most 100"),
        (["strips", "traces", "hanoi:100", "--num=1", "--out", "{out}/t.csv"], "more than 200,000 ground actions"),
        (["strips", "traces", "simple", "--num=100000000000", "--out", "{out}/t.csv"], "must be at most 10,000,000"),
        (["strips", "traces", "simple", "--num=-1", "--out", "{out}/t.csv"], "--num must be at least 1"),
    ],
    ids=lambda given: " ".join(given)[:60] if isinstance(given, list) else "",
)
def test_it_is_refused_at_once(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(np.random, "default_rng", lambda *given: pytest.fail("something was drawn"))
    monkeypatch.setattr(torch.Tensor, "backward", lambda *given, **options: pytest.fail("something was trained"))
    (tmp_path / "text.txt").write_text("some text\n")
    before = sorted(tmp_path.rglob("*"))
    code = main([word.format(out=tmp_path) for word in words])
    said = capsys.readouterr().err
    assert code == 2
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before
