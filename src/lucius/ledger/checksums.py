"""Checksums of rows, so that damage on a disk is found when a row is read and never served as data.

In: where a row stands, and what is in it. Out: a number, as text. The sum covers the table, the
partition and the key as well as the body: a row that damage moved to another key is found, too. It finds
damage, not forgery: a process that may write to the store may also write a sum.
"""

from functools import lru_cache
from zlib import crc32

NUMBER_DIGITS_MAX = 20
DAMAGED = "its checksum does not match"


def row_sum(table: str, partition: str, key: str, stamp: str, body: bytes) -> str:
    """`stamp`: what else a store keeps with the row and relies on, such as its version."""
    place = f"{table}\0{partition}\0{key}\0{stamp}".encode()
    return f"{crc32(body, crc32(place)):08x}"


@lru_cache(maxsize=1_024)
def table_sum(table: str) -> int:
    """What the sums of all rows of a table begin with."""
    return crc32(f"{table}\0".encode())


def partition_sum(table: str, partition: str) -> int:
    """What the sums of all rows of a partition begin with: a commit mostly writes several of one."""
    return crc32(partition.encode(), table_sum(table))


def sealed(number: int, partition: int, key: str, body: bytes) -> str:
    """An ETag that is a number and the checksum of the row it stands for, also a number. `partition`: its
    sum."""
    return f"{number}-{crc32(body, crc32(key.encode(), partition) ^ number)}"


def is_sound(etag: str, partition: int, key: str, body: bytes) -> bool:
    """Whether a row is what was written. A bare number is an ETag of a time when rows had no checksum."""
    digits, dash, seal = etag.partition("-")
    if not (digits.isdecimal() and digits.isascii() and len(digits) <= NUMBER_DIGITS_MAX):
        return False
    if not dash:
        return True
    number = int(digits)
    same_number = digits[0] != "0" or digits == "0"
    return same_number and seal == str(crc32(body, crc32(key.encode(), partition) ^ number))
