# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Modules publish the aliases that users' code reads from them."""

from __future__ import annotations

import pytest

from praxis import base_layer, layers, pax_fiddle, pytypes
from praxis.layers import attentions, models
from praxis.layers.quantization import linears, quantization_hparams


def test_aliases_are_the_objects_of_their_modules():
  assert base_layer.template_field is pax_fiddle.template_field
  assert base_layer.JTensor is attentions.JTensor is pytypes.JTensor
  assert linears.QuantizationMode is quantization_hparams.QuantizationMode
  assert models.LayerTpl is base_layer.LayerTpl
  from praxis.layers.transformers import NestedMap

  assert NestedMap is pytypes.NestedMap


def test_other_names_are_missing():
  with pytest.raises(AttributeError, match="attentions' has no attribute 'no'"):
    attentions.__getattr__('no')


def test_modules_of_layers_are_attributes():
  assert layers.activations.ReLU is layers.ReLU
  assert layers.attentions is attentions
  with pytest.raises(AttributeError, match="layers' has no attribute 'no'"):
    _ = layers.no
