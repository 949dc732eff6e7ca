# SPDX-License-Identifier: Apache-2.0
"""Runs the model of a folder of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pax.huggingface import model_folder, stacked_variables
from praxis import base_layer, pax_fiddle
from praxis.decoding import hparams as decoding
from praxis.layers.transformer_models import stack_configs
from praxis.nested_map import NestedMap

# No token: decoding does not end before its last step.
_NO_EOS = -1


class LoadedModel:
  """A model with the weights of a folder."""

  def __init__(
    self,
    folder: model_folder.ModelFolder,
    num_steps: int = 6,
    *,
    packed_input: bool = False,
    change: Callable[[pax_fiddle.Config], None] = lambda config: None,
  ):
    """Reads the weights.

    Args:
      folder: The folder.
      num_steps: Number of tokens to generate.
      packed_input: Whether rows of a decoder have several segments.
      change: Changes the Config of the model.
    """
    self.is_decoder = folder.config['model_type'] != 't5'
    self.variables = read_variables(folder)
    self._num_steps = num_steps
    config = folder.model.model().set(name='model')
    config.decoder_tpl = self._decoder()
    if packed_input:
      config.lm_tpl.packed_input = True
    change(config)
    self.model = config.Instantiate()

  def logits(
    self, ids: np.ndarray, targets: np.ndarray | None = None, **segments: Any
  ) -> Any:
    """Returns the logits of all positions; `targets` are a T5's."""
    return self.logits_of(self.variables, ids, targets, **segments)

  def logits_of(
    self,
    variables: Any,
    ids: np.ndarray,
    targets: np.ndarray | None = None,
    **segments: Any,
  ) -> Any:
    """Returns the same with other variables."""
    call, *inputs = self._call(ids, targets, **segments)
    return self._run(call, variables, *inputs)

  def abstract_variables(
    self, ids: np.ndarray, targets: np.ndarray | None = None
  ) -> Any:
    """Returns shapes and dtypes of all variables of the model."""
    call, *inputs = self._call(ids, targets)

    def init() -> Any:
      with base_layer.JaxContext.new_context():
        return self.model.init(jax.random.key(0), *inputs, method=call)

    return jax.eval_shape(init)

  def _call(
    self, ids: np.ndarray, targets: np.ndarray | None, **segments: Any
  ) -> tuple[Any, ...]:
    inputs = (ids, jnp.zeros(ids.shape))
    if targets is None:
      return (
        lambda model, *inputs: model.lm(*inputs, **segments).logits,
        *inputs,
      )
    inputs += (targets, jnp.zeros(targets.shape))
    return lambda model, *inputs: model.model(*inputs).logits, *inputs

  def aux_loss(self, ids: np.ndarray) -> float:
    """Returns the sum of the auxiliary losses of a decoder."""

    @jax.jit
    def run(variables: Any, ids: Any) -> Any:
      with base_layer.JaxContext.new_context():
        _, updated = self.model.apply(
          variables,
          *(ids, jnp.zeros(ids.shape)),
          method=lambda model, *inputs: model.lm(*inputs),
          mutable=[base_layer.AUX_LOSS],
        )
      leaves = jax.tree.leaves(
        updated, is_leaf=lambda x: isinstance(x, base_layer.AuxLossStruct)
      )
      return sum(leaf.value for leaf in leaves)

    return float(run(self.variables, ids))

  def greedy(self, ids: np.ndarray) -> np.ndarray:
    """Returns the tokens that continue `ids`; a T5's start with 0."""
    return self.greedy_of(self.variables, ids)

  def greedy_of(self, variables: Any, ids: np.ndarray) -> np.ndarray:
    """Returns the same with other variables."""
    batch = NestedMap(ids=ids, paddings=jnp.zeros(ids.shape))
    if not self.is_decoder:
      start = jnp.zeros((len(ids), 1), jnp.int32)
      target = NestedMap(ids=start, paddings=jnp.zeros(start.shape))
      batch = NestedMap(src=batch, tgt=target)

    def decode(model: Any, batch: NestedMap) -> Any:
      return model.decode(batch)[1].output_ids

    tokens = self._run(decode, variables, batch)
    first = ids.shape[1] if self.is_decoder else 0
    return np.asarray(tokens)[:, 0, first : first + self._num_steps + 1]

  def _decoder(self) -> pax_fiddle.Config[decoding.GreedyDecoderHParams]:
    if self.is_decoder:
      return pax_fiddle.Config(
        decoding.GreedyDecoderHParams,
        fprop_for_prefix=True,
        max_decode_steps=self._num_steps,
        eos_id=_NO_EOS,
      )
    return pax_fiddle.Config(
      decoding.GreedyDecoderHParams,
      seqlen=self._num_steps + 1,
      eos_id=_NO_EOS,
    )

  def _run(self, call: Any, variables: Any, *inputs: Any) -> Any:
    @jax.jit
    def run(variables: Any, *inputs: Any) -> Any:
      context = base_layer.JaxContext.HParams(do_eval=True)
      with base_layer.JaxContext.new_context(hparams=context):
        outputs, _ = self.model.apply(
          variables,
          *inputs,
          method=call,
          mutable=['decoder_cache'],
          rngs={'random': jax.random.key(0)},
        )
      return outputs

    return run(variables, *inputs)


def read_variables(folder: model_folder.ModelFolder) -> dict[str, Any]:
  """Returns the variables of the model as a tree."""
  variables: dict[str, Any] = {}
  read = lambda name: folder.entries[name].read()
  for variable in stacked_variables.of_layouts(folder.layouts, None):
    *parents, last = variable.path.split('/')
    node = variables
    for key in parents:
      node = node.setdefault(key, {})
    node[last] = jnp.asarray(variable.from_tensors(read))
  return variables


def declared_variables(model_p: pax_fiddle.Config[base_layer.BaseLayer]) -> Any:
  """Returns the declarations of the variables of a model.

  Args:
    model_p: The model.
  """
  ids = jnp.zeros((1, 4), jnp.int32)
  batch = NestedMap(ids=ids, labels=ids, paddings=ids * 1.0, weights=ids * 1.0)
  if not stack_configs.has_field(model_p, 'lm_tpl'):
    batch = NestedMap(src=batch, tgt=batch)
  return model_p.Instantiate().abstract_init_with_metadata(batch)
