"""What all documents have in common: every key is known, and nothing changes once it is read."""

from pydantic import BaseModel, ConfigDict

__all__ = ["Document"]


class Document(BaseModel):
    """A part of a document."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
