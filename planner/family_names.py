"""The families of plans by name: the one list that specs, searches, checks and exporters follow."""

from typing import Literal, get_args

__all__ = ["FAMILY_NAMES", "OF_TRANSFORMERS", "FamilyName"]

FamilyName = Literal["all_reduce", "parameter_server", "model_replicas", "pipeline", "hybrid"]
FAMILY_NAMES: tuple[str, ...] = get_args(FamilyName)
OF_TRANSFORMERS: FamilyName = "hybrid"  # the family that is made for transformers, and answers for them alone
