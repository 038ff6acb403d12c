"""Planning for the pessimistic end of what is known of the predictions' errors."""

from planner.data.transformer_rates import transformer_rates
from planner.errors import SpecError
from planner.family_names import OF_TRANSFORMERS
from planner.procurement.search import Fleets

__all__ = ["stretch_of"]


def stretch_of(fleets: Fleets) -> float:
    """Return what training takes at most over what is predicted: one number for all fleets.

    As the question states, else, for transformers, the widest error that was measured on any device, so that no fleet
    is preferred for having been measured less.

    Raises
    ------
    SpecError
        If no error is known, and the question states none.
    """
    asked = fleets.procurement.asked
    if asked.error is not None:
        return 1 + asked.error
    if fleets.families == (OF_TRANSFORMERS,):
        return 1 + max(float(band["high"]) for band in transformer_rates()["bands"].values())
    message = (
        "procure.error: how far predictions are off was not measured for such a question, so its pessimistic end is "
        "not known. Add e.g. error: 0.15, the share that training may take longer than predicted."
    )
    raise SpecError(message)
