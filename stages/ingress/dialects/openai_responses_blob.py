"""`encrypted_content` of a reasoning item: its text, packed, so that a client can send back what it cannot show.

It is an encoding and keeps nothing secret. A blob that is not ours, or not whole, is none.
"""

import base64
import binascii
import zlib

PREFIX = "trnrt1."
# Of all the blobs of one call together: what is packed well could be a thousand times its size.
MAX_UNPACKED_BYTES = 32 * 2**20


def pack(text: str) -> str:
    """Return a text as a blob."""
    return PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()


def unpack(blob: str, max_bytes: int = MAX_UNPACKED_BYTES) -> str | None:
    """Return a blob's text, or None for one that is foreign, broken or larger than max_bytes."""
    if not blob.startswith(PREFIX):
        return None
    try:
        packed = base64.b64decode(blob[len(PREFIX) :].encode(), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, max_bytes) if max_bytes > 0 else b""
        return text.decode() if unpacking.eof else None
    except (binascii.Error, zlib.error, ValueError):
        return None
