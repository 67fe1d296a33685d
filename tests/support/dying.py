"""A program that is killed before or after one of its durable steps, in this process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, step: int, verbs: tuple[str, ...]) -> Iterator[Callable[[], bool]]:
    """Within the block, raise `KeyboardInterrupt` at step `step`. Each call of `verbs` has two steps, before it and after it.

    Yields a function that tells, also after the block, whether it was raised.
    """
    left = step

    def stops(name: str) -> Callable[..., object]:
        does = getattr(LocalStorage, name)

        def call(self: LocalStorage, *arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
            answer = does(self, *arguments, **options)
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
            return answer

        return call

    with monkeypatch.context() as patch:
        for name in verbs:
            patch.setattr(LocalStorage, name, stops(name))
        yield lambda: left < 0
