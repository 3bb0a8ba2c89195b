"""Words and numbers as the page shows them: what each number means, and how it is written."""

from __future__ import annotations

NOT_AVAILABLE = "n/a"
HEADLINE = ("AP50", "AP", "AP75")  # the metrics in big numbers

LOSS_NAMES = {
    "ap": "AP-loss",
    "auc": "AUC-loss",
    "focal": "focal loss",
    "ohem": "OHEM",
    "ghm": "GHM loss",
    "dr": "DR loss",
    "smooth_ap": "smooth AP loss",
    "hinge_ap": "hinge AP loss",
    "ce": "cross-entropy",
}
METRIC_MEANINGS = {
    "AP50": "average precision, the mean over the classes, where a detection is right if it "
    "overlaps an object of its class with an IoU of at least 0.5. 100 is perfect.",
    "AP": "the same, averaged over the IoU thresholds 0.5, 0.55, ..., 0.95: it also rewards boxes "
    "that fit closely.",
    "AP75": "the same at an IoU of at least 0.75: only boxes that fit well count as right.",
    "AP50_11point": "AP50 as VOC 2007 computed it, from 11 points of the curve; for comparison "
    "with old papers only.",
    "AP_small": "AP of objects with an area below 32² pixels.",
    "AP_medium": "AP of objects with an area from 32² to 96² pixels.",
    "AP_large": "AP of objects with an area above 96² pixels.",
    "AR_1": "average recall: how many of the objects are found, with 1 detection per image.",
    "AR_10": "average recall with up to 10 detections per image.",
    "AR_100": "average recall with up to 100 detections per image.",
    "AR_small": "average recall of objects with an area below 32² pixels.",
    "AR_medium": "average recall of objects with an area from 32² to 96² pixels.",
    "AR_large": "average recall of objects with an area above 96² pixels.",
}
IOU_MEANING = (
    "Intersection over union of two boxes: the area that they share, divided by the area that they "
    "cover together. 1: the same box; 0: they do not touch."
)
ERROR_MEANINGS = {
    "correct": "an object of the class, found for the first time, with an IoU of at least 0.5",
    "localisation": "an object of the class is there, but the box fits badly: IoU from 0.1 to 0.5",
    "duplicate": "the object was already found by a detection with a higher score",
    "class": "the box fits an object of another class",
    "background": "there is nothing of the kind: all other wrong detections",
    "missed": "objects that no correct detection found",
}
PICTURE_TITLES = {
    "best": ("Best", "Images with most objects found and fewest mistakes (F1)."),
    "worst": (
        "Worst: confident mistakes",
        "Images with the wrong detections that the detector is surest of.",
    ),
    "missed": ("Missed", "Images with the most objects that were not found."),
}


def loss_name(loss: str) -> str:
    """
    >>> loss_name("ap"), loss_name("mine")
    ('AP-loss', 'mine loss')
    """
    return LOSS_NAMES.get(loss, f"{loss} loss")


def percent(value: float | None) -> str:
    """
    >>> percent(30.25), percent(None)
    ('30.2', 'n/a')
    """
    return NOT_AVAILABLE if value is None else f"{value:.1f}"


def difference(value: float | None) -> str:
    """With its sign, which is a real minus; nothing where it is not known.

    >>> difference(1.25), difference(-0.31), difference(-0.01), difference(None)
    ('+1.2', '−0.3', '±0.0', '')
    """
    if value is None:
        return ""
    text = f"{value:+.1f}"
    return "±0.0" if text[1:] == "0.0" else text.replace("-", "−")


def trend(value: float | None) -> str:
    """A word for the style sheet: better, worse, or the same within what is shown."""
    text = difference(value)[:1]
    return {"+": "better", "−": "worse"}.get(text, "same")


def threshold(value: float | None) -> str:
    """With three digits that count.

    >>> threshold(0.02584), threshold(0.079), threshold(None)
    ('0.0258', '0.0790', 'n/a')
    """
    return NOT_AVAILABLE if value is None else f"{value:#.3g}"


def count(value: int | None) -> str:
    """
    >>> count(12345), count(None)
    ('12,345', 'n/a')
    """
    return NOT_AVAILABLE if value is None else f"{value:,}"


def share(part: float, whole: float) -> str:
    """
    >>> share(1, 8), share(0, 0)
    ('12.5 %', 'n/a')
    """
    return f"{100 * part / whole:.1f} %" if whole else NOT_AVAILABLE


def duration(seconds: float | None) -> str:
    """
    >>> duration(1.53), duration(187.5), duration(7500), duration(None)
    ('1.5 s', '3 min 08 s', '2 h 05 min', 'n/a')
    """
    if seconds is None:
        return NOT_AVAILABLE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02} min"


def speed(images_per_second: float | None) -> str:
    """
    >>> speed(41.72), speed(None)
    ('41.7 images/s', 'n/a')
    """
    if images_per_second is None:
        return NOT_AVAILABLE
    return f"{images_per_second:,.1f} images/s"
