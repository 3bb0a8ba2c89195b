"""The images that a training evaluates on, held on the device like those that it trains on."""

from __future__ import annotations

from rankdet.data.augmentation.store import ImageStore
from rankdet.data.loading.held import reason_not_to_hold
from rankdet.progress import progress, say
from rankdet.workflows.parts import Parts


def held_validation(parts: Parts, *, is_silent: bool = False) -> ImageStore | None:
    """The images to evaluate on, read once for all evaluations of a training.

    None where `data.hold` is not set, where there are none, or where they cannot be held: then they
    are read from the disk for each evaluation, and the user is told why.
    """
    if not parts.config.data.hold or parts.validation is None:
        return None
    if (reason := reason_not_to_hold(parts.validation, parts.device)) is not None:
        if not is_silent:
            say(f"The images to evaluate on are read from the disk each time: {reason}.")
        return None
    with progress("Loading onto the device") as meter:
        meter.expect(len(parts.validation))
        return ImageStore.from_dataset(
            parts.validation,
            parts.device,
            max_bytes=ImageStore.num_bytes(parts.validation),
            on_image=meter.advance,
        )
