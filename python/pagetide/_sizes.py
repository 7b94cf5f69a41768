"""Sizes in bytes: numbers, or text such as "4G" and "1.5GiB"."""

from __future__ import annotations

from .errors import SizeError

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(value: int | str, what: str) -> int:
    """The bytes that `value` says; `what` it is for is named in the error."""
    if isinstance(value, str):
        text = value.strip().lower().removesuffix("ib").removesuffix("b")
        number, unit = (text[:-1], text[-1:]) if text[-1:] in "kmgt" else (text, "")
        try:
            scale = _UNITS[unit]
            bytes_ = int(float(number) * scale) if "." in number else int(number) * scale
        except (ValueError, OverflowError):
            raise SizeError(f"{what}={value!r}: expected bytes, such as 4294967296 or '4G'") from None
    else:
        try:
            bytes_ = value.__index__()
        except AttributeError:
            raise SizeError(
                f"{what}={value!r}: expected bytes, such as 4294967296 or '4G'"
            ) from None
    if not 0 < bytes_ < 1 << 62:
        raise SizeError(f"{what}={value!r}: expected from 1 to {(1 << 62) - 1} bytes")
    return bytes_
