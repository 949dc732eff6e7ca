# SPDX-License-Identifier: Apache-2.0
"""A TFDS builder of the Pile: `tfds.load('ThePile')` after this import.

The experiments read what it has prepared, or the files in PILE_DIR
(`pax.inputs.seqio.pile_lambada_boolq_tasks`).

References: https://arxiv.org/abs/2101.00027
"""

from __future__ import annotations

from pax.contrib.gpu.scripts_gpu import json_lines

_URL = 'https://the-eye.eu/public/AI/pile'
_NUM_TRAIN_FILES = 30

json_parser = json_lines.json_parser


class PileReader(json_lines.JsonLinesReader):
  """Yields documents (`text`)."""

  def _example(self, text: str) -> dict[str, str]:
    return {'text': text}


# ThePileConfig and ThePile.
globals().update(
  json_lines.define_builder(
    json_lines.DataSet(
      builder_name='ThePile',
      config_name='ThePileConfig',
      description='Documents in English from 22 sources.',
      homepage='https://github.com/EleutherAI/The-Pile',
      urls={
        'train': [
          f'{_URL}/train/{i:02}.jsonl.zst' for i in range(_NUM_TRAIN_FILES)
        ],
        'validation': f'{_URL}/val.jsonl.zst',
        'test': f'{_URL}/test.jsonl.zst',
      },
      reader=PileReader,
      features={'text': 'text'},
      supervised_keys=('text', 'text'),
    ),
    __name__,
  )
)
