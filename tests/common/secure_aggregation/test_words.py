"""Packed words: against Python's integers bit by bit, at every width, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.errors import BadPayload
from semisilo.common.secure_aggregation.words import pack, packed_bytes, unpack, word_dtype
from tests.each_of import each_of


def plainly_packed(words: list[int], bits: int) -> bytes:
    """One long integer, word i shifted by i * bits."""
    whole = sum((word % 2**bits) << (i * bits) for i, word in enumerate(words))
    return whole.to_bytes((len(words) * bits + 7) // 8, "little")


@settings(max_examples=150)
@given(bits=st.integers(16, 32), words=st.lists(st.integers(0, 2**32 - 1), max_size=150))
def test_words_come_back_and_bytes_are_those_of_one_long_integer(bits: int, words: list[int]) -> None:
    array = np.array(words, dtype=np.uint32)
    packed = pack(array, bits)
    assert packed.tobytes() == plainly_packed(words, bits)
    assert len(packed) == packed_bytes(len(words), bits)
    assert unpack(packed.tobytes(), bits=bits, count=len(words)).tolist() == [word % 2**bits for word in words]


@each_of("bits", range(16, 33))
@each_of("count", [2**15 - 1, 2**15, 100_003])
def test_more_words_than_a_block_come_back(bits: int, count: int) -> None:
    words = np.random.default_rng(bits).integers(0, 2**32, size=count, dtype=np.uint32)
    packed = pack(words, bits)
    assert len(packed) == packed_bytes(count, bits)
    assert (unpack(packed, bits=bits, count=count) == words & np.uint32(2**bits - 1)).all()
    middle = count // 2 // 64 * 64
    assert pack(words[middle:], bits).tobytes() == packed.tobytes()[middle * bits // 8:]


def test_a_vector_of_hand() -> None:
    """0xabc12 and 0x34def of 20 bits, lowest first: bytes 12 bc, then f (low of the second) above a, then de 34."""
    assert pack(np.array([0xabc12, 0x34def], dtype=np.uint32), 20).tobytes().hex() == "12bcfade34"


def test_words_may_lie_anywhere_in_memory() -> None:
    words = np.arange(4001, dtype=np.uint32)[1::2]
    data = b"x" + pack(words, 20).tobytes()
    assert (unpack(memoryview(data)[1:], bits=20, count=len(words)) == words).all()


def test_sixteen_bits_of_words_are_two_bytes_and_all_wider_ones_four() -> None:
    assert [word_dtype(bits).itemsize for bits in (16, 17, 24, 32)] == [2, 4, 4, 4]


@each_of(("data", "said"), [(b"\0" * 4, "3 words of 20 bits take 8 bytes, found 4"),
                            (b"\0" * 9, "found 9"), (b"\0" * 7 + b"\x10", "set after the last word")])
def test_bytes_that_are_not_the_words_announced_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(BadPayload, match=said):
        unpack(data, bits=20, count=3)


@each_of("bits", [0, 15, 33])
def test_other_widths_are_our_own_mistake(bits: int) -> None:
    for call in (lambda: pack(np.zeros(1, dtype=np.uint32), bits), lambda: unpack(b"", bits=bits, count=0),
                 lambda: packed_bytes(1, bits), lambda: word_dtype(bits)):
        with pytest.raises(ValueError, match="16 to 32 bits"):
            call()


def test_neither_torch_nor_cryptography_is_imported() -> None:
    code = ("import sys; from semisilo.common.secure_aggregation import fixed_point, words; "
            "sys.exit(' '.join({'torch', 'cryptography', 'grpc'} & set(sys.modules)) or None)")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
