# SPDX-License-Identifier: Apache-2.0
"""Constraints that end samples early."""

from __future__ import annotations

import abc

from jaxtyping import Array, Bool

from praxis import base_hyperparams
from praxis.nested_map import NestedMap


class BaseSampleTerminationConstraint(
  base_hyperparams.FiddleBaseParameterizable, metaclass=abc.ABCMeta
):
  """Decides after each step which samples end.

  It applies to batches that have enforce_sample_constraints.
  """

  @abc.abstractmethod
  def __call__(
    self,
    enforce_sample_constraints: Array | None,
    decode_loop_state: NestedMap,
  ) -> Bool[Array, ' R']:
    """Returns the mask of finished rows, including those finished before.

    Args:
      enforce_sample_constraints: the field of the batch.
      decode_loop_state: the state of the loop; see `sampling`.
    """
