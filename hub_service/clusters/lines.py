"""Where the lines of a stream end, and what becomes of one that does not.

Used by every cluster that reads what programs write, who may write anything: all of it without an
end, or nothing but ends.
"""

LONGEST_LINE_BYTES = 2**20
"""A longer line is told as several, so that nobody has to keep more of it."""


def cut(read: bytes) -> tuple[bytes, bytes]:
    r"""Return the whole lines of what was read, and the beginning of one that goes on.

    >>> cut(b"one\ntwo\nthr")
    (b'one\ntwo\n', b'thr')
    """
    end = read.rfind(b"\n") + 1
    lines, rest = read[:end], read[end:]
    while len(rest) >= LONGEST_LINE_BYTES:
        lines += rest[:LONGEST_LINE_BYTES] + b"\n"
        rest = rest[LONGEST_LINE_BYTES:]
    return lines, rest
