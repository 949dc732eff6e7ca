# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Text summaries of a model."""

from __future__ import annotations

from pax.summaries import model_text, writer
from praxis import base_layer


class Texts(writer.NoopWriter):
  def __init__(self):
    self.found = {}

  def text(self, step, tag, text, split='train'):
    assert (step, split) == (0, 'train')
    self.found[tag] = text


def test_variables_and_sizes():
  weight = base_layer.WeightHParams(shape=[1000, 3], repeat_prefix=[2])
  average = base_layer.WeightHParams(shape=[])
  variables = {
    base_layer.PARAMS: {'lm': {'w': weight}},
    base_layer.NON_TRAINABLE: {'mean': average},
  }
  out = Texts()
  model_text.write_description(out, variables, 4096)
  assert out.found['Total Num Params'] == '6 000'
  assert out.found['Global batch size'] == '4 096'
  lines = out.found['Model'].splitlines()
  assert '| params/lm/w | 2x1000x3 | 6 000 |' in lines
  assert '| non_trainable/mean |  | 1 |' in lines


def test_where_variables_come_from(tmp_path):
  out = Texts()
  model_text.write_provenance(out, str(tmp_path))
  assert not out.found
  lines = ['step: 1', 'mdl_vars.params.w: 2', 'opt_states_0.m: 3']
  (tmp_path / model_text.PROVENANCE_FILE).write_text('\n'.join(lines))
  model_text.write_provenance(out, str(tmp_path))
  assert out.found == {
    'Model vars provenance': 'mdl_vars.params.w: 2',
    'Opt states provenance': 'opt_states_0.m: 3',
  }
