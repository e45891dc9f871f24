"""What a command reports is read while it is being written, and a line that makes no sense loses no other."""

from pathlib import Path
from typing import Any

import pytest
from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event

from facts import raises
from phyla.errors import MetricsUnreadable
from phyla.worker.commands.readings import LINE_BYTES, EventFileReading, Lines, Readings


class Files:
    def __init__(self, folder: Path, patterns: dict[str, str] | None = None) -> None:
        self.metrics, self.output = folder / "metrics.jsonl", folder / "stdout.txt"
        self.errors = folder / "stderr.txt"
        for file in (self.metrics, self.output, self.errors):
            file.touch()
        outputs = (self.output, self.errors)
        events = EventFileReading(folder, {})
        self.readings = Readings(self.metrics, outputs, patterns or {}, events, needed=["loss", "val/loss"])

    def add(self, text: str | bytes, *, last: bool = False) -> list[tuple[Any, ...]]:
        return self._read(self.metrics, text, last=last)

    def print(self, text: str | bytes, *, last: bool = False) -> list[tuple[Any, ...]]:
        return self._read(self.output, text, last=last)

    def log(self, text: str) -> list[tuple[Any, ...]]:
        return self._read(self.errors, text, last=False)

    def _read(self, path: Path, text: str | bytes, *, last: bool) -> list[tuple[Any, ...]]:
        with path.open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        return [(one.step, dict(one.metrics), one.saved) for one in self.readings.read(last=last)]


