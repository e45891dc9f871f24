"""The stateless decision maker: load, decide, commit, one transaction each."""

from phyla.controller.configuration import check_extension, differences, from_config, to_config
from phyla.controller.controller import Controller

__all__ = ["Controller", "check_extension", "differences", "from_config", "to_config"]
