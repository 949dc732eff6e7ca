# SPDX-License-Identifier: Apache-2.0
"""A TFDS builder of LAMBADA: `tfds.load('MyLambada')` after this import.

The experiments read what it has prepared, or the files in LAMBADA_PATH
(`pax.inputs.seqio.pile_lambada_boolq_tasks`).

References: https://arxiv.org/abs/1606.06031
"""

from __future__ import annotations

from pax.contrib.gpu.scripts_gpu import json_lines
from pax.inputs.seqio import pile_lambada_boolq_tasks

_URL = (
  'https://raw.githubusercontent.com/cybertronai/bflm/master/lambada_test.jsonl'
)

json_parser = json_lines.json_parser


class LambadaReader(json_lines.JsonLinesReader):
  """Yields passages (`text`) and their last words (`target`)."""

  def _example(self, text: str) -> dict[str, str]:
    features = pile_lambada_boolq_tasks.last_word(text)
    return {'text': features['inputs'], 'target': features['targets']}


# LambadaConfig and MyLambada.
globals().update(
  json_lines.define_builder(
    json_lines.DataSet(
      builder_name='MyLambada',
      config_name='LambadaConfig',
      description='Passages of novels whose last word is to be predicted.',
      homepage='https://zenodo.org/record/2630551',
      urls={'test': _URL},
      reader=LambadaReader,
      features={'text': 'inputs', 'target': 'targets'},
    ),
    __name__,
  )
)
