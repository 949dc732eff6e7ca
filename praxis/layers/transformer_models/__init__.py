# SPDX-License-Identifier: Apache-2.0
"""Re-exports the transformer models: token ids to losses."""

from praxis.alias_names import module_getattr
from praxis.layers.transformer_models.encoder_decoder import (
  TransformerEncoderDecoder as TransformerEncoderDecoder,
)
from praxis.layers.transformer_models.layer_inputs import (
  LayerInputs as LayerInputs,
)
from praxis.layers.transformer_models.multi_token_prediction import (
  MultiTokenPrediction as MultiTokenPrediction,
)
from praxis.layers.transformer_models.transformer_lm import (
  LanguageModelType as LanguageModelType,
)
from praxis.layers.transformer_models.transformer_lm import (
  TransformerLm as TransformerLm,
)

__getattr__ = module_getattr(__name__)
