"""Everything that can be wrong with a data set: one rule for each case, with what is done about it.

The readers, `rankdet check` and training share this table, so that the same fault has the same
name, text and outcome everywhere. `level` is "fault" where something of the user's is lost or
doubtful (and `rankdet check` then exits with 1), "note" where nothing is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["kept", "clipped", "object dropped", "image skipped", "refused"]


@dataclass(frozen=True)
class Rule:
    """What is done (`outcome`), what was expected (`rule`) and what the user can do (`hint`)."""

    outcome: Outcome
    rule: str
    hint: str

    level: Literal["fault", "note"] = "fault"


def _note(rule: str, hint: str, outcome: Outcome = "kept") -> Rule:
    return Rule(outcome, rule, hint, level="note")


IMAGE_RULES = {
    # files
    "image-missing": Rule(
        "image skipped", "the image file does not exist", "Add the file, or remove its entry."
    ),
    "image-unreadable": Rule(
        "image skipped", "the system cannot read the image file", "Check its rights and the disk."
    ),
    "image-outside": Rule(
        "image skipped",
        "the path leaves the folder of the images (by .., an absolute path or a link)",
        "Move the image inside, or allow it with --allow-outside.",
    ),
    # content
    "image-empty": Rule("image skipped", "the file has no bytes", "Download or copy it again."),
    "image-html": Rule(
        "image skipped",
        "the file is a web page, not an image",
        "The download failed: fetch it again.",
    ),
    "image-lfs-pointer": Rule(
        "image skipped", "the file is a Git LFS pointer, not an image", "Run `git lfs pull`."
    ),
    "image-format": Rule(
        "image skipped",
        "expected a JPEG, PNG, BMP, WebP, TIFF or GIF file",
        "Convert the image to one of these.",
    ),
    "image-truncated": Rule(
        "image skipped", "the image ends too early", "Download or copy it again."
    ),
    "image-corrupt": Rule(
        "image skipped", "the image cannot be decoded", "Download or copy it again, or remove it."
    ),
    "image-too-large": Rule(
        "image skipped",
        "the image has more pixels than the limit",
        "Make it smaller, or raise --max-pixels (data.max_pixels) if you trust the file.",
    ),
    "image-mode": Rule(
        "image skipped",
        "pixels of this kind (floating point or over 16 bits) have no agreed range",
        "Convert the image to 8 or 16 bits per channel.",
    ),
    "image-size-differs": Rule(
        "image skipped",
        "the annotation gives another size than the image has (after its EXIF rotation)",
        "Correct the annotation, or restore the image that was annotated.",
    ),
    "image-crashes": Rule(
        "image skipped",
        "the decoder died or hung on this file",
        "Remove the image, or convert it with another program.",
    ),
    # notes
    "image-animated": _note(
        "several frames or pages: the first one is used", "Split the file if you need the others."
    ),
    "image-16-bit": _note("16 bits per channel: the upper 8 are used", "Nothing to do."),
    "image-converted": _note("the pixels are not plain RGB: they are converted", "Nothing to do."),
    "image-rotated": _note(
        "the EXIF orientation is applied to the pixels", "Boxes must belong to the rotated image."
    ),
    "image-extension": _note(
        "the name's extension does not fit the content, which is trusted", "Rename the file."
    ),
    "image-thin": _note("the image is only a few pixels wide or high", "Check that it is meant."),
    "image-twice": _note("two images of this split have the same content", "Remove one of them."),
    "image-in-two-splits": Rule(
        "kept",
        "the same image (by content) stands in two splits",
        "Remove it from one: scores on it are no evidence.",
    ),
}

BOX_RULES = {
    "box-not-a-number": Rule("object dropped", "expected a number", "Correct the box."),
    "box-not-finite": Rule("object dropped", "expected a finite number", "Correct the box."),
    "box-zero-area": Rule(
        "object dropped", "expected a width and a height above 0", "Correct or remove the box."
    ),
    "box-swapped": Rule(
        "object dropped",
        "the corners are swapped: expected left < right and top < bottom",
        "Exchange the two corners.",
    ),
    "box-clipped": _note(
        "the box reaches over the image's edge and is clipped", "Nothing to do.", "clipped"
    ),
    "box-outside": Rule(
        "object dropped",
        "most of the box lies outside of the image",
        "Check that box and image belong together, and the order of the coordinates.",
    ),
    "box-count": _note("over 1000 boxes in one image", "Check that they are meant."),
}

ANNOTATION_RULES = {
    "no-objects": _note(
        "no objects: the image is used as background", "Nothing to do, if it is meant."
    ),
    "all-objects-dropped": _note(
        "all objects of the image were dropped: it is used as background",
        "Correct them, or take the image out: what it shows is learnt as background.",
    ),
    "class-unknown": Rule(
        "object dropped",
        "the class is not in the class list",
        "Correct the name or the class list.",
    ),
    "split-classes": Rule(
        "kept",
        "two splits have different class lists: the same label means different classes",
        "Give one class list with --classes.",
    ),
    "class-empty": _note(
        "the class has no objects in these images", "Evaluated on them, its AP will be n/a."
    ),
    "field-missing": Rule("object dropped", "the field is missing", "Add it."),
    "field-invalid": Rule(
        "object dropped", "the field has a value that it cannot have", "Correct it."
    ),
    "size-missing": _note(
        "the annotation gives no image size: the image's own is used", "Nothing to do."
    ),
    "size-invalid": Rule(
        "kept",
        "expected whole numbers above 0 as the image's size: the image's own is used",
        "Correct it.",
    ),
    "annotation-missing": Rule(
        "image skipped",
        "the image has no annotation file",
        "Add the file, or take the image from the list.",
    ),
    "annotation-unreadable": Rule(
        "image skipped", "the annotation file cannot be read", "Correct the file."
    ),
    "annotations-unused": _note(
        "most images of this test list have no annotation: it is read without objects",
        "Nothing to do, if it is a test set.",
    ),
    "annotation-unknown-image": Rule(
        "object dropped",
        "the annotation belongs to no image of the list",
        "Correct image_id, or add the image.",
    ),
    "annotation-id-changed": _note(
        "annotation ids that are 0, missing, used twice or not valid: all are numbered anew",
        "Nothing to do.",
    ),
    "image-id-changed": _note(
        "an image id that is not a whole number: all images are numbered anew",
        "Give the images whole numbers if results must carry their own ids.",
    ),
    "category-left-out": _note(
        "a category that only groups the others and has no objects is left out", "Nothing to do."
    ),
    "annotation-field-default": _note(
        "a field is missing or not filled in, and taken as its usual value", "Nothing to do."
    ),
    "image-entry-invalid": Rule(
        "image skipped", "the entry of the image is not valid", "Correct the entry."
    ),
    "image-entry-twice": Rule("image skipped", "the image is listed twice", "Remove one entry."),
    "line-columns": Rule(
        "object dropped",
        "expected 5 columns: class, x centre, y centre, width, height",
        "Correct the line.",
    ),
    "coordinates-in-pixels": Rule(
        "object dropped",
        "coordinates must be fractions of the image's size (0 to 1); these look like pixels",
        "Divide x and width by the image's width, y and height by its height.",
    ),
    "coordinates-as-corners": Rule(
        "kept",
        "the boxes look like two corners (x, y, x, y), not like centre and size",
        "Write x centre, y centre, width, height.",
    ),
    "label-without-image": Rule(
        "image skipped", "the label file has no image", "Add the image, or remove the file."
    ),
    "image-without-label": _note(
        "the image has no label file: it is used as background", "Nothing to do, if it is meant."
    ),
    "class-ids-from-one": Rule(
        "kept",
        "the class ids seem to start at 1: 0 never occurs, but the number of classes does",
        "Count classes from 0.",
    ),
}

# These concern the whole data set: there is nothing to go on with.
FILE_RULES = {
    "data-missing": Rule("refused", "there is no such file or folder", "Check the path."),
    "data-unrecognised": Rule(
        "refused",
        "the format of the data set was not recognised",
        "Check the path; if it looks like several, name one with --format voc, coco or yolo.",
    ),
    "format-differs": Rule(
        "refused",
        "the data set does not have the given format",
        "Correct --format or leave it out.",
    ),
    "data-empty": Rule(
        "refused", "the data set has no usable image", "Check the path and the split."
    ),
    "split-unknown": Rule("refused", "there is no such split", "Take one of those that exist."),
    "split-unclear": Rule(
        "refused",
        "it is not clear which split is for training",
        "Name it with --train-split, and one for evaluation with --val-split.",
    ),
    "labels-missing": Rule(
        "refused",
        "no image of the split has a label file",
        "Put the files into labels, as the images lie in images: images/a.jpg, labels/a.txt.",
    ),
    "split-overlap": Rule(
        "refused",
        "the parts of the split have images in common",
        "Name parts that share no image.",
    ),
    "split-unannotated": Rule(
        "refused",
        "all parts of a sum must have annotations, or none of them",
        "Leave the test set out, or read it alone.",
    ),
    "classes-differ": Rule(
        "refused",
        "the parts of the data set have different classes",
        "Give one class list with --classes.",
    ),
    "classes-foreign": Rule(
        "refused",
        "none of the given classes occurs in the data",
        "Take the data's own names, or leave the class list out.",
    ),
    "classes-invalid": Rule(
        "refused", "expected a list of different, non-empty class names", "Correct the class list."
    ),
    "file-unreadable": Rule(
        "refused", "the system cannot read the file", "Check its rights and the disk."
    ),
    "file-too-large": Rule(
        "refused",
        "the file is larger than such a file can sensibly be",
        "Check that it is the right file.",
    ),
    "file-encoding": Rule(
        "refused", "the text is in no encoding that can be recognised", "Save the file as UTF-8."
    ),
    "file-outside": Rule(
        "refused",
        "the path leaves the data set's folder",
        "Move the data inside, or allow it with --allow-outside.",
    ),
    "xml-malformed": Rule("refused", "the file is not well-formed XML", "Correct the file."),
    "xml-forbidden": Rule(
        "refused",
        "DTDs and entities are not accepted in XML (they can be attacks)",
        "Remove the DOCTYPE.",
    ),
    "xml-too-deep": Rule(
        "refused", "the XML is nested too deeply", "Check that it is the right file."
    ),
    "xml-not-voc": Rule(
        "refused",
        "expected the element <annotation> at the top",
        "Check that it is the right file.",
    ),
    "json-malformed": Rule("refused", "the file is not valid JSON", "Correct the file."),
    "json-not-finite": Rule("refused", "NaN and Infinity are not JSON", "Correct the value."),
    "json-duplicate-key": Rule(
        "refused", "a key occurs twice in one JSON object", "Remove one of them."
    ),
    "json-too-deep": Rule(
        "refused", "the JSON is nested too deeply", "Check that it is the right file."
    ),
    "json-structure": Rule(
        "refused",
        "the JSON is not a COCO data set",
        "Expected an object with the lists images, annotations and categories.",
    ),
    "yaml-malformed": Rule("refused", "the file is not valid YAML", "Correct the file."),
    "yaml-forbidden": Rule(
        "refused", "YAML tags and aliases are not accepted", "Write the values out."
    ),
    "yaml-duplicate-key": Rule(
        "refused", "a key occurs twice in one YAML mapping", "Remove one of them."
    ),
    "yaml-too-deep": Rule(
        "refused", "the YAML is nested too deeply", "Check that it is the right file."
    ),
    "yaml-structure": Rule(
        "refused",
        "the YAML does not describe a YOLO data set",
        "Expected path, train, val and names.",
    ),
    "out-not-empty": Rule(
        "refused",
        "the place for the output is not empty, and nothing is overwritten",
        "Name a new or an empty folder.",
    ),
    "out-unwritable": Rule(
        "refused", "the output cannot be written", "Check the rights and the free space."
    ),
}

RULES: dict[str, Rule] = {**IMAGE_RULES, **BOX_RULES, **ANNOTATION_RULES, **FILE_RULES}
