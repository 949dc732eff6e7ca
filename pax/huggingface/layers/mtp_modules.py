# SPDX-License-Identifier: Apache-2.0
"""The modules of multi-token prediction, as DeepSeek-V3 publishes them.

They are numbered as layers after the last one of the model.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pax.huggingface import weight_layouts
from pax.huggingface.weight_layouts import WeightLayout

_COUNT = 'num_nextn_predict_layers'
# Norms by the names of their tensors.
_NORMS = {
  'enorm': 'embedding_ln',
  'hnorm': 'hidden_ln',
  'shared_head.norm': 'final_ln',
}
_VARIABLE = re.compile(r'\bmtp[./]modules_0[./]')


@dataclasses.dataclass(frozen=True, kw_only=True)
class MtpModules:
  """The modules of a model."""

  # Names in the files.
  sources: tuple[str, ...] = ()

  @classmethod
  def read(cls, config: Mapping[str, Any]) -> MtpModules:
    """Returns those of a config.json.

    Raises:
      ValueError: What the file has for their number is no number.
    """
    count, first = (config.get(x) or 0 for x in (_COUNT, 'num_hidden_layers'))
    if type(count) is not int or count < 0:
      raise ValueError(
        f'{_COUNT} in config.json must be a number of layers, got {count!r};'
        ' use the file that the model is published with'
      )
    sources = (f'model.layers.{first + i}' for i in range(count))
    return cls(sources=tuple(sources))

  @property
  def patterns(self) -> tuple[str, ...]:
    """Regexes of all tensors."""
    return tuple(rf'{re.escape(source)}\..*' for source in self.sources)

  def copies(self, embedding: str, head: str) -> dict[str, str]:
    """Returns the tensors that are copies, with what they are copies of.

    Args:
      embedding: Tensor of the embedding of the model.
      head: That of its softmax.
    """
    copies = {}
    for source in self.sources:
      copies[f'{source}.embed_tokens.weight'] = embedding
      copies[f'{source}.shared_head.head.weight'] = head
    return copies

  def variables(self, index: int) -> str:
    """Returns the path of the variables of a module."""
    return f'params/lm/mtp/modules_{index}'

  def weights(self, index: int, model_dims: int) -> Iterator[WeightLayout]:
    """Yields the layouts of a module but those of its transformer layer.

    Args:
      index: Of the module.
      model_dims: Dimension of the model.
    """
    source, target = self.sources[index], self.variables(index)
    for tensor, norm in _NORMS.items():
      yield weight_layouts.same(
        f'{source}.{tensor}.weight', f'{target}/{norm}/scale', model_dims
      )
    yield weight_layouts.transposed(
      f'{source}.eh_proj.weight', f'{target}/proj/w', model_dims, 2 * model_dims
    )


def without_modules(config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns a config.json of the same model without modules."""
  return {**config, _COUNT: 0}


def are_in(paths: Iterable[str]) -> bool:
  """Returns whether a model has modules.

  Args:
    paths: Paths of its variables or names of leaves, with slashes or dots.
  """
  return any(map(_VARIABLE.search, paths))
