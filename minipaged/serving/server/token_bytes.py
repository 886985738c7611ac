"""The bytes behind a token. One character may need several tokens: only their bytes, put together, say which it is."""

from __future__ import annotations

import re
from functools import lru_cache

from minipaged.model import Tokenizer


@lru_cache(maxsize=4096)
def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """What a token stands for, also where that is no whole character."""
    core = tokenizer.core
    written = core.id_to_token(token_id)
    if written is not None and token_id not in core.get_added_tokens_decoder():
        if type(core.decoder).__name__ == "ByteLevel" and all(sign in BYTE_OF for sign in written):
            return bytes(BYTE_OF[sign] for sign in written)
        if found := re.fullmatch(r"<0x([0-9A-F]{2})>", written):  # the single bytes of SentencePiece
            return bytes.fromhex(found[1])
    return tokenizer.decode([token_id], skip_special_tokens=False).encode()


def _byte_level_alphabet() -> dict[str, int]:
    """{sign: byte} of byte-level BPE, GPT-2's table: printable bytes are themselves, the others follow after 255."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_OF = _byte_level_alphabet()
