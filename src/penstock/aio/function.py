"""The functions that users write, and the one form in which the operator calls them.

A user's function is an `AsyncFunction`, a plain `async def fn(row)` or `fn(row, call)`, or a plain `def` that returns
at once and completes the call later, from any thread. `Adapted` gives all of them one form: it is opened, called with
rows and their calls, and closed, on the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.aio.outcome import Misfit
from penstock.arguments import check_arguments, named, signature_of, whole
from penstock.errors import OptionError
from penstock.formats.pythonvalues import fields_of, is_model, names_of


class Context:
    """What `open` gets: the query and the task of this worker process."""

    def __init__(self, query: str = "", task: int = 0) -> None:
        self.query = query
        self.task = task


class Call:
    """One attempt of the call for one row: its identity and, in the callback style, its completion.

    `id` is the same for every attempt, including retries of the task, replays of the batch and calls after carry-over:
    give it to the service as an idempotency key. `attempt` counts from 1. `deadline` is the loop's time at which the
    row times out; it is None if the row cannot time out, and in `timed_out`.
    """

    __slots__ = ("_first", "_is_completed", "_late", "_loop", "_waiter", "attempt", "deadline", "id")

    def __init__(
        self,
        id_: str,
        attempt: int,
        deadline: float | None,
        loop: asyncio.AbstractEventLoop,
        late: Callable[[], None],
    ) -> None:
        self.id = id_
        self.attempt = attempt
        self.deadline = deadline
        self._loop = loop
        self._late = late
        self._waiter: asyncio.Future[Any] | None = None
        self._is_completed = False
        self._first: tuple[Any, BaseException | None] | None = None

    @property
    def is_completed(self) -> bool:
        """Tell whether `collect` or `fail` was called."""
        return self._is_completed

    def remaining(self) -> float | None:
        """Return the seconds until the row times out; None if it cannot, and in `timed_out`."""
        return None if self.deadline is None else max(self.deadline - self._loop.time(), 0.0)

    def collect(self, outputs: Any) -> None:  # noqa: ANN401 - whatever the function's results are
        """Complete the call with one output or an iterable of them; from any thread. Only the first completion counts."""
        self._complete(outputs, None)

    def fail(self, error: BaseException) -> None:
        """Fail the attempt; from any thread. Only the first completion counts. If `error` is not an exception, it is wrapped in one."""
        self._complete(None, _raisable(error))

    def expect(self) -> asyncio.Future[Any]:
        """Return a future of the completion; called before the function is called."""
        self._waiter = self._loop.create_future()
        return self._waiter

    def ended_without(self) -> bool:
        """Tell whether the function, an `async def`, has ended without completing the call; a completion after that is late."""
        without = not self._is_completed  # read once: another thread may complete the call at any moment
        if without:
            self._first = None, None
        return without

    def said(self) -> tuple[Any, BaseException | None] | None:
        """Return what the call was completed with, None if it was not. On the loop; may miss a completion that is on its way there."""
        waiter = self._waiter
        if waiter is not None and waiter.done() and not waiter.cancelled():
            error = waiter.exception()
            return (None, error) if error is not None else (waiter.result(), None)
        return self._first if self._is_completed else None

    async def completion(self) -> Any:  # noqa: ANN401 - the function's results
        """Return what the call was completed with before anybody expected it, or raise it."""
        if self._first is None:
            return await self.expect()  # it is on its way to the loop
        outputs, error = self._first
        if error is not None:
            raise error
        return outputs

    def _complete(self, outputs: Any, error: BaseException | None) -> None:  # noqa: ANN401 - the function's results
        self._is_completed = True
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(self._take, outputs, error)

    def _take(self, outputs: Any, error: BaseException | None) -> None:  # noqa: ANN401 - the function's results
        waiter = self._waiter
        if waiter is None and self._first is None:
            self._first = outputs, error
        elif waiter is None or waiter.done():
            self._late()
        elif error is None:
            waiter.set_result(outputs)
        else:
            waiter.set_exception(error)


def _raisable(error: object) -> BaseException:
    """Return an exception that a future can have: any but those that end generators, and so coroutines. Wrap other values in one."""
    if isinstance(error, type) and issubclass(error, BaseException):
        error = error()
    if isinstance(error, BaseException) and not isinstance(error, (StopIteration, GeneratorExit)):
        return error
    if error is None:
        return RuntimeError("the call failed, and no reason was given")
    return RuntimeError(f"the call failed with {error!r}")


class AsyncFunction(ABC):
    """A function that lives for many batches: one instance for each worker process and query, which all its calls share.

    `open` is called before the first call and `close` after the last one, on the loop that all calls run on; `open` is
    the place to make a client and its connections. `invoke` returns one output (mapping, row, dataclass, pydantic
    model, or tuple in the order of the schema) or an iterable of outputs. An empty iterable emits nothing, None is an
    error. If `invoke` is a plain `def`, it returns at once and completes `call` later; its return value is then
    ignored, but an output or a coroutine is reported as a mistake. An `async def` may complete `call`, too: what comes
    first counts. `timed_out`, if it is defined, returns what is emitted for a row that timed out, or completes `call`
    with it.
    """

    async def open(self, ctx: Context) -> None:  # noqa: B027 - not every function needs one
        """Prepare; called once, in the worker process."""

    @abstractmethod
    def invoke(self, row: Any, call: Call) -> Any:  # noqa: ANN401 - rows and results are the user's
        """Make one call; `async def`, or `def` for the callback style. With `batch_size`: lists of rows and calls."""

    timed_out: Callable[[Any, Call], Any] | None = None

    async def close(self) -> None:  # noqa: B027 - not every function needs one
        """Release what `open` made; called once, after the last call has ended."""


class Adapted:
    """A user's function in the one form that the operator calls."""

    def __init__(self, fn: Any) -> None:  # noqa: ANN401 - a function or an AsyncFunction
        self.given = fn
        self.call = _callable_of(fn)
        self.is_async = _is(inspect.iscoroutinefunction, self.call)
        self.takes_call = isinstance(fn, AsyncFunction) or _wants_call(self.call)
        self.name = f"{_origin(fn).__module__}.{_name(fn)}"
        self.timed_out = fn.timed_out if isinstance(fn, AsyncFunction) else None
        self._check_kind()
        self._check_parameters()

    def _check_kind(self) -> None:
        """Refuse a function whose call would run nothing, or would block the loop: `OptionError`."""
        name = _name(self.given)
        if _is(inspect.isgeneratorfunction, self.call) or _is(inspect.isasyncgenfunction, self.call):
            msg = f"fn={name} is a generator: calling it runs nothing; return a list of outputs from an `async def` without yield"
            raise OptionError(msg)
        if not self.is_async and not self.takes_call:
            msg = f"fn={name} is a plain function of a row; make it `async def`, wrap it in penstock.in_threads, or take (row, call)"
            raise OptionError(msg)

    def _check_parameters(self) -> None:
        """Refuse a function that cannot be called with its arguments: `OptionError`."""
        name = _name(self.given)
        check_arguments(f"fn={name}", self.call, "row", *["call"] * self.takes_call)
        if isinstance(self.given, AsyncFunction):
            check_arguments(f"{name}.open", self.given.open, "ctx")
            check_arguments(f"{name}.close", self.given.close)
        if self.timed_out is not None:
            check_arguments(f"{name}.timed_out", self.timed_out, "row", "call")

    async def open(self, ctx: Context) -> None:
        """Open the user's function; its `open` may be a plain `def`."""
        if isinstance(self.given, AsyncFunction):
            opened: object = self.given.open(ctx)
            if inspect.isawaitable(opened):
                await opened

    async def close(self) -> None:
        """Close the user's function; its `close` may be a plain `def`."""
        if isinstance(self.given, AsyncFunction):
            closed: object = self.given.close()
            if inspect.isawaitable(closed):
                await closed


