# SPDX-License-Identifier: Apache-2.0
"""Feature converters of SeqIO whose modules do not import SeqIO."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pax.inputs.seqio import tasks
from praxis import base_hyperparams, py_utils

NestedMap = py_utils.NestedMap
# Tensors of TensorFlow by name, and the maximum length of each feature.
Features = Mapping[str, Any]
Lengths = Mapping[str, int | Sequence[int]]


class SeqIOConverter(base_hyperparams.StrOverride):
  """Base of feature converters that are subclasses of one of SeqIO.

  Importing SeqIO imports TensorFlow and takes seconds, so that configurations
  name these classes without it. The first instance makes the subclass of the
  class and of SeqIO's: instances are instances of both, and `super()` finds the
  methods of SeqIO.
  """

  # Name of the base class in the module `seqio`.
  SEQIO_BASE: ClassVar[str]
  # Attributes of SeqIO's class: whether rows are packed, features that rows get
  # unchanged, and the conversion without checks.
  pack: bool
  _passthrough_features: Mapping[str, Any]
  _convert_features: Callable[[Any, Lengths], Any]
  # The signature of `__init__`; `__new__` has no names of arguments.
  __signature__: ClassVar[inspect.Signature]

  if TYPE_CHECKING:
    # Methods that SeqIO's classes also have.
    def __init__(self, **settings: Any): ...
    def __call__(self, ds: Any, task_feature_lengths: Lengths) -> Any: ...
    def _convert_example(self, features: Features) -> Features: ...

  def __init_subclass__(cls, **kwargs: Any):
    super().__init_subclass__(**kwargs)
    signature = inspect.signature(cls.__init__)
    _, *parameters = signature.parameters.values()
    cls.__signature__ = signature.replace(parameters=parameters)

  def __new__(cls, *unused_args: Any, **unused_kwargs: Any):
    # mypy considers classes unhashable.
    return object.__new__(_with_seqio(cls))  # type: ignore[arg-type]

  def __str__(self) -> str:
    cls = type(self)
    values = ((name, f'_{name}') for name in cls.__signature__.parameters)
    texts = [
      f'{name}={getattr(self, attribute)}'
      for name, attribute in values
      if hasattr(self, attribute)
    ]
    return f'{cls.__name__}({", ".join(texts)})'

  def __reduce__(self):
    cls = type(self)
    return _rebuild, (vars(cls).get('_declared', cls), vars(self))


@functools.cache
def _with_seqio(cls: type[SeqIOConverter]) -> type[SeqIOConverter]:
  """Returns the subclass of `cls` and of its base class in SeqIO.

  Raises:
    ValueError: SeqIO is not installed.
  """
  base = getattr(
    tasks.load(f'the feature converter {cls.__name__}'), cls.SEQIO_BASE
  )
  if issubclass(cls, base):
    return cls
  names = {
    '__module__': cls.__module__,
    '__qualname__': cls.__qualname__,
    '__doc__': cls.__doc__,
    # The class that modules define, which pickle finds by its name.
    '_declared': cls,
  }
  return types.new_class(
    cls.__name__, (cls, base), exec_body=lambda body: body.update(names)
  )


def _rebuild(
  cls: type[SeqIOConverter], values: dict[str, Any]
) -> SeqIOConverter:
  converter = cls.__new__(cls)
  vars(converter).update(values)
  return converter


def segments(
  features: Features, side: str, paddings: Any, pack: bool
) -> tuple[Any, Any]:
  """Returns the segment ids and positions of a row.

  Without packing the row is one segment, with id 1.

  Args:
    features: SeqIO's features of the row.
    side: 'encoder' or 'decoder'.
    paddings: 1 where the row has no token, else 0.
    pack: Whether rows are packed.

  Raises:
    ValueError: The row is to be packed, but has no segments.
  """
  if f'{side}_segment_ids' in features:
    return features[f'{side}_segment_ids'], features[f'{side}_positions']
  if pack:
    raise ValueError(
      f'pack must be False, got True: the rows have no {side}_segment_ids,'
      f' only {sorted(features)}'
    )
  tf = tasks.load_tensorflow()
  segment_ids = tf.cast(1.0 - paddings, tf.int32)
  return segment_ids, segment_ids * tf.range(segment_ids.shape[0])


class RemoveProvenance(SeqIOConverter):
  """Passes features through, except those named `provenance...`."""

  SEQIO_BASE = 'PassThroughFeatureConverter'

  def __call__(self, ds: Any, task_feature_lengths: Lengths) -> Any:
    """Returns the dataset without these features.

    Args:
      ds: A tf.data dataset of dicts.
      task_feature_lengths: Not used.
    """
    del task_feature_lengths
    return ds.map(_without_provenance)


class UnflattenAndRemoveProvenance(RemoveProvenance):
  """Also makes nested features of names with slashes, such as 'a/b'."""

  def __call__(self, ds: Any, task_feature_lengths: Lengths) -> Any:
    seqio = tasks.load(type(self).__name__)
    return super().__call__(ds.map(seqio.unflatten_dict), task_feature_lengths)


def _without_provenance(features: Features) -> NestedMap:
  nested = NestedMap.FromNestedDict(features)
  return nested.FilterKeyVal(lambda key, _: not key.startswith('provenance'))
