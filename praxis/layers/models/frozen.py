# SPDX-License-Identifier: Apache-2.0
"""Networks that do not learn, in the training of others."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from praxis import base_layer
from praxis.layers import low_rank_adaptation


@contextlib.contextmanager
def context(*, applies_reference: bool = False) -> Iterator[None]:
  """Context in which networks are applied as in evaluation.

  They have no dropout, and leave variables that training updates unchanged.

  Args:
    applies_reference: whether the low-rank updates of a network are those of
      its reference.
  """
  hparams = base_layer.cur_jax_context().hparams
  in_evaluation = base_layer.JaxContext.new_context(
    hparams=dataclasses.replace(hparams, do_eval=True)
  )
  with in_evaluation, low_rank_adaptation.reference(applies_reference):
    yield
