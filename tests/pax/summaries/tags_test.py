# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The names of what a step reports."""

from __future__ import annotations

import dataclasses
from typing import Any

from pax.summaries import tags


@dataclasses.dataclass
class Output:
  loss: Any
  weighted_scalars: Any
  summary_tensors: Any


def test_the_tags_of_a_step():
  output = Output(
    loss=1.0,
    weighted_scalars={'avg_xent': (2.0, 3.0)},
    summary_tensors={
      'lm/softmax/scale_scalar': 4.0,
      'lr_aggregate_scalar': 5.0,
      'lm/attention_image': 'no number',
    },
  )
  assert tags.step_scalars(output) == {
    'loss': 1.0,
    'Metrics/avg_xent': 2.0,
    'Metrics/avg_xent-weight': 3.0,
    'lm/softmax/scale_scalar': 4.0,
    'lr_scalar': 5.0,
  }


def test_another_prefix():
  assert tags.weighted_scalars({'a': (1, 2)}, prefix='eval/') == {
    'eval/a': 1,
    'eval/a-weight': 2,
  }


def test_media_are_no_scalars():
  output = Output(
    loss=1.0,
    weighted_scalars={},
    summary_tensors={'x_image': 'pixels', 'y_scalar': 2.0},
  )
  found = tags.step_summaries(output)
  assert list(found) == ['loss', 'y_scalar', 'x_image']
  assert found['x_image'].value == 'pixels'
