# SPDX-License-Identifier: Apache-2.0
"""An inference runner that writes the tokens and texts a model decodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from pax import base_inference_runner, train_states
from pax.files import tf_records
from pax.inputs.tokens import tokenizers
from pax.train_states import Variables
from praxis import base_layer, pax_fiddle, pytypes

NestedMap = pytypes.NestedMap


@dataclasses.dataclass(frozen=True)
class _Feature:
  """Shape and dtype of a feature; None is any length."""

  shape: tuple[int | None, ...]
  dtype: np.dtype


class GenerationRunner(base_inference_runner.BaseInferenceRunner):
  """Decodes as the model's `decoder_tpl`; a record for each example.

  A record has `prefix`, the prompt or the source; `decoded_ids`, the ids after
  it up to the end of sequence; and `decoded_substr`, their text. The model is a
  LanguageModel or a SequenceModel. Rows that only fill a batch are left out; of
  several samples the first is written.
  """

  # Maps ids to text.
  tokenizer: tokenizers.Tokenizer = pax_fiddle.instance_field(
    tokenizers.ByteTokenizer
  )

  def infer(
    self,
    train_state: train_states.TrainState,
    prng_key: jax.Array,
    var_weight_hparams: Variables[base_layer.WeightHParams],
    input_batch: NestedMap,
  ) -> NestedMap:
    """Returns the decoded outputs of a batch, as the model's `decode` does.

    Args:
      train_state: The restored state.
      prng_key: Key of the sampling of this batch.
      var_weight_hparams: Not used.
      input_batch: The prompts, or the sources.
    """
    del var_weight_hparams
    (_, outputs, *_), _ = self._model.apply(
      train_state.mdl_vars,
      input_batch,
      method='decode',
      mutable=[base_layer.DECODE_CACHE],
      rngs={base_layer.RANDOM: prng_key},
    )
    return outputs

  @property
  def output_schema(self) -> NestedMap:
    text = _Feature((), np.dtype(np.bytes_))
    return NestedMap(
      prefix=text,
      decoded_ids=_Feature((None,), np.dtype(np.int32)),
      decoded_substr=text,
    )

  def serialize_outputs(self, outputs: NestedMap) -> list[bytes]:
    _, examples, _ = self._model.process_decode_out(self, outputs)
    return [tf_records.example(_features(result)) for _, result in examples]

  def ids_to_strings(
    self, ids: np.ndarray, lengths: np.ndarray, key: str | None = None
  ) -> Sequence[str]:
    """Returns the text of the first `lengths` ids of each row.

    Args:
      ids: The ids [B, T].
      lengths: Their number [B].
      key: Ignored: sources and targets have one vocabulary.
    """
    del key
    return tokenizers.decode_rows(self.tokenizer, ids, lengths)


def _features(result: NestedMap) -> dict[str, object]:
  decoded_ids = result.get('decoded_ids')
  if decoded_ids is None:
    decoded_ids = result.ids[: result.decode_length]
  return {
    'prefix': _text(result.prefix),
    'decoded_ids': np.asarray(decoded_ids, np.int32),
    'decoded_substr': _text(result.decoded_substr),
  }


def _text(text: str) -> np.ndarray:
  # Arrays of strings end before the first NUL at their end; objects do not.
  return np.array([text.encode()], object)