class _InThreads(AsyncFunction):
    """See `in_threads`."""

    def __init__(self, fn: Callable[..., Any], threads: int) -> None:
        self.__module__, self.__qualname__ = _origin(fn).__module__, _name(fn)  # ids are derived from these
        self._fn = fn
        self._threads = threads
        self._with_call = _wants_call(fn)
        self._pool: ThreadPoolExecutor | None = None

    async def open(self, ctx: Context) -> None:  # noqa: ARG002 - the function has no `open`
        """Make the threads."""
        self._pool = ThreadPoolExecutor(self._threads, "penstock-call")

    def _run(self, *arguments: Any) -> Any:  # noqa: ANN401 - rows and results are the user's
        try:
            result = self._fn(*arguments)
            return list(result) if isinstance(result, Iterator) else result  # run a generator here, not on the loop
        except (StopIteration, GeneratorExit) as error:
            raise _raisable(error) from error

    async def invoke(self, row: Any, call: Call) -> Any:  # noqa: ANN401 - rows and results are the user's
        """Run the function in a thread. A thread cannot be stopped: the slot stays taken until the thread ends."""
        assert self._pool is not None  # noqa: S101 - it was opened
        job = self._pool.submit(self._run, *((row, call) if self._with_call else (row,)))
        running = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not job.cancel():  # cancelled before a thread was free, so the service is not called in vain
                await asyncio.wait([running])
            raise

    async def close(self) -> None:
        """Let the threads end; do not wait for one that hangs."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the threads."""
        return self.__dict__ | {"_pool": None}


