"""A client of the S3 server of the tests, which takes long to make."""

from functools import cache
from typing import Any

import boto3


@cache
def client() -> Any:
    """Return the client of this process; the variables of the fixture `s3_bucket` are set by then."""
    return boto3.client("s3")
