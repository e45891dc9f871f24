"""A tiny GPT-2, made in code, that a Trainer of Hugging Face trains on the source of Python's standard library.

Run it with `phyla run examples/frameworks/text_huggingface.py --workers 2`.
"""

import argparse
import inspect
import logging as python_logging
import tarfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils.logging import disable_progress_bar

import phyla
from phyla.integrations.transformers import PhylaCallback

TOTAL = 100
LENGTH = 32
Example = dict[str, torch.Tensor]


def examples(module: object) -> list[Example]:
    """Return a module's source, one token per character, in pieces of `LENGTH`."""
    text = inspect.getsource(module).encode("ascii", errors="replace")  # type: ignore[arg-type]
    pieces = torch.tensor(list(text)).split(LENGTH)[:-1]
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def setup(worker: phyla.WorkerContext) -> dict[str, list[Example]]:
    torch.set_num_threads(1)
    disable_progress_bar()
    return {
        "train": examples(argparse) + examples(tarfile),
        "validation": examples(python_logging)[:256],
    }


def train(trial: phyla.Trial) -> None:
    torch.manual_seed(trial.seed)
    callback = PhylaCallback(trial)
    arguments = TrainingArguments(
        callback.output_dir,
        max_steps=TOTAL,
        learning_rate=trial.params["lr"],
        weight_decay=trial.params["weight_decay"],
        seed=trial.seed,
        eval_strategy="epoch",
        logging_steps=5,
        save_strategy="no",
        per_device_eval_batch_size=64,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        use_cpu=True,
    )
    config = GPT2Config(
        vocab_size=128, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    config.tie_word_embeddings = False
    trainer = Trainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=trial.worker["train"],
        eval_dataset=trial.worker["validation"],
        callbacks=[callback],
    )
    trainer.train(resume_from_checkpoint=callback.resume_from)


study = phyla.Study(
    name="text-huggingface",
    space=phyla.Space(lr=phyla.Float(1e-4, 1e-1, log=True), weight_decay=phyla.Float(1e-4, 1.0, log=True)),
    objective=phyla.Minimize("eval_loss"),
    strategy=phyla.PBT(population_size=4, steps_per_trial=25, total_steps=TOTAL),
    train=train,
    setup=setup,
)

if __name__ == "__main__":
    print(study.run(workers=2).best)
