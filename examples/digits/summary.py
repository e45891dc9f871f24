"""Compare the two studies of `digits.py`; the test images are used here, once, and nowhere else."""

import phyla
from digits import CHANGES, Network, images_of


def main() -> None:
    """Print the comparison and write the report."""
    heads = "".join(f"{how:>10}" for how in CHANGES)
    print(f"\n{'study':<16}{'nll':>8}{'steps':>8}   test accuracy:{heads}")
    for name in ("digits", "digits-random"):
        results = phyla.load_study(name)
        best = results.best
        assert best is not None
        network = Network.load(best.checkpoint.path / "network.npz")
        steps = sum(member.progress for member in results.members())
        accuracy = [
            network.evaluate(images_of("test", how, seed=1), best.params["activation"])[1] for how in CHANGES
        ]
        cells = "".join(f"{value:>10.3f}" for value in accuracy)
        print(f"{name:<16}{best.fitness:>8.4f}{steps:>8}   {'':14}{cells}")
    results = phyla.load_study("digits")
    print("\nThe winner's hyperparameters along the way:")
    print(results.schedule())
    report = results.write_report(results.places.home / "digits-report.html")
    print(f"\nBest checkpoint: {results.best.checkpoint.path if results.best else None}")
    print(f"Report: {report.resolve()}")


if __name__ == "__main__":
    main()
