# SPDX-License-Identifier: Apache-2.0
"""What a language model sees of its sequence."""

from __future__ import annotations

import enum


class LanguageModelType(enum.StrEnum):
  """Which other tokens of its segment a token attends to."""

  # Earlier ones.
  CAUSAL = 'causal'
  # Earlier ones, and within the prefix all of the prefix.
  PREFIX = 'prefix'
  # All.
  BIDIRECTIONAL = 'bidirectional'
