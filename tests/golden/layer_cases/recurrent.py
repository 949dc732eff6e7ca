# SPDX-License-Identifier: Apache-2.0
"""Cells and recurrent networks."""

from __future__ import annotations

from praxis.layers import frnn, rnn_cell
from praxis.nested_map import NestedMap
from tests.golden.layer_case import case, f32

_SIZES = {'num_input_nodes': 3, 'num_output_nodes': 4}
_STATE = NestedMap(m=f32(2, 4), c=f32(2, 5))
_STEP = NestedMap(act=f32(2, 3), padding=f32(2, 1))
_INPUTS = NestedMap(act=f32(2, 5, 3), padding=f32(2, 5, 1))
_CELL = rnn_cell.LstmCellSimple.config(**_SIZES)
_STACK = {'num_layers': 2, **_SIZES}

CASES = {
  cls.__name__: case(cls.config(num_hidden_nodes=5, **_SIZES), _STATE, _STEP)
  for cls in (
    rnn_cell.LstmCellSimple,
    rnn_cell.LayerNormalizedLstmCellSimple,
    rnn_cell.CifgLstmCellSimple,
  )
} | {
  'FRnn': case(frnn.FRnn.config(cell_tpl=_CELL), _INPUTS),
  'LstmFrnn': case(frnn.LstmFrnn.config(cell_tpl=_CELL), _INPUTS),
  'StackFrnn': case(
    frnn.StackFrnn.config(frnn_tpl=frnn.FRnn.config(cell_tpl=_CELL), **_STACK),
    _INPUTS,
  ),
  'StackBiFrnn': case(
    frnn.StackBiFrnn.config(
      frnn_tpl=frnn.FRnn.config(cell_tpl=_CELL), **_STACK
    ),
    _INPUTS,
  ),
}
