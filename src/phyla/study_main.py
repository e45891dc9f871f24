"""Stands for `__main__` in processes that work on studies, and in those that training starts from there."""

from typing import Any

from phyla import study_modules

if __name__ == "__mp_main__":
    study_modules.begin_child()


def __getattr__(name: str) -> Any:
    return study_modules.main_attribute(name)
