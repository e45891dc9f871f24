"""The adapters of frameworks, by their examples: killed, stopped, and with hyperparameters that change."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forked
import framework_study
import phyla
from effort import rarely
from facts import check_facts, raises
from framework_study import KILLED, STOPPED
from phyla.errors import ConfigurationError, StudyFailed
from phyla.records import JobState
from phyla.study import Results, load_study

pytestmark = pytest.mark.xdist_group("frameworks")
"""They share what each example left, and imports that take seconds."""

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
NAMES = ("digits_pytorch", "digits_lightning", "text_huggingface", "digits_jax")


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs an example's study undisturbed, and disturbed; once, and returns their results."""

    @cache
    def run(example: str) -> tuple[Results, Results]:
        folder = tmp_path_factory.mktemp(example)
        done = forked.run(
            [framework_study.__file__, EXAMPLES / f"{example}.py", folder],
            frameworks=True,
            env={**os.environ, **forked.SMALL_MODELS},
            timeout=200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        name = example.replace("_", "-")
        return load_study(name, home=folder / "undisturbed"), load_study(name, home=folder / "disturbed")

    return run


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is in nested containers, arrays as the hash of their bytes."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, f"{name}/{key}")
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{name}/{index}")
    elif hasattr(tree, "__array__"):
        array = np.asarray(tree)
        yield name, (str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest())
    else:
        yield name, repr(tree)


def states(checkpoint: Path) -> dict[str, Any]:
    """Return all that a checkpoint holds of weights, optimizers, steps and random number generators."""
    import torch

    found: dict[str, Any] = {}
    for file in sorted(checkpoint.rglob("*")):
        if file.suffix in (".pt", ".pth", ".ckpt"):
            found[file.name] = torch.load(file, weights_only=False)
        elif file.suffix == ".safetensors":
            found[file.name] = np.frombuffer(file.read_bytes(), dtype=np.uint8)
    if (checkpoint / "state").is_dir():
        import orbax.checkpoint as ocp

        with ocp.StandardCheckpointer() as checkpointer:
            found["state"] = checkpointer.restore(checkpoint / "state")
    assert found, checkpoint
    if "state.pt" in found:
        # The example seeds PyTorch's generator alone.
        found["state.pt"]["phyla.random"] = found["state.pt"]["phyla.random"]["torch"]
    return found


def outcome(results: Results) -> dict[tuple[int, int], Any]:
    """Return what each trial came to, to the bit."""
    path = Path(str(results.places.checkpoints(results.name)))
    names = {row.id: (row.member, row.generation) for row in results.trials()}
    return {
        names[row.id]: (
            row.params,
            row.fitness,
            names.get(row.parent or 0),
            dict(leaves(states(path / row.checkpoint))),
        )
        for row in results.trials()
        if row.state is JobState.COMPLETED and row.checkpoint is not None
    }


@pytest.mark.parametrize("example", NAMES)
def test_a_study_that_was_killed_and_stopped_ends_as_if_nothing_had_happened(homes: Any, example: str) -> None:
    undisturbed, disturbed = homes(example)
    rows = {(row.member, row.generation): row for row in disturbed.trials()}
    assert {row.state for row in rows.values()} == {JobState.COMPLETED}
    assert [name for name, row in rows.items() if row.token > 1] == sorted([STOPPED, KILLED])
    stopped = rows[STOPPED]
    assert stopped.failures == 0
    assert stopped.progress_step is not None, "nothing was saved when it was stopped"
    assert stopped.start_step < stopped.progress_step < stopped.end_step

    expected, found = outcome(undisturbed), outcome(disturbed)
    assert expected.keys() == found.keys() == rows.keys()
    assert found == expected


def rate(example: str, checkpoint: Path) -> float:
    """Return the base learning rate in the optimizer that a checkpoint holds."""
    match example, states(checkpoint):
        case "digits_pytorch", {"state.pt": state}:
            return float(state["optimizer"]["param_groups"][0]["initial_lr"])
        case "digits_lightning", {"lightning.ckpt": state}:
            return float(state["optimizer_states"][0]["param_groups"][0]["lr"])
        case "text_huggingface", {"optimizer.pt": state}:
            return float(state["param_groups"][0]["initial_lr"])
        case _, {"state": state}:
            return float(state["opt_state"]["hyperparams"]["learning_rate"])
    raise AssertionError(example)


@pytest.mark.parametrize("example", NAMES)
def test_each_trial_trains_with_its_own_rate_and_not_its_parents(homes: Any, example: str) -> None:
    results = homes(example)[0]
    path = Path(str(results.places.checkpoints(results.name)))
    rows = {row.id: row for row in results.trials()}
    for row in rows.values():
        assert rate(example, path / row.checkpoint) == pytest.approx(row.params["lr"], rel=1e-6)
    changed = [row for row in rows.values() if row.parent and rows[row.parent].params["lr"] != row.params["lr"]]
    assert changed


@pytest.mark.parametrize("example", NAMES)
def test_what_the_framework_logs_is_reported(homes: Any, example: str) -> None:
    results = homes(example)[0]
    logged = {"text_huggingface": "loss"}.get(example, "train/loss")
    for row in results.trials():
        assert logged in row.metrics


# What an adapter refuses


def refused(train: Callable[[phyla.Trial], object], home: Path) -> str:
    """Return why a study that cannot train stopped itself."""
    study = phyla.Study(
        "refused",
        {"lr": phyla.Float(0.1, 0.2)},
        phyla.Minimize("loss"),
        phyla.PBT(population_size=2, steps_per_trial=4, total_steps=8),
        train,
        home=home,
    )
    with pytest.raises(StudyFailed) as failed:
        study.run()
    return str(failed.value)


def fit(trial: phyla.Trial, *more: Any, **options: Any) -> None:
    """Train with Lightning, and more callbacks."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel

    from phyla.integrations.lightning import PhylaCallback

    callback = PhylaCallback(trial)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    Trainer(callbacks=[callback, *more], default_root_dir=callback.root_dir, **quiet, **options).fit(
        BoringModel(), ckpt_path=callback.ckpt_path
    )


lightning_warnings = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
    "ignore:The `srun` command is available:UserWarning",
    "ignore:The '(train|val)_dataloader' does not have many workers",
)


@lightning_warnings
def test_lightning_that_would_end_before_the_trial_is_refused(tmp_path: Path) -> None:
    from lightning.pytorch import Callback, Trainer

    class EndsEarly(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
            trainer.should_stop = trainer.global_step == 3

    said = refused(lambda trial: fit(trial, EndsEarly(), max_steps=8), tmp_path)
    check_facts(said, "global_step=3", "global_step=4", "max_steps=")
    check_facts(said, "total_steps", "EarlyStopping")


@lightning_warnings
def test_lightning_that_would_end_before_the_strategy_is_refused_in_the_first_trial(tmp_path: Path) -> None:
    said = refused(lambda trial: fit(trial, max_steps=6), tmp_path)  # the trial itself ends at 4
    assert "trial 1 of member 0 failed with" in said
    check_facts(said, "max_steps=6", "8")


@lightning_warnings
def test_lightning_whose_schedule_would_not_end_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phyla.integrations.steps._warned", set())
    refused(lambda trial: fit(trial, max_steps=100), tmp_path)  # BoringModel logs no loss
    (said,) = [text for text in caplog.messages if "max_steps" in text]
    check_facts(said, "max_steps=100", "total_steps=8")


@lightning_warnings
@pytest.mark.parametrize("least", ["min_epochs", "min_steps"])
def test_lightning_that_would_train_on_after_the_trial_is_refused(least: str, tmp_path: Path) -> None:
    said = refused(lambda trial: fit(trial, max_steps=8, **{least: 6}), tmp_path)
    assert f"{least}=6" in said
    assert "trains on after the end of the trial; leave them out" in said


@lightning_warnings
def test_lightning_without_max_steps_would_forget_where_a_loader_was_and_is_refused(tmp_path: Path) -> None:
    said = refused(lambda trial: fit(trial, max_epochs=2), tmp_path)
    check_facts(said, "Trainer(max_steps=...)", "total_steps")


@lightning_warnings
@pytest.mark.parametrize("name", ["StochasticWeightAveraging", "Freezing"])
def test_a_callback_of_lightning_that_sets_rates_itself_is_refused(name: str, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import BaseFinetuning, StochasticWeightAveraging

    class Freezing(BaseFinetuning):
        """Keeps the rates of the parent."""

        def freeze_before_training(self, pl_module: Any) -> None:
            """Freeze nothing."""

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            """Unfreeze nothing."""

    def train(trial: phyla.Trial) -> None:
        one = Freezing() if name == "Freezing" else StochasticWeightAveraging(swa_lrs=0.1)
        fit(trial, one, max_steps=8, max_epochs=2)

    check_facts(refused(train, tmp_path), name)


@lightning_warnings
def test_lightning_that_would_requeue_its_own_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.pytorch.plugins.environments import SLURMEnvironment

    for name in ("NTASKS", "JOB_ID", "NNODES", "NTASKS_PER_NODE"):
        monkeypatch.setenv(f"SLURM_{name}", "1")
    for name in ("PROCID", "LOCALID", "NODEID"):
        monkeypatch.setenv(f"SLURM_{name}", "0")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    assert SLURMEnvironment.detect()
    said = refused(lambda trial: fit(trial, max_steps=8), tmp_path)
    assert "Lightning would requeue this Slurm job itself, while phyla gives its trial to another worker" in said
    assert "Trainer(plugins=[LightningEnvironment()])" in said


@pytest.fixture
def sft(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Trains with a trainer of TRL, on a model and a tokenizer that are made here."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import torch
    from datasets import Dataset, disable_progress_bars
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar
    from trl import SFTConfig, SFTTrainer

    from phyla.integrations.transformers import PhylaCallback

    disable_progress_bars()
    disable_progress_bar()
    words = Tokenizer(models.WordLevel({chr(code): code for code in range(128)}, unk_token="?"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="\n", pad_token="\0", unk_token="?")
    codes = list(Path(__file__).read_bytes()[:1600])
    data = Dataset.from_dict({"input_ids": [codes[start : start + 16] for start in range(0, 1600, 16)]})

    def train(trial: phyla.Trial, **options: Any) -> None:
        torch.manual_seed(trial.seed)
        callback = PhylaCallback(trial)
        defaults = {
            "output_dir": callback.output_dir,
            "max_steps": 8,
            "learning_rate": trial.params["lr"],
            "weight_decay": trial.params["lr"] / 2,
            "seed": trial.seed,
            "eval_strategy": "epoch",
            "use_cpu": True,
            "bf16": False,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            "max_length": 16,
            "logging_steps": 1,
        }
        sizes = {"vocab_size": 128, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 1}
        config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=10, pad_token_id=0, tie_word_embeddings=False)
        trainer = SFTTrainer(
            GPT2LMHeadModel(config),
            SFTConfig(**{**defaults, **options}),
            train_dataset=data,
            eval_dataset=data.select(range(8)),
            processing_class=tokenizer,
            callbacks=[callback],
        )
        trainer.train(resume_from_checkpoint=callback.resume_from)

    return train


trl_warnings = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")


@trl_warnings
def test_a_trainer_of_trl_trains_each_trial_with_its_own_hyperparameters(
    sft: Callable[..., None], tmp_path: Path
) -> None:
    study = phyla.Study(
        "trl",
        {"lr": phyla.Float(1e-4, 1e-1, log=True)},
        phyla.Minimize("eval_loss"),
        phyla.PBT(population_size=2, steps_per_trial=4, total_steps=8, quorum=1.0, exploit=phyla.Truncation(0.5)),
        sft,
        home=tmp_path,
        retention=phyla.Retention(every_steps=1),
    )
    results = study.run()
    rows = {row.id: row for row in results.trials()}
    assert len(rows) == 4
    assert [row for row in rows.values() if row.parent and rows[row.parent].params != row.params]
    for row in rows.values():
        assert row.checkpoint is not None
        state = states(Path(str(results.places.checkpoints("trl"))) / row.checkpoint)["optimizer.pt"]
        lr: Any = row.params["lr"]
        groups = [(group["initial_lr"], group["weight_decay"]) for group in state["param_groups"]]
        assert groups == pytest.approx([(lr, lr / 2), (lr, 0.0)])
        # It decays over the study, not over each trial.
        assert state["param_groups"][0]["lr"] == pytest.approx(lr * (8 - row.end_step) / 8)
        assert "entropy" in row.metrics


@trl_warnings
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_steps": 6}, "TrainingArguments(...) max_steps=6 8"),
        ({"output_dir": "elsewhere"}, "TrainingArguments(output_dir= elsewhere callback.output_dir"),
        ({"save_only_model": True}, "TrainingArguments(save_only_model=True)"),
    ],
)
def test_arguments_of_a_trainer_that_cannot_work_are_refused(
    sft: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    check_facts(refused(lambda trial: sft(trial, **options), tmp_path), *why.split())


def test_an_optimizer_of_ones_own_that_a_trainer_would_load_twice_is_refused(tmp_path: Path) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    from phyla.integrations.transformers import PhylaCallback

    def train(trial: phyla.Trial) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"])
        callback = PhylaCallback(trial, optimizer)
        arguments = TrainingArguments(callback.output_dir, max_steps=8, auto_find_batch_size=True, use_cpu=True)
        Trainer(model, arguments, None, [{}], callbacks=[callback], optimizers=(optimizer, None)).train()

    assert "TrainingArguments(auto_find_batch_size=True): with a smaller batch" in refused(train, tmp_path)


def test_a_trainer_that_ends_before_the_trial_is_refused(tmp_path: Path) -> None:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from phyla.integrations.transformers import PhylaCallback

    class Line(torch.nn.Linear):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
            return {"loss": ((super().forward(x) - labels) ** 2).mean(), "logits": x}

    class Early(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = True

    def train(trial: phyla.Trial) -> None:
        callback = PhylaCallback(trial)
        arguments = TrainingArguments(callback.output_dir, max_steps=8, use_cpu=True, disable_tqdm=True)
        data = [{"x": torch.tensor([1.0]), "labels": torch.tensor([2.0])}] * 8
        Trainer(Line(1, 1), arguments, None, data, callbacks=[callback, Early()]).train()

    said = refused(train, tmp_path)
    check_facts(said, "global_step=1", "global_step=4", "max_steps=")


def test_children_of_one_parent_draw_random_numbers_of_their_own(tmp_path: Path) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    from phyla.integrations.transformers import PhylaCallback

    drawn: dict[int, list[float]] = {}
    current = 0

    class Noise(torch.nn.Linear):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
            if self.training:
                drawn[current].append(torch.rand(()).item())
            return {"loss": ((super().forward(x) - labels) ** 2).mean(), "logits": x}

    def train(trial: phyla.Trial) -> None:
        nonlocal current
        current = trial.id
        drawn[current] = []
        callback = PhylaCallback(trial)
        told = {"max_steps": 6, "eval_strategy": "epoch", "use_cpu": True, "disable_tqdm": True}
        arguments = TrainingArguments(callback.output_dir, learning_rate=trial.params["lr"], **told)
        data = [{"x": torch.tensor([1.0]), "labels": torch.tensor([2.0])}] * 32
        trainer = Trainer(Noise(1, 1), arguments, None, data, data[:1], callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.resume_from)

    results = phyla.Study(
        "noise",
        {"lr": phyla.Float(0.1, 0.2)},
        phyla.Minimize("eval_loss"),
        phyla.PBT(population_size=2, steps_per_trial=3, total_steps=6, quorum=1.0, exploit=phyla.Truncation(0.5)),
        train,
        home=tmp_path,
    ).run()
    first, second = [row for row in results.trials() if row.parent]
    assert first.parent == second.parent
    assert not {*drawn[first.id]} & {*drawn[second.id]}


# Orbax


def test_what_orbax_saves_in_the_background_is_there_before_phyla_commits(tmp_path: Path) -> None:
    from phyla.integrations.jax import OrbaxCheckpoint

    strategy = phyla.PBT(population_size=1, steps_per_trial=4, total_steps=12)
    study = phyla.Study("orbax", {"lr": phyla.Float(0.1, 0.2)}, phyla.Minimize("loss"), strategy, home=tmp_path)
    state = {"weights": np.arange(10_000_000, dtype=np.float32)}
    trial = study.ask()
    assert trial is not None
    with OrbaxCheckpoint(trial) as checkpoint:
        assert checkpoint.load(state) is state
        assert checkpoint.save(state)
    assert [entry.name for entry in trial.checkpoint_dir.iterdir()] == ["state"], "it is still being written"
    study.tell(trial, metrics={"loss": 0.0})

    trial = study.ask()
    assert trial is not None
    with OrbaxCheckpoint(trial) as checkpoint:
        assert np.array_equal(
            checkpoint.load({"weights": np.zeros(10_000_000, np.float32)})["weights"], state["weights"]
        )
    (trial.checkpoint_dir / "other.npy").write_bytes(b"x")
    study.tell(trial, metrics={"loss": 0.0})

    trial = study.ask()
    assert trial is not None
    with OrbaxCheckpoint(trial) as checkpoint, raises(ConfigurationError, "other.npy"):
        checkpoint.load(state)


@pytest.mark.parametrize("given", [2, rarely(1), rarely(0)])
def test_a_trainer_with_ones_own_or_another_schedule_trains_each_trial_with_its_own_rate(
    given: int, tmp_path: Path
) -> None:
    import torch
    from torch.optim.lr_scheduler import ExponentialLR
    from transformers import Trainer, TrainingArguments

    from phyla.integrations.transformers import PhylaCallback

    class Line(torch.nn.Linear):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
            return {"loss": ((super().forward(x) - labels) ** 2).mean(), "logits": x}

    data = [{"x": torch.tensor([1.0]), "labels": torch.tensor([2.0])}] * 8
    reducing: dict[str, Any] = {
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "threshold": 10.0},  # at each evaluation
    }

    def train(trial: phyla.Trial) -> None:
        model = Line(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"])
        own: list[Any] = [optimizer] * (given > 0) + [ExponentialLR(optimizer, 0.5) for _ in range(given - 1)]
        callback = PhylaCallback(trial, *own)
        arguments = TrainingArguments(
            output_dir=callback.output_dir,
            max_steps=8,
            eval_strategy="epoch",
            use_cpu=True,
            disable_tqdm=True,
            **({} if given else {**reducing, "learning_rate": trial.params["lr"]}),
        )
        optimizers: Any = (*own, None, None)[:2]
        trainer = Trainer(model, arguments, None, data, data[:1], callbacks=[callback], optimizers=optimizers)
        trainer.train(resume_from_checkpoint=callback.resume_from)

    results = phyla.Study(
        "own",
        {"lr": phyla.Float(1e-4, 1e-1, log=True)},
        phyla.Minimize("eval_loss"),
        phyla.PBT(population_size=2, steps_per_trial=4, total_steps=8, quorum=1.0, exploit=phyla.Truncation(0.5)),
        train,
        home=tmp_path,
        retention=phyla.Retention(every_steps=1),
    ).run()
    rows = {row.id: row for row in results.trials()}
    assert [row for row in rows.values() if row.parent and rows[row.parent].params != row.params]
    for row in rows.values():
        assert row.checkpoint is not None
        state = states(Path(str(results.places.checkpoints("own"))) / row.checkpoint)["optimizer.pt"]
        group = state["param_groups"][0]
        assert row.end_step is not None
        factor = 1 - row.end_step / 8 if given == 1 else 0.5**row.end_step
        lr: Any = row.params["lr"]
        assert (group["initial_lr"], group["lr"]) == pytest.approx((lr, lr * factor))
