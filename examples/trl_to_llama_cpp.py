"""A small Llama tuned by TRL with next-latent prediction writes the same texts in transformers, there with drafts, and
in llama.cpp.

    pip install trl xllamacpp gguf         # xllamacpp holds llama.cpp
    python examples/trl_to_llama_cpp.py [FOLDER]

Half a minute of CPU time. Leaves FOLDER/tuned, for transformers, and FOLDER/tuned.gguf. docs/own-training-loop.md.
"""

import random
import sys
import tempfile
from pathlib import Path

try:
    import datasets
    import statewise.hf
    import tokenizers
    import torch
    import transformers
    import trl
    import xllamacpp
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}. This example needs: pip install trl xllamacpp gguf") from None

PROMPTS = ["Anna has a red", "Ben has a blue cup", "Then Carl"]


class BeliefTrainer(trl.SFTTrainer):
    """Reads each batch once."""

    compute_loss = transformers.Trainer.compute_loss


def stories(number: int) -> list[str]:
    """Short texts whose end follows from their beginning."""
    draw = random.Random(0)
    made = []
    for _ in range(number):
        (giver, taker), thing = draw.sample(["Anna", "Ben", "Carl", "Dora"], 2), draw.choice(["ball", "cup", "hat"])
        thing = f"{draw.choice(['red', 'blue'])} {thing}"
        made.append(f"{giver} has a {thing}. {giver} gives it to {taker}. Then {taker} has the {thing}.")
    return made


def tune(folder: Path, steps: int = 150) -> None:
    """Trains with TRL and saves the model, its loss and its tokenizer in `folder`."""
    texts = stories(400)
    bpe = tokenizers.ByteLevelBPETokenizer()  # splits as GPT-2's, which a GGUF file can say
    bpe.train_from_iterator(texts, vocab_size=320, show_progress=False, special_tokens=["<end>"])
    folder.mkdir(parents=True, exist_ok=True)
    bpe.save(str(folder / "tokenizer.json"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<end>", pad_token="<end>"
    )
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        **sizes, vocab_size=len(tokenizer), max_position_embeddings=64, bos_token_id=None, eos_token_id=0
    )
    model = transformers.LlamaForCausalLM(config)
    compute = statewise.hf.loss_for(model, "next_latent", horizon=4, logits=False)
    arguments = trl.SFTConfig(
        str(folder),
        max_steps=steps,
        learning_rate=3e-3,
        per_device_train_batch_size=16,
        max_length=48,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    data = datasets.Dataset.from_dict({"text": texts})
    trainer = BeliefTrainer(model, arguments, train_dataset=data, processing_class=tokenizer)
    trainer.compute_loss_func = compute
    trainer.train()
    trainer.save_model()
    tokenizer.save_pretrained(folder)


def in_transformers(folder: Path, drafts: int, new: int) -> tuple[list[str], int]:
    """The greedy texts after PROMPTS, and how many passes of the model they took."""
    model, tokenizer = statewise.hf.with_loss(folder), transformers.AutoTokenizer.from_pretrained(folder)
    passes: list[int] = []
    model.register_forward_hook(lambda *_: passes.append(1))
    drafted = {"custom_generate": statewise.hf.draft, "drafts": drafts} if drafts else {}
    texts = []
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        tokens = model.generate(**inputs, max_new_tokens=new, do_sample=False, **drafted)
        texts.append(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts, len(passes)


def in_llama_cpp(path: Path, new: int) -> list[str]:
    """The greedy texts after PROMPTS of a GGUF file in llama.cpp, on the CPU."""
    options = xllamacpp.CommonParams()
    options.model.path, options.n_ctx, options.n_parallel, options.n_gpu_layers = str(path), 64, 1, 0
    options.verbosity, options.kv_unified = 0, True
    server = xllamacpp.Server(options)
    asked = [{"prompt": prompt, "max_tokens": new, "temperature": 0} for prompt in PROMPTS]
    return [server.handle_completions(one)["choices"][0]["text"] for one in asked]


def main(place: Path, steps: int = 150, new: int = 24) -> bool:
    """Returns whether all three ways write the same."""
    tuned, file = place / "tuned", place / "tuned.gguf"
    tune(tuned, steps)
    statewise.export(tuned, file, "gguf", overwrite=True)
    plain, passes = in_transformers(tuned, 0, new)
    drafted, fewer = in_transformers(tuned, 4, new)
    there = in_llama_cpp(file, new)
    for prompt, text in zip(PROMPTS, plain):
        print(f"{prompt}|{text}")
    equal = plain == drafted == there
    print(f"{passes} passes without drafts, {fewer} with; in llama.cpp {'the same texts' if equal else there}")
    return equal


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