@named
def in_threads(fn: Callable[..., Any], *, threads: int = 100) -> AsyncFunction:
    """Return an asynchronous function that runs a blocking one, `fn(row)` or `fn(row, call)`, in `threads` threads.

    A call that times out keeps its thread, and its place in `capacity`, until it really ends.
    """
    threads = whole(threads, name="in_threads: threads", least=1, example=100)
    given: object = fn
    if not callable(given) or any(map(inspect.iscoroutinefunction, (fn, type(fn).__call__))):
        msg = f"in_threads: fn={fn!r}; expected a plain function of a row, which blocks: what is asynchronous needs no threads"
        raise OptionError(msg)
    return _InThreads(fn, threads)


def results_of(results: Any, rows: int) -> list[Any]:  # noqa: ANN401 - the user's
    """Return the results of `rows` rows, in their order; a `Misfit` for each row if the function did not return such results."""
    is_unordered = isinstance(results, (str, bytes, Mapping, AbstractSet))  # or no list of results at all
    if isinstance(results, Iterable) and not is_unordered:
        results = list(results)
    if isinstance(results, list) and len(results) == rows:
        return results
    returned = f"{len(results)} results" if isinstance(results, list) else f"a {type(results).__name__}"
    return [Misfit(f"the function returned {returned} for {rows} rows; expected a result for each, in order")] * rows


def outputs_of(result: Any, names: tuple[str, ...]) -> list[tuple[Any, ...]]:  # noqa: ANN401 - what the user returned
    """Return a result as a list of tuples in the order of `names`. `ValueError` or `TypeError` say what is wrong with it."""
    # In this order, because `isinstance` of Mapping is slow.
    if isinstance(result, (tuple, dict, Mapping)) or _has_keys(result):
        return [_output(result, names)]
    if not isinstance(result, list) and is_model(result):
        return [_output(result, names)]
    if result is None:
        msg = "the function returned None; return an output, or [] to emit nothing"
        raise TypeError(msg)
    # Collection, not Iterable: iterating a pydantic model yields its fields.
    if isinstance(result, (str, bytes)) or not isinstance(result, (Collection, Iterator)):
        msg = f"the function returned {_kind(result)}; expected a mapping, a row or a tuple, or an iterable of them"
        raise TypeError(msg)
    return [_output(output, names) for output in result]


