# SPDX-License-Identifier: Apache-2.0
"""The two sides of an encoder-decoder model, which are made alike.

A side is 'encoder' or 'decoder', with which the names of its fields and of its
children in the model begin.
"""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.layers.transformer_models import ngrammer_state, stack_configs

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
Side = Literal['encoder', 'decoder']


def create(model: base_layer.BaseLayer, side: Side) -> None:
  """Creates the side's layers in the model.

  Raises:
    ValueError: the side has no stack, one of another size, or one that hides
      later positions as encoders do not and decoders have to.
  """
  template = lambda name: getattr(model, f'{side}_{name}')
  for name, child in (
    ('position_emb_tpl', f'{side}_position_emb'),
    ('embedding_tpl', f'{side}_embedding_lookup'),
  ):
    if template(name) is not None:
      create_sized(model, child, template(name))
  if template('ngrammer_tpl') is not None:
    model.create_child(f'{side}_ngrammer', template('ngrammer_tpl').clone())
  model.create_child(side, _stack(model, side))
  if template('ln_tpl') is not None:
    norm = template('ln_tpl').clone().set(dim=model.model_dims)
    model.create_child(f'{side}_ln', norm)


def create_sized(
  model: base_layer.BaseLayer, name: str, template: LayerTpl
) -> None:
  """Creates a child whose size is the model's."""
  template = template.clone()
  field = 'embedding_dims' if name.endswith('position_emb') else 'input_dims'
  size = getattr(template, field)
  stack_configs.check_dims(f'{field} of {name}', size, model.model_dims)
  model.create_child(name, template.set(**{field: model.model_dims}))


def embed(
  model: base_layer.BaseLayer,
  side: Side,
  ids: Int[Array, 'B T'],
  pos: Int[Array, 'B T'],
  paddings: Num[Array, 'B T'],
) -> Float[Array, 'B T D']:
  """Returns what the side's stack gets for ids at these positions."""
  embedded = look_up(model, side, ids)
  if (ngrammer := _own(model, side, 'ngrammer')) is not None:
    embedded = ngrammer(
      input_ids=ids, input_embs=embedded, paddings=paddings, segment_pos=pos
    )
  return _add_positions(model, side, embedded, pos, ids.shape[1])


def embed_step(
  model: base_layer.BaseLayer,
  side: Side,
  ids: Int[Array, 'B P'],
  pos: Int[Array, 'B 1'],
) -> Float[Array, 'B 1 D']:
  """Returns what the side's stack gets for the last of the ids."""
  embedded = look_up(model, side, ids)
  if (ngrammer := _own(model, side, 'ngrammer')) is not None:
    embedded = ngrammer_state.step(model, ngrammer, ids, embedded)
  return _add_positions(model, side, embedded[:, -1:], pos)


def look_up(
  model: base_layer.BaseLayer, side: Side, ids: Int[Array, 'B T']
) -> Float[Array, 'B T D']:
  """Returns the vectors of ids, by what the side or else the model embeds."""
  for name in dict.fromkeys((side, 'decoder')):
    if getattr(model, f'{name}_embedding_tpl') is not None:
      return getattr(model, f'{name}_embedding_lookup').emb_lookup(ids)
  return model.softmax.emb_lookup(ids)


def finish(
  model: base_layer.BaseLayer, side: Side, outputs: Float[Array, '*B D']
) -> Float[Array, '*B D']:
  """Returns the outputs of the side's stack, normalised if it has a norm."""
  norm = _own(model, side, 'ln')
  return outputs if norm is None else norm(outputs)


def _own(model: base_layer.BaseLayer, side: Side, name: str) -> Any:
  """Returns the side's child of this name, None if it has no template."""
  has_child = getattr(model, f'{side}_{name}_tpl') is not None
  return getattr(model, f'{side}_{name}') if has_child else None


def _add_positions(
  model: base_layer.BaseLayer,
  side: Side,
  embedded: Float[Array, 'B T D'],
  pos: Int[Array, 'B T'],
  seq_length: int | None = None,
) -> Float[Array, 'B T D']:
  """Adds embeddings of positions, all below `seq_length` if given."""
  if model.position_emb_tpl is not None:
    layer = model.position_emb
  else:
    layer = _own(model, side, 'position_emb')
  if layer is None:
    return embedded
  return embedded + layer(seq_length=seq_length, position=pos)


def _stack(model: base_layer.BaseLayer, side: Side) -> LayerTpl:
  """Returns the Config of the side's stack, for a model of this size."""
  stack = getattr(model, f'{side}_stacked_transformer_tpl')
  if stack is None:
    raise ValueError(
      f'{side}_stacked_transformer_tpl must be the Config of a stack of '
      'layers, got None'
    )
  stack = stack_configs.for_model(
    stack,
    model.model_dims,
    getattr(model, f'{side}_post_attention_ngrammer_tpls'),
    packed_input=model.packed_input,
  )
  for block in stack_configs.stacked_transformers(stack):
    _check_visible(side, block.mask_self_attention)
    if side == 'encoder':
      _forget(block)
  return stack


def _check_visible(side: Side, is_masked: bool) -> None:
  if is_masked != (side == 'decoder'):
    raise ValueError(
      f'mask_self_attention of the {side} must be {not is_masked}, got '
      f'{is_masked}; it hides later positions, as decoders have to'
    )


def _forget(block: LayerTpl) -> None:
  """Lets a block of the encoder leave no cache: it takes no steps."""
  for layer in stack_configs.as_list(block.transformer_layer_params_tpl):
    if stack_configs.has(layer.tr_atten_tpl, 'decode_cache'):
      layer.tr_atten_tpl.decode_cache = False
