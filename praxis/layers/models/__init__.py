# SPDX-License-Identifier: Apache-2.0
"""Models: networks with their losses, metrics and generation."""

from praxis.layers.models.classification_mlp import (
  ClassificationMLPModel as ClassificationMLPModel,
)
from praxis.layers.models.language_model import LanguageModel as LanguageModel
from praxis.layers.transformer_models import (
  LanguageModelType as LanguageModelType,
)
