import phyla


@phyla.eval_task
def size(evaluation):
    evaluation.record(bytes=len((evaluation.checkpoint.path / "weights").read_bytes()))


suite = phyla.Suite("small", [size])
