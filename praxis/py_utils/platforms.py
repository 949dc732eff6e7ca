# SPDX-License-Identifier: Apache-2.0
"""For which kind of devices a computation is traced."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import jax

_TARGET: contextvars.ContextVar[str | None] = contextvars.ContextVar(
  'target_platform', default=None
)


def target_platform() -> str:
  """The platform, as `cpu`, `gpu` or `tpu`, that a traced function will run on.

  It is that of this process, but for a step that is compiled ahead of time for
  devices which are elsewhere.
  """
  return _TARGET.get() or jax.default_backend()


@contextlib.contextmanager
def tracing_for(platform: str) -> Iterator[None]:
  """Makes `target_platform` answer `platform` meanwhile, in this thread."""
  token = _TARGET.set(platform)
  try:
    yield
  finally:
    _TARGET.reset(token)
