"""The files of checkpoints: staged privately, committed atomically, then immutable.

This package only moves files. It is independent of the store, which alone decides which checkpoints a study has.
"""

from phyla.checkpoints.disk import full
from phyla.checkpoints.importing import import_checkpoint, look_at_source
from phyla.checkpoints.local import LocalCheckpoints
from phyla.checkpoints.manifest import MANIFEST_NAME, Manifest, ManifestFile
from phyla.checkpoints.ownership import Owner, attempt_name, claim_digest, import_name, parse_name
from phyla.checkpoints.remote import Checkpoints, RemoteCheckpoints, RemotePlace, is_there, local_copy, place_of
