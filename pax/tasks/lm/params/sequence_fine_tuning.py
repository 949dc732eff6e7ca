# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of encoder-decoders of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence

from pax import tasks_lib
from pax.inputs import batch_specs
from pax.inputs.text import span_corruption, text_pairs
from pax.tasks.lm.params import huggingface_model
from praxis import base_input, base_layer, pax_fiddle
from praxis.decoding import hparams as decoding

Config = pax_fiddle.Config
TaskConfig = Config[tasks_lib.SingleTask]


class HuggingFaceSequenceModel(huggingface_model.FineTuning):
  """An encoder-decoder, trained on pairs of texts or on texts with spans."""

  # Paths, globs or folders. With OBJECTIVE 'pairs' they are JSON lines with the
  # fields SOURCE_FIELD and TARGET_FIELD. With 'span_corruption' they are texts
  # whose spans the model predicts; None is the Python standard library.
  TRAIN_FILES: str | Sequence[str] | None = None
  OBJECTIVE = 'span_corruption'
  SOURCE_FIELD = 'input'
  TARGET_FIELD = 'target'
  # Percentage of held-out pairs or texts.
  HELD_OUT_PERCENT = 2.0
  # Global batch sizes in rows, and tokens per row.
  BATCH_SIZE = 8
  EVAL_BATCH_SIZE = 32
  SOURCE_LEN = 512
  TARGET_LEN = 128
  # Whether to evaluate on held-out text during training.
  EVAL_ON_TEST = True
  # Files of pairs for --mode=decode, decode_once and infer, whose targets may
  # be absent; None decodes the held-out sources.
  PROMPTS_FILE: str | Sequence[str] | None = None
  # Only layers of decoders may be a scan over stacked weights.
  USE_REPEATED_LAYER = False

  def validate(self) -> None:
    """Checks the constants.

    Raises:
      ValueError: OBJECTIVE is unknown, layers are to be repeated, or see
        `huggingface_model.HuggingFaceModel.validate`.
    """
    super().validate()
    if self.USE_REPEATED_LAYER:
      raise ValueError(
        'USE_REPEATED_LAYER must be False for an encoder-decoder, got True:'
        ' all layers share a relative bias, which a scan over layers would not'
        ' share; leave it out'
      )
    huggingface_model.check_objective(
      self.OBJECTIVE, ('pairs', 'span_corruption')
    )
    if self.OBJECTIVE == 'pairs' and self.TRAIN_FILES is None:
      raise ValueError(
        'OBJECTIVE=pairs needs TRAIN_FILES, JSON lines with SOURCE_FIELD and'
        ' TARGET_FIELD, got None; set TRAIN_FILES'
      )
    if self.OBJECTIVE == 'span_corruption':
      sentinel = span_corruption.first_sentinel(self._tokenizer().Instantiate())
      size = self.model_config()['vocab_size']
      if sentinel >= size:
        raise ValueError(
          f'OBJECTIVE=span_corruption needs the id {sentinel} for the first'
          f' sentinel, got a vocab_size of {size}; use the tokenizer of a T5,'
          ' or set OBJECTIVE=pairs'
        )

  def task(self) -> TaskConfig:
    task_p = super().task()
    network_p = self._network(task_p)
    self._rematerialize(network_p.encoder_stacked_transformer_tpl)
    self._rematerialize(network_p.decoder_stacked_transformer_tpl)
    self._add_low_rank_updates(task_p)
    self._shard(task_p)
    return task_p

  def datasets(self) -> list[Config[base_input.BaseInput]]:
    return [
      self._input('train', self.BATCH_SIZE).set(is_training=True),
      self._held_out('held_out', self.EVAL_BATCH_SIZE),
    ]

  def decode_datasets(self) -> list[Config[base_input.BaseInput]]:
    if self.PROMPTS_FILE is None:
      return [self._held_out('prompts', self.DECODE_BATCH_SIZE)]
    return [
      self._pairs('prompts', self.DECODE_BATCH_SIZE).set(
        files=self.PROMPTS_FILE, held_out_percent=0.0, reset_for_eval=True
      )
    ]

  def _held_out(self, name: str, batch_size: int) -> Config:
    return self._input(name, batch_size).set(
      held_out=True, reset_for_eval=True, eval_loop_num_batches=None
    )

  def _input(self, name: str, batch_size: int) -> Config:
    if self.OBJECTIVE == 'pairs':
      return self._pairs(name, batch_size)
    input_p = Config(span_corruption.SpanCorruptionInput)
    return self._set_input(input_p, name, batch_size)

  def _pairs(self, name: str, batch_size: int) -> Config:
    input_p = Config(
      text_pairs.TextPairInput,
      source_field=self.SOURCE_FIELD,
      target_field=self.TARGET_FIELD,
    )
    return self._set_input(input_p, name, batch_size)

  def _set_input(self, input_p: Config, name: str, batch_size: int) -> Config:
    return input_p.set(
      name=name,
      files=self.TRAIN_FILES,
      tokenizer=self._tokenizer(),
      batch_size=batch_specs.rows_per_host(batch_size),
      source_len=self.SOURCE_LEN,
      target_len=self.TARGET_LEN,
      start_id=self._start_id(),
      held_out_percent=self.HELD_OUT_PERCENT,
    )

  def _decoder(self) -> Config[decoding.DecoderHParams]:
    return Config(
      decoding.GreedyDecoderHParams,
      seqlen=self.TARGET_LEN,
      eos_id=self.eos_ids(),
    )

  def _start_id(self) -> int:
    config = self.model_config()
    start_id = config.get('decoder_start_token_id')
    return config.get('pad_token_id', 0) if start_id is None else start_id

  def _network(self, task_p: TaskConfig) -> Config[base_layer.BaseLayer]:
    return task_p.model.model_tpl
