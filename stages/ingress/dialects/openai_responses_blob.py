"""`encrypted_content` of a reasoning item: its text, packed, so that a client can send back what it cannot show.

It is an encoding and keeps nothing secret. A blob that is not ours, or not whole, is none.
"""

import base64
import binascii
import zlib

PREFIX = "trnrt1."
MAX_UNPACKED_BYTES = 16 * 2**20


def pack(text: str) -> str:
    """Return a text as a blob."""
    return PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()


def unpack(blob: str) -> str | None:
    """Return a blob's text, or None for one that is foreign, broken or larger than any reasoning can be."""
    if not blob.startswith(PREFIX):
        return None
    try:
        packed = base64.b64decode(blob[len(PREFIX) :].encode(), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, MAX_UNPACKED_BYTES)
        return text.decode() if unpacking.eof else None
    except (binascii.Error, zlib.error, ValueError):
        return None
