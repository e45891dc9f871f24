"""`phyla stop` and `phyla resume`."""

from typing import Any

from phyla.cli import options


def stop(study: options.StudyName, home: options.Home = None, storage: options.Storage = None) -> None:
    """Stop a study: running workers finish their trial and end."""
    from phyla.cli.words import command
    from phyla.study import maintain

    maintenance = maintain(study, home=home, storage=storage)
    maintenance.stop("stopped by a person")
    print(f"stopped {study}: its workers finish their trial and end")
    print(f"let it go on with: {command('resume', study, maintenance.places)}")


def resume(study: options.StudyName, home: options.Home = None, storage: options.Storage = None) -> None:
    """Let a stopped or failed study go on; start workers for it with `phyla run`."""
    from phyla.study import load_study, maintain

    resumed = maintain(study, home=home, storage=storage).resume()
    print(f"{study} may go on" if resumed else f"{study} is running already")
    config: Any = load_study(study, home=home, storage=storage).study().config
    file, _, _ = str(config.get("train") or "").rpartition(":")
    print(f"start workers for it with: phyla run {file if file.endswith('.py') else 'FILE.py'} --study {study}")
