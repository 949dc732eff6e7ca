# SPDX-License-Identifier: Apache-2.0
"""JAX's coordination service, with its errors as calls of a function.

When the service finds a process dead, or process 0 ends, JAX logs a stack trace
and aborts, with no public way to do anything else; its private client takes a
callback (`missed_heartbeat_callback`). In jaxlib 0.10 the conversion of the
callback's argument throws `std::bad_cast` on a thread of C++, which calls the
terminate handler: that handler is replaced too. Without such a client JAX
aborts as before. The only other module that uses private parts of
jax.distributed is `pax.coordination_service`.

Gloo, the collectives of CPUs, also throws on a thread of its own if one device
goes on to the next collective because the peer of another is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
from absl import logging

# Called with (coordinator address, index, number of processes).
JoinFunction = Callable[[str, int, int], None]

_CLIENT = 'get_distributed_runtime_client'
_CALLBACK = 'missed_heartbeat_callback'
_TerminateHandler = ctypes.CFUNCTYPE(None)


def initialize(
  before_connect: JoinFunction,
  on_error: Callable[[str], None],
  await_verdict: Callable[[], None],
  **kwargs: Any,
) -> None:
  """Calls `jax.distributed.initialize`.

  Args:
    before_connect: Called when the place of this process is known, before it
      waits for the others.
    on_error: Called, from any thread, with JAX's error if a process is lost. It
      may end the process.
    await_verdict: Called, from any thread, before an exception of Gloo aborts
      the process. It ends the process if another one is lost.
    **kwargs: Arguments of `jax.distributed.initialize`.
  """
  is_replaced = False

  def on_client(address: str, index: int, num_processes: int) -> None:
    nonlocal is_replaced
    is_replaced = True
    before_connect(address, index, num_processes)

  with _client_options(on_client, on_error, await_verdict):
    try:
      jax.distributed.initialize(**kwargs)
    except RuntimeError as e:
      if 'bad_cast' in str(e):
        on_error('')
      raise
  if not is_replaced:
    logging.warning(
      'jax %s creates its coordination client in an unknown way: the loss of a'
      ' process is noticed by JAX only, within a minute',
      jax.__version__,
    )


@contextlib.contextmanager
def _client_options(
  before_connect: JoinFunction,
  on_error: Callable[[str], None],
  await_verdict: Callable[[], None],
) -> Iterator[None]:
  """While entered, JAX's client is created with the callbacks."""
  try:
    from jax._src import distributed
    from jax._src.lib import _jax

    create_client = getattr(_jax, _CLIENT)
  except (ImportError, AttributeError):
    yield
    return

  def create(address: str, index: int, *args: Any, **options: Any) -> Any:
    if _CALLBACK in (create_client.__doc__ or ''):
      options[_CALLBACK] = lambda *status: on_error(' '.join(map(str, status)))
      _handle_terminate(on_error, await_verdict)
    before_connect(address, index, distributed.global_state.num_processes)
    return create_client(address, index, *args, **options)

  setattr(_jax, _CLIENT, create)
  try:
    yield
  finally:
    setattr(_jax, _CLIENT, create_client)


@functools.cache
def _handle_terminate(
  on_error: Callable[[str], None], await_verdict: Callable[[], None]
) -> None:
  """Calls a function where C++ would abort because of an exception.

  Args:
    on_error: For std::bad_cast.
    await_verdict: For exceptions of Gloo.
  """
  try:
    library = ctypes.CDLL('libstdc++.so.6')
    set_terminate = library._ZSt13set_terminatePFvvE
    exception_type = library.__cxa_current_exception_type
  except (OSError, AttributeError):
    return
  set_terminate.restype = ctypes.c_void_p
  set_terminate.argtypes = [ctypes.c_void_p]
  exception_type.restype = ctypes.c_void_p

  def on_terminate() -> None:
    # A std::type_info: the virtual table, then the mangled name.
    info = exception_type()
    if info:
      name = ctypes.cast(info, ctypes.POINTER(ctypes.c_char_p))[1]
      if name == b'St8bad_cast':
        on_error('')
      elif name.startswith(b'N4gloo'):
        await_verdict()
    if previous:
      _TerminateHandler(previous)()
    os.abort()

  handler = _TerminateHandler(on_terminate)
  # C++ may call it until the very end of the process.
  ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))
  previous = set_terminate(ctypes.cast(handler, ctypes.c_void_p))
