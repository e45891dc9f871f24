"""The bytes of checkpoints: staged in private, committed at once, never written to again.

This package moves bytes. It decides nothing, and it knows no store: which checkpoints exist for a
study is the store's word, not the directory's.
"""

from phyla.checkpoints.disk import full
from phyla.checkpoints.importing import import_checkpoint, look_at_source
from phyla.checkpoints.local import LocalCheckpoints
from phyla.checkpoints.manifest import MANIFEST_NAME, Manifest, ManifestFile
from phyla.checkpoints.ownership import Owner, attempt_name, claim_digest, import_name, parse_name
from phyla.checkpoints.remote import Checkpoints, RemoteCheckpoints, RemotePlace, is_there, local_copy, place_of
