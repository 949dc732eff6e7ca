# SPDX-License-Identifier: Apache-2.0
"""An experiment whose batches come from generators of Lingvo."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

from pax import experiment_registry
from praxis import base_input, lingvo_lib, pax_fiddle
from tests.integration import experiments
from tests.pax import tiny

with warnings.catch_warnings():
  warnings.simplefilter('ignore')
  base_input_generator = lingvo_lib.import_lingvo('base_input_generator')

NUM_EVAL_ROWS = 21


def _rows(num: int, batch: int) -> Any:
  """Returns the rows of the first batches of CountedRows as a dataset."""
  rows = experiments.TinySpmd.BATCH_SIZE
  batches = [tiny.batch(rows, seed) for seed in range(1, -(-num // rows) + 1)]
  columns = jax.tree.map(lambda *x: np.concatenate(x)[:num], *batches)
  dataset = base_input.tf.data.Dataset.from_tensor_slices(dict(columns))
  return dataset.batch(batch)


RowsInput = base_input_generator.DefineTFDataInput('RowsInput', _rows)


class WeightedRows(base_input.LingvoEvalAdaptor):
  """Rows of padding weigh nothing."""

  def get_next(self):
    batch = super().get_next()
    batch.weights = batch.weights * batch.eval_sample_weights
    return batch


@experiment_registry.register
class TinyLingvo(experiments.TinySpmd):
  """The batches of TinySpmd, by Lingvo."""

  def datasets(self) -> list[Any]:
    rows = self.NUM_STEPS * self.BATCH_SIZE
    train = pax_fiddle.Config(
      base_input.LingvoInputAdaptor,
      input=self._generator(rows, self.BATCH_SIZE),
      is_training=True,
    )
    return [train, self._epoch('held_out', NUM_EVAL_ROWS)]

  def decode_datasets(self) -> list[Any]:
    return [self._epoch('prompts', 2 * self.BATCH_SIZE)]

  def _epoch(self, name: str, num_rows: int) -> Any:
    return pax_fiddle.Config(
      WeightedRows,
      name=name,
      input=self._generator(num_rows, 1),
      batch_size=self.BATCH_SIZE,
      cluster_do_eval=True,
      reset_for_eval=True,
    )

  def _generator(self, num_rows: int, batch_size: int) -> Any:
    params = RowsInput.Params()
    params.args.Set(num=num_rows, batch=batch_size)
    return params