def test_lines_count_once_they_are_complete(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert files.add('{"step": 1, "loss": 0.5}\n\n{"step": 2, "lo') == [(1, {"loss": 0.5}, False)]
    assert files.add("") == []
    assert files.add('ss": NaN, "a": {"b": 1}}\r\n')[0][1]["a/b"] == 1
    assert files.add('{"step": 3.0, "saved": true, "loss": 1}\n') == [(3, {"loss": 1}, True)]
    assert files.add('{"loss": 2}', last=True) == [(None, {"loss": 2}, False)]
    assert files.add("", last=True) == []


def test_fields_that_are_no_numbers_are_left_out_unless_the_objective_needs_them(tmp_path: Path) -> None:
    files = Files(tmp_path)
    line = '{"step": 1, "time": "2026-12-01T08:00", "of": "val", "lr": [0.1], "best": null, "acc": "0.5", "val": '
    assert files.add(f'{line}{{"host": "n1", "loss": 0.3}}}}\n') == [(1, {"acc": "0.5", "val/loss": 0.3}, False)]
    assert files.add('{"step": 1, "epoch": {"name": "first"}}\n') == [(1, {}, False)]
    # Left out, the last number before it would count.
    assert files.add('{"loss": null, "val": {"loss": "?"}}\n') == [(None, {"loss": None, "val/loss": "?"}, False)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("loss=3", "loss=3"),
        ("[1]", "not a JSON object"),
        ('{"step": 1.5, "loss": 1}', "1.5 step"),
        ('{"step": "1", "loss": 1}', "1 step"),
        ('{"step": 1e999, "loss": 1}', "inf step"),
        ('{"saved": true}', '{"step" 25 true}'),
        ('{"step": 3, "saved": "yes"}', '{"step" 25 true}'),
        ("\0\1\2", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_line_that_makes_no_sense_is_named_and_loses_no_other(tmp_path: Path, line: str, words: str) -> None:
    files = Files(tmp_path)
    with raises(MetricsUnreadable, *words.split()) as caught:
        files.add(f'{{"step": 1, "loss": 1}}\n{line}\n{{"step": 2, "loss": 2}}\n')
    assert f"{files.metrics}, line 2" in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(tmp_path))
    assert files.add("") == [(2, {"loss": 2}, False)]


def test_half_a_line_at_the_end_is_an_error(tmp_path: Path) -> None:
    with raises(MetricsUnreadable, "metrics.jsonl", "line 1"):
        Files(tmp_path).add('{"step": 1, "lo', last=True)


def test_a_file_that_is_written_anew_or_deleted_is_an_error(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.add('{"step": 1, "loss": 1}\n')
    files.metrics.write_text("{}")
    with pytest.raises(MetricsUnreadable, match="became shorter: append"):
        files.add("")
    files.metrics.unlink()
    with pytest.raises(MetricsUnreadable, match="the command deleted"):
        next(files.readings.read())


def test_lines_without_end_fill_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5 * LINE_BYTES) + b"\nlast\n")
    (where, first), (_, last) = Lines(path).read()
    assert where == f"{path}, line 1"
    assert len(first) == LINE_BYTES
    assert last == b"last"


def test_regular_expressions_find_metrics_and_their_step(tmp_path: Path) -> None:
    files = Files(tmp_path, {"loss": r"loss[=:] *(\S+)", "step": r"step (\d+)", "acc": r"acc=(\d+)?"})
    assert files.print("step 3 loss=0.5 acc=7\nnothing \xff\nlo") == [(3, {"loss": 0.5, "acc": 7.0}, False)]
    assert files.print(b"ss: 1e-3\rstep 4\rloss=nan\n\xff\xfe\0")[0] == (3, {"loss": 0.001}, False)
    assert files.print("\nacc=\n loss=2", last=True) == [(4, {"loss": 2.0}, False)]
    with raises(MetricsUnreadable, "stdout.txt", "loss", "x"):
        files.print("\nloss=x\n")


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[31mstep: 3 \x1b[32mloss: 0.5\x1b[0m",
        "step: \x1b[1;36m3\x1b[0m loss: \x1b[38;5;10m0.5\x1b[K",
        "step: 3 loss: 0.5",
    ],
)
def test_the_colors_of_an_output_are_none_of_its_text(tmp_path: Path, line: str) -> None:
    # The patterns that `phyla init` drafts: a color may be before a name, and between it and its value.
    patterns = {"loss": r"(?<![\w/])loss\W+?(\d*\.?\d+)(?!\S)", "step": r"\bstep\W+?(\d+)"}
    assert Files(tmp_path, patterns).print(f"{line}\n") == [(3, {"loss": 0.5}, False)]


def test_scalars_of_tensorboard_are_read_while_they_are_written(tmp_path: Path) -> None:
    old = SummaryWriter(str(tmp_path / "runs/old"))
    old.add_scalar("eval/loss", 9.0, 0)
    old.close()
    events = EventFileReading(
        tmp_path, {"loss": ("runs/**/*tfevents*", "eval/loss"), "acc": ("runs/**/*tfevents*", "a")}
    )
    assert list(events.read(last=True)) == []
    with SummaryWriter(str(tmp_path / "runs/new")) as writer:
        writer.add_scalar("eval/loss", 0.5, 1)
        writer.add_scalar("other", 0.5, 1)
        writer.add_scalar("a", 0.25, 2)
    (file,) = (tmp_path / "runs/new").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    assert [(one.step, one.metrics) for one in events.read(last=True)] == [(1, {"loss": 0.5})]
    file.write_bytes(whole)
    assert [(one.step, one.metrics) for one in events.read(last=True)] == [(2, {"acc": 0.25})]
    assert list(events.read(last=True)) == []
    file.write_bytes(whole + b"\xff" * 100)
    with pytest.raises(MetricsUnreadable, match="is not an event file"):
        list(events.read(last=True))
    # It is said once.
    assert list(events.read(last=True)) == []


def test_scalars_that_are_stored_as_tensors_are_read(tmp_path: Path) -> None:
    from phyla.worker.commands.readings import _number

    event = Event()
    value = event.summary.value.add()
    value.tensor.dtype = 1
    value.tensor.tensor_content = b"\0\0\0\x3f"
    assert _number(value) == 0.5
    listed = event.summary.value.add()
    listed.tensor.dtype = 1
    listed.tensor.float_val.append(0.25)
    assert _number(listed) == 0.25


def test_what_is_logged_counts_until_it_is_printed(tmp_path: Path) -> None:
    files = Files(tmp_path, {"loss": r"loss=(\S+)", "step": r"step (\d+)", "acc": r"acc=(\S+)"})
    assert files.log("step 3 loss=0.5 f1=0.7\n") == [(3, {"loss": 0.5}, False)]
    assert files.log("step 4 loss=0.4 acc=0.6\n") == [(4, {"loss": 0.4, "acc": 0.6}, False)]
    # What is printed may come late, from a buffer.
    assert files.print("step 3 loss=0.9\n") == [(3, {"loss": 0.9}, False)]
    assert files.log("step 5 loss=0.3 acc=0.8\n") == [(5, {"acc": 0.8}, False)]


def test_scalars_with_one_tag_in_two_directories_are_refused(tmp_path: Path) -> None:
    glob = "logs/**/*tfevents*"
    events = EventFileReading(tmp_path, {"loss": (glob, "epoch_loss"), "acc": (glob, "acc")})
    for name, value in {"train": 0.1, "validation": 0.9}.items():
        with SummaryWriter(str(tmp_path / "logs" / name)) as writer:
            writer.add_scalar("epoch_loss", value, 1)
    with SummaryWriter(str(tmp_path / "logs/train"), filename_suffix=".more") as writer:
        writer.add_scalar("epoch_loss", 0.2, 2)
    with raises(MetricsUnreadable, "epoch_loss", glob, "logs/train", "logs/validation"):
        list(events.read(last=True))
