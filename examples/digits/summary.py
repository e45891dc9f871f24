"""Compare the two studies of `digits.py`; the test images are used here, once, and nowhere else."""

from digits import Network, load_data

import phyla


def main() -> None:
    """Print the comparison and write the report."""
    test = load_data()["test"]
    print(f"\n{'study':<16}{'validation nll':>16}{'validation acc':>16}{'test acc':>10}{'steps':>9}")
    for name in ("digits", "digits-random"):
        results = phyla.load_study(name)
        best = results.best
        assert best is not None
        network = Network.load(best.checkpoint.path / "network.npz")
        _, accuracy = network.evaluate(test, best.params["activation"])
        steps = sum(member.spent_steps for member in results.members())
        validation = best.metrics["validation/accuracy"]
        print(f"{name:<16}{best.fitness:>16.4f}{validation:>16.4f}{accuracy:>10.4f}{steps:>9}")
    results = phyla.load_study("digits")
    print("\nThe winner's hyperparameters along the way:")
    print(results.schedule())
    report = results.write_report(results.places.home / "digits-report.html")
    print(f"\nBest checkpoint: {results.best.checkpoint.path if results.best else None}")
    print(f"Report: {report.resolve()}")


if __name__ == "__main__":
    main()
