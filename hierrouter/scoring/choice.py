r"""Which label of a multiple choice does a response state?

In: a response, references that are one label, A to J (MMLU, ARC), and the choices where they are
known. Out: 1 or 0. A stated answer ("the answer is (C)", "\boxed{C}", "C is correct", a line that
is just "C") wins over letters that are only discussed; the last statement counts. The words "a"
and "I" are labels only where nothing else can be meant. A response without a label states that of
a choice where it is the choice's text, or says so after "answer is" or in a box. Not covered: a
choice in other words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hierrouter.scoring.stated import boxed_text, cued_text
from hierrouter_cache.fingerprint import Choices

WRAPPERS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|rm|bf)\b\s*")
BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")
ENCLOSED = re.compile(r"(?<!\w)[*_`\"'“‘\[{($]{1,6}([A-Ja-j])[.:]?[*_`\"'”’\]})$]{1,6}(?!\w)")
MARKUP = re.compile(r"[*_`$]+")

# A label in brackets is one. A capital that is no English word is one unless it starts a name
# ("C-reactive", "D.C."). "A", "I" and small letters need to be cut off from what follows.
PUNCTUATION = r"(?=\s*(?:[,;:!?)]|\.(?!\w)|$))"
REASON = r"(?=\s+(?:because|since|is)\b)"
LABEL = (
    r"(?:\(([A-Ja-j])\)|([B-HJ])(?![\w'’-]|\.\w)"
    rf"|(?<!\w)([A-Ja-j]){PUNCTUATION}|(?<!\w)([AI]){REASON})"
)
CUE = (
    r"(?:\b(?:answer|option|choice)\b(?:[^\n.:=]{0,40}?\bis\b|\s*[:=–-])"
    r"|\b(?:therefore|thus|hence|so)\b,?(?:\s+it\s+is\b|\s+it's\b)?"
    r"|\b(?:it\s+is|it's|(?:must|would|should)\s+be|choose|pick|select|go\s+with)\b)"
    r"\s*(?::\s*)?(?:(?:the|option|choice|letter|answer|probably|likely|clearly)\s+){0,3}"
)
VERDICT = r"\s+is\s+(?:the\s+|most\s+|only\s+){0,2}(?:correct|right|best|answer|true)\b"
STATED = re.compile(
    rf"(?i:{CUE}){LABEL}"
    rf"|(?:\(([A-Ja-j])\)|(?<![\w'’-])([A-J]))(?i:{VERDICT})"
    r"|^[^\w\n]*(?:(?i:option|choice|letter|answer)[ ])?([A-Ja-j])[^\w\n]*$",
    re.M,
)
LEADING = re.compile(
    r"\s*(?:\(([A-Ja-j])\)|([A-Ja-j])(?=\s*(?:[),;:!?\n]|\.(?!\w))|\s+(?:[–-]|because|since)\s))"
    r"(?!\s*(?:is\s+(?:not|wrong|incorrect|false)|(?:and|or|,)\s+\(?[A-J])\b)"
)
# What may follow a choice's text that is stated as the answer: its reason.
TEXT_END = r"(?=$|[,;:]\s|\s+(?:because|since|as)\b|\s*\()"
MARKS = " .,;:!?\"'*_`$\ufeff"
MENTION = re.compile(r"(?<!\bnot )\(([A-Ja-j])\)|^[ \t]*([A-J])[.):]", re.M)


def choice(response: str, references: Sequence[str], choices: Choices = ()) -> float:
    """1 where the label that the response states is that of a reference.

    Args:
        response: what a model said.
        references: labels.
        choices: label and text of each choice, where they are known.
    """
    found = stated_label(response) or label_of_text(response, choices)
    return float(found is not None and any(found == one.strip(" ().") for one in references))


def stated_label(text: str) -> str | None:
    """The capital label that a text states as its answer, or None.

    Where nothing is stated, a label that opens the text counts, then the only one mentioned.
    """
    text = _without_markup(text)
    stated = [_label(match) for match in STATED.finditer(text)]
    if stated:
        return stated[-1]
    mentioned = {_label(match) for match in MENTION.finditer(text)}
    leading = LEADING.match(text)
    if leading and not _enumerates(text):
        return _label(leading)
    return mentioned.pop() if len(mentioned) == 1 else None


def label_of_text(text: str, choices: Choices) -> str | None:
    """The label of the one choice whose text is given as the answer, or None.

    What is given is in the last box, else after the last "answer is", where a reason may follow
    it; else it is the whole text. Case, white space and outer punctuation do not count.
    """
    texts = [(label, _folded(said)) for label, said in choices if _folded(said)]
    stated = boxed_text(text) or cued_text(text)
    if stated is None:
        found = [label for label, said in texts if said == _folded(text)]
    else:
        begun = [
            (len(said), label)
            for label, said in texts
            if re.match(re.escape(said) + TEXT_END, _folded(stated))
        ]
        longest = max(begun, default=(0, ""))[0]
        found = [label for length, label in begun if length == longest]
    return found[0] if len(found) == 1 else None


def _folded(text: str) -> str:
    return " ".join(text.replace("\ufeff", "").casefold().split()).strip(MARKS)


def _without_markup(text: str) -> str:
    text = BOX.sub("\nanswer: ", WRAPPERS.sub("", text))
    return MARKUP.sub("", ENCLOSED.sub(r"(\1)", text))


def _enumerates(text: str) -> bool:
    """Whether lines of the text begin with several labels: the choices, said again."""
    return len({match[1] for match in re.finditer(r"^[ \t(]*([A-J])[.):]", text, re.M)}) > 1


def _label(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group).upper()
