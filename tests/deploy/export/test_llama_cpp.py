"""A GGUF file of ours in llama.cpp itself, as it is and quantised. Needs `pip install xllamacpp`."""

import re

import pytest
import torch
from doubles import small_corpus, small_stories
from pages import example, run_code

gguf = pytest.importorskip("gguf", reason="needs the extra hf")
xllamacpp = pytest.importorskip("xllamacpp", reason="needs xllamacpp, which holds llama.cpp")

import statewise  # noqa: E402
from statewise.cli import main  # noqa: E402
from statewise.data_types import Batch  # noqa: E402
from statewise.deploy.export import gguf_file  # noqa: E402
from statewise.deploy.export.export import export  # noqa: E402

pytestmark = pytest.mark.slow
PROMPTS = ["Story 1: the cat", "Story 7: a boat,", "3 dogs", "the", "Story 30: naïve — 中文 \n\t don't  stop"]
CONTEXT, GREEDY = 64, 20
BOUNDS = {"F32": 1e-4, "F16": 0.02, "Q8_0": 0.3, "Q4_0": 2.0}
"""By how much the log-probability of a likely token may differ; of nearly equal ones either may be chosen."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    sizes = [
        "--backbone.width=64",
        "--backbone.heads=2",
        "--backbone.layers=2",
        "--trainer.batch_size=16",
        "--trainer.steps=300",
        "--trainer.warmup_steps=20",
        "--trainer.learning_rate=3e-3",
    ]
    words = [
        "text-small",
        "--task.path",
        str(small_corpus(folder, 200).folder),
        f"--task.context={CONTEXT}",
        "--objective",
        "next_latent",
        *sizes,
    ]
    assert main(["train", *words, "--out", str(folder / "run")]) == 0
    return statewise.load(folder / "run", device="cpu")


def quantised(model, path, kind, monkeypatch):
    """A file whose matrices are of a type of GGUF, by the package's own functions."""
    number, written = gguf.GGMLQuantizationType[kind], path.with_suffix(".written")

    def write(_, writer, arrays, file):
        for name, array in arrays.items():
            if array.ndim < 2:
                writer.add_tensor(name, array)
            else:
                writer.add_tensor(name, gguf.quants.quantize(array, number), raw_dtype=number)
        writer.write_header_to_file(written)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        file.write(written.read_bytes())

    with monkeypatch.context() as patch:
        if kind != "F32":  # as it is
            patch.setattr(gguf_file, "_write", write)
        export(model, path, "gguf")
    tensors = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert {kind for name, kind in tensors.items() if "norm" not in name} == {kind}


def served(path):
    options = xllamacpp.CommonParams()
    options.model.path, options.n_ctx, options.n_parallel, options.n_gpu_layers = str(path), CONTEXT, 1, 0
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it has steps in float16
    options.verbosity, options.warmup, options.kv_unified = 0, False, True
    return xllamacpp.Server(options)


@pytest.mark.parametrize("kind", BOUNDS)
def test_llama_cpp_continues_as_we_do(model, kind, tmp_path, monkeypatch):
    quantised(model, tmp_path / "model.gguf", kind, monkeypatch)
    server, equal, read, apart = served(tmp_path / "model.gguf"), 0, 0, 0.0
    for prompt in PROMPTS:
        tokens = model.task.encode(prompt)
        asked = {"prompt": prompt, "max_tokens": GREEDY, "temperature": 0, "logprobs": 5}
        found = server.handle_completions(asked)
        assert found["usage"]["prompt_tokens"] == len(tokens), "llama.cpp reads other tokens"
        places = (found["choices"][0]["logprobs"] or {"content": []})["content"]  # null if the text ends at once
        read += len(places)
        (ours,) = model.generate([prompt], limit=GREEDY)
        chosen = [place["id"] for place in places]  # without an end token, and halves of a character
        equal += chosen == ours.tokens.tolist()[: len(chosen)]
        # Teacher-forced on what llama.cpp chose, so that one other choice does not count many times.
        whole = torch.tensor([[*tokens.tolist(), *chosen]])
        logs = model.predictor().logits(Batch.plain(whole))[0].log_softmax(-1)
        for number, place in enumerate(places, len(tokens) - 1):
            assert logs[number].max() - logs[number, place["id"]] < 2 * BOUNDS[kind], "not even nearly the likeliest"
            for one in place["top_logprobs"]:
                apart = max(apart, abs(one["logprob"] - float(logs[number, one["id"]])))
    print(f"{kind}: {equal} of {len(PROMPTS)} greedy texts equal, log-probabilities differ by at most {apart:.2g}")
    assert read > 2 * GREEDY
    assert apart < BOUNDS[kind]


def test_a_model_tuned_by_the_trainer_drafts_there_and_goes_on_here(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("accelerate", reason="transformers needs it to train")
    import statewise.hf

    stories = small_stories(200)
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator([stories], vocab_size=300, show_progress=False, special_tokens=["<end>"])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token="<end>", pad_token="<end>"
    )
    sizes = {"vocab_size": 304, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}
    config = transformers.LlamaConfig(**sizes, bos_token_id=None, eos_token_id=0)
    theirs = transformers.LlamaForCausalLM(config)
    options = {"max_steps": 150, "learning_rate": 3e-3, "per_device_train_batch_size": 16, "report_to": []}
    settings = transformers.TrainingArguments(str(tmp_path / "run"), **options, use_cpu=True)
    loss = statewise.hf.loss_for(theirs, "next_latent", horizon=2)
    ids = torch.tensor(tokenizer(stories)["input_ids"])
    rows = ids[: len(ids) // 48 * 48].view(-1, 48)
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = transformers.Trainer(theirs, settings, train_dataset=data, compute_loss_func=loss)
    trainer.train()
    trainer.save_model(str(tmp_path / "tuned"))
    tokenizer.save_pretrained(tmp_path / "tuned")
    assert main(["export", str(tmp_path / "tuned"), "--to", "gguf", "--out", str(tmp_path / "tuned.gguf")]) == 0
    theirs, server = statewise.hf.with_loss(tmp_path / "tuned").eval(), served(tmp_path / "tuned.gguf")
    passes: list[int] = []
    theirs.register_forward_hook(lambda *_: passes.append(1))
    for prompt in PROMPTS[:3]:
        given = {"input_ids": torch.tensor([tokenizer(prompt)["input_ids"]]), "max_new_tokens": GREEDY}
        wanted = theirs.generate(**given, do_sample=False)
        passes.clear()
        assert torch.equal(theirs.generate(**given, do_sample=False, custom_generate=statewise.hf.draft), wanted)
        assert len(passes) < 0.8 * (wanted.shape[1] - given["input_ids"].shape[1])
        found = server.handle_completions({"prompt": prompt, "max_tokens": GREEDY, "temperature": 0})
        assert found["choices"][0]["text"] == tokenizer.decode(
            wanted[0, given["input_ids"].shape[1] :], skip_special_tokens=True
        )


def test_the_example_from_trl_to_llama_cpp_runs(tmp_path, capsys):
    for package in ("transformers", "trl", "datasets"):
        pytest.importorskip(package, reason=f"needs pip install {package}")
    assert run_code(example("trl_to_llama_cpp"), "trl_to_llama_cpp.py", {"__name__": "example"})["main"](tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    plain, drafted = map(int, re.match(r"(\d+) passes without drafts, (\d+) with; .* the same texts$", last).groups())
    assert drafted < 0.6 * plain
    assert (tmp_path / "tuned.gguf").is_file()
