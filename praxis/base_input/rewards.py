# SPDX-License-Identifier: Apache-2.0
"""Rewards that an input gives responses to its prompts."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

# Name of a reward, and prefix of the names of its terms.
REWARD = 'reward'
# Name of the standard deviation of the rewards of a prompt, no name of a term.
REWARD_STD = f'{REWARD}_std'


@runtime_checkable
class RewardedPrompts(Protocol):
  """An input whose prompts have rewards for their responses."""

  def rewards(
    self, prompt_indices: Int[np.ndarray, ' N'], responses: list[str]
  ) -> dict[str, Float[np.ndarray, ' N']]:
    """Returns the reward of each response, `REWARD`, and its terms by name."""
