# SPDX-License-Identifier: Apache-2.0
"""Prefetching of batches in a thread, with the state after each batch."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from praxis import base_input, py_utils

NestedMap = py_utils.NestedMap

_POLL_SECONDS = 0.1
# How long `close` waits for a source that reads.
_CLOSE_SECONDS = 1.0
# Minimum number of batches between two large states, and minimum ratio of the
# time between them to the time that one takes.
_LARGE_STATE_INTERVAL = 64
_LARGE_STATE_TIME_RATIO = 50


class StopMonitor(Protocol):
  """Ends waits for a batch if the job stops."""

  def raise_if_wait_ends(self) -> None:
    """Called several times a second during a wait; an exception ends it."""

  def raise_if_requested(self) -> None:
    """Called after each batch is read; an exception keeps it for later."""


class NoopStopMonitor:
  """Never ends a wait."""

  def raise_if_wait_ends(self) -> None:
    pass

  def raise_if_requested(self) -> None:
    pass


class Prefetcher:
  """Reads an input in a thread, a few batches ahead.

  Each queued batch carries the input state after it, so that `get_state`
  returns the state after the last consumed batch, not the last one read.
  """

  def __init__(
    self,
    source: base_input.BaseInput,
    depth: int = 2,
    transform: Callable[[NestedMap], Any] | None = None,
    stop_monitor: StopMonitor | None = None,
  ):
    """Starts the thread.

    Args:
      source: The input; only the thread may use it until `close`.
      depth: Maximum number of queued batches.
      transform: Applied to each batch in the thread, such as the transfer to
        the devices; None is the identity.
      stop_monitor: Ends waits by an exception, which `peek` and `get_next`
        raise; the next call waits for the same batch.

    Raises:
      ValueError: `depth` is not positive.
    """
    if depth < 1:
      raise ValueError(f'depth must be at least 1, got {depth}')
    # The input.
    self.source = source
    # Whether batches are those of `transform`, not of the input.
    self.is_transformed = transform is not None
    self._depth = depth
    self._transform = transform or (lambda batch: batch)
    self._stop_monitor = stop_monitor or NoopStopMonitor()
    self._positions = _Positions(source)
    self._state = self._positions.state()
    self._peeked: tuple[Any, base_input.State | None] | None = None
    self._start()

  def get_next(self) -> Any:
    """Returns the next transformed batch.

    Raises:
      StopIteration: the data has ended, with whichever of
        `base_input.end_of_data_errors`.
      Exception: reading or transforming failed in the thread.
    """
    if (item := self._peek_item()) is None:
      raise StopIteration
    self._peeked = None
    batch, self._state = item
    return batch

  # The name in BaseInput; the thread has padded the batches.
  get_next_padded = get_next

  def peek(self) -> Any | None:
    """Returns the next batch without consuming it; None at the end."""
    item = self._peek_item()
    return None if item is None else item[0]

  peek_padded = peek

  def get_state(self) -> base_input.State:
    """Returns the input state after the last consumed batch."""
    if self._state is None:
      return self.source.get_state()  # Raises NotImplementedError.
    return self._state

  def set_state(self, state: base_input.State) -> None:
    """Restores the state of the input and restarts the thread."""
    self.close(timeout_secs=None)
    self.source.set_state(state)
    self._positions = _Positions(self.source)
    self._state = state
    self._start()

  def reset(self) -> None:
    """Restarts at the first batch."""
    self.close(timeout_secs=None)
    self.source.reset()
    self._positions = _Positions(self.source)
    self._state = self._positions.state()
    self._start()

  def close(self, timeout_secs: float | None = _CLOSE_SECONDS) -> None:
    """Stops the thread and discards queued batches.

    A thread whose source does not return in time is abandoned; it ends after
    its batch. None waits without limit: until then nothing else may use the
    source.
    """
    self._stopped.set()
    self._thread.join(timeout_secs)
    self._peeked = None

  def __getattr__(self, name: str) -> Any:
    """Returns another attribute of the input, such as `batch_size`."""
    if name.startswith('_'):
      raise AttributeError(f'Prefetcher has no attribute {name!r}')
    return getattr(self.source, name)

  def __enter__(self) -> Prefetcher:
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()

  def _start(self) -> None:
    self._stopped = threading.Event()
    self._queue: queue.Queue[Any] = queue.Queue(self._depth)
    self._error: BaseException | None = None
    self._thread = threading.Thread(
      target=self._read, name=f'prefetch {self.source.name}', daemon=True
    )
    self._thread.start()

  def _peek_item(self) -> tuple[Any, base_input.State | None] | None:
    """Returns the next batch and the state after it; None at the end."""
    if self._peeked is None:
      try:
        self._peeked = self._take()
      except base_input.end_of_data_errors():
        return None
      self._stop_monitor.raise_if_requested()
    return self._peeked

  def _take(self) -> tuple[Any, base_input.State | None]:
    if self._error is None:
      item = self._next_item()
      if not isinstance(item, BaseException):
        return item
      self._error = item
    raise self._error

  def _next_item(self) -> Any:
    while True:
      try:
        return self._queue.get(timeout=_POLL_SECONDS)
      except queue.Empty:
        self._stop_monitor.raise_if_wait_ends()

  def _read(self) -> None:
    """Runs in the thread."""
    try:
      while not self._stopped.is_set():
        batch = self.source.get_next_padded()
        self._positions.advance()
        self._put((self._transform(batch), self._positions.state()))
    except BaseException as e:  # Any error must unblock the consumer.
      self._put(e)

  def _put(self, item: Any) -> None:
    while not self._stopped.is_set():
      try:
        return self._queue.put(item, timeout=_POLL_SECONDS)
      except queue.Full:
        continue


class _Positions:
  """The state of an input after each batch.

  A large state is taken at intervals; between them the state is the last one
  and the number of batches after it, which a restart reads and discards.
  """

  def __init__(self, source: base_input.BaseInput):
    self._source = source
    self._large_state: base_input.State | None = None
    self._num_batches = 0
    if source.has_large_state:
      self._take_state()

  def advance(self) -> None:
    """Counts a batch."""
    if self._large_state is None:
      return
    self._num_batches += 1
    is_due = time.monotonic() >= self._next_time
    if self._num_batches >= _LARGE_STATE_INTERVAL and is_due:
      self._take_state()

  def _take_state(self) -> None:
    start = time.monotonic()
    self._large_state, self._num_batches = self._source.get_state(), 0
    now = time.monotonic()
    self._next_time = now + (now - start) * _LARGE_STATE_TIME_RATIO

  def state(self) -> base_input.State | None:
    """Returns the state after the last batch, or None if there is none."""
    if self._large_state is None:
      return state_of(self._source)
    if not self._num_batches:
      return self._large_state
    return base_input.advance_state(self._large_state, self._num_batches)


def state_of(
  source: base_input.BaseInput | Prefetcher,
) -> base_input.State | None:
  """Returns the state of an input, or None if it has no state."""
  try:
    return source.get_state()
  except NotImplementedError:
    return None


def source_of(inp: base_input.BaseInput | Prefetcher) -> base_input.BaseInput:
  """Returns the input behind a Prefetcher, or the input itself."""
  return inp.source if isinstance(inp, Prefetcher) else inp