def _output(output: Any, names: tuple[str, ...]) -> tuple[Any, ...]:  # noqa: ANN401 - what the user returned
    if isinstance(output, tuple):
        return output if type(output) is tuple and len(output) == len(names) else _of_tuple(output, names)
    columns = output if isinstance(output, (dict, Mapping)) else _as_mapping(output)
    if len(columns) == len(names):
        # A mapping that invents missing values (a `defaultdict`, a `Counter`) is asked which columns it has.
        try:
            if type(columns) is dict or all(name in columns for name in names):
                return tuple(map(columns.__getitem__, names))
        except KeyError:
            pass
    msg = f"an output has the columns {', '.join(map(str, columns)) or 'none'}; expected {', '.join(names)}"
    raise ValueError(msg)


def _of_tuple(output: tuple[Any, ...], names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the values in the order of `names`; a Row or named tuple is reordered if its own names are the same ones."""
    if len(output) != len(names):
        msg = f"an output has {len(output)} values; expected {len(names)}: {', '.join(names)}"
        raise ValueError(msg)
    own = names_of(output)
    return tuple(output[own.index(name)] for name in names) if sorted(own) == sorted(names) else tuple(output)


def _as_mapping(output: object) -> dict[Any, Any]:
    """Return as a mapping what `dict` accepts as a mapping, or a model; `TypeError` for anything else."""
    fields = fields_of(output) if is_model(output) else None
    if isinstance(fields, dict):
        return fields
    if _has_keys(output):
        return dict(output)  # type: ignore[call-overload, no-any-return]  # - it has the methods that `dict` calls
    msg = f"an output is {_kind(output)}; expected a mapping, a row or a tuple in the order of the schema"
    raise TypeError(msg)


def _has_keys(value: object) -> bool:
    """Tell whether `dict` accepts this as a mapping, though its class is not one: a record of a database driver."""
    return hasattr(value, "keys") and hasattr(value, "__getitem__") and not isinstance(value, type)


def _kind(value: object) -> str:
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine; await it"
    return "None" if value is None else f"a {type(value).__name__}"


def _origin(fn: Any) -> Any:  # noqa: ANN401 - the user's
    """Return the function inside a partial."""
    while isinstance(fn, partial):
        fn = fn.func
    return fn


def _name(fn: object) -> str:
    fn = _origin(fn)
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def _callable_of(fn: Any) -> Callable[..., Any]:  # noqa: ANN401 - the user's
    """Return the function that is called with a row; `OptionError` if there is none."""
    if isinstance(fn, type):
        msg = f"fn={fn.__name__}: expected an instance, {fn.__name__}()"
        raise OptionError(msg)
    call: object = fn.invoke if isinstance(fn, AsyncFunction) else fn
    if not callable(call):
        msg = f"fn={fn!r}; expected an AsyncFunction or a function of a row: async def fn(row)"
        raise OptionError(msg)
    return call


def _is(of_kind: Callable[[object], bool], call: Callable[..., Any]) -> bool:
    """Tell whether a function, or an object's `__call__`, is of this kind."""
    return of_kind(call) or of_kind(type(call).__call__)


def _wants_call(fn: Callable[..., Any]) -> bool:
    """Tell whether a function takes its call besides the row: as a second parameter without a default, or by that name."""
    signature = signature_of(fn)
    if signature is None:
        return False
    second = _second(signature)
    return second is not None and (second.default is second.empty or second.name in {"call", "ctx"})


def _second(signature: inspect.Signature) -> inspect.Parameter | None:
    """Return the parameter that takes a second positional argument, which may be `*rest`; or None."""
    by_keyword = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}
    positional = [parameter for parameter in signature.parameters.values() if parameter.kind not in by_keyword]
    rest = [parameter for parameter in positional if parameter.kind is parameter.VAR_POSITIONAL]
    return next(iter(positional[1:2] or rest), None)
