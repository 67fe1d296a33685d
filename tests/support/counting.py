"""A storage that counts the calls it gets and passes them on to another storage."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage import Storage


class CountingStorage:
    """Passes every call on; `asked` counts them by verb and directory (for listings by the path itself)."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self._root = root
        self.asked: Counter[tuple[str, str]] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        return self._counted(name, found) if callable(found) else found

    def _counted(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            if arguments and isinstance(arguments[0], str):
                path = arguments[0].removeprefix(f"{self._root}/")
                directory = path if verb in {"names", "list"} else path.rpartition("/")[0]
                self.asked[verb, directory] += 1
            return call(*arguments, **named)

        return counted
