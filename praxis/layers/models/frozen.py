# SPDX-License-Identifier: Apache-2.0
"""Networks that do not learn, in the training of others."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from praxis import base_layer
from praxis.layers import low_rank_adaptation


@contextlib.contextmanager
def low_rank_reference() -> Iterator[None]:
  """Context in which a network is the reference of its low-rank updates.

  It is applied as in evaluation; see `context`.
  """
  with context(), low_rank_adaptation.reference():
    yield


def context() -> base_layer.JaxContext:
  """Returns a context to enter, in which networks are applied as in evaluation.

  They have no dropout, and leave variables that training updates unchanged.
  """
  hparams = base_layer.cur_jax_context().hparams
  return base_layer.JaxContext.new_context(
    hparams=dataclasses.replace(hparams, do_eval=True)
  )
