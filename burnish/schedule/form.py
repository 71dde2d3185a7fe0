"""Form: one variant in which a kernel can run, as a name and a few numbers. The printers list the available forms.

Examples, as they are printed:

    library                                               the vendor's kernel
    fused                                                 the vendor's, with a convolution's epilogue in its call
    roomy                                                 ours, with few channels padded first
    ours splits=4                                         our product, split-K over four splits
    tile YBLOCK=64 XBLOCK=32 KBLOCK=128 STAGES=4 warps=4  our kernel, with these block sizes
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[a-z]+")
_NUMBER = re.compile(r"([A-Za-z]+)=([0-9]{1,9})")


@dataclass(frozen=True)
class Form:
    name: str
    numbers: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, name: str) -> int:
        return dict(self.numbers)[name]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.numbers)])

    @classmethod
    def parse(cls, text: str) -> Form:
        """Parse a printed form. Raises ValueError for any other text."""
        name, *numbers = text.split()
        found = [_NUMBER.fullmatch(number) for number in numbers]
        if not _NAME.fullmatch(name) or not all(found):
            raise ValueError(text)
        return cls(name, tuple((m[1], int(m[2])) for m in found if m))


LIBRARY = Form("library")


def ours(splits: int = 1) -> Form:
    return Form("ours", (("splits", splits),))
