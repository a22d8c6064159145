"""Find queries that are nearly the same in two folds.

A router that learned from a question is not tested by the same question in capitals, or with two
words changed. Questions with equal texts are refused, see `refuse_leaks` of
`hierrouter.questions.datasets`. Questions that are nearly equal are only noted, because a person
has to judge them.

Two kinds of pairs are found:

* *recased*: the same words in the same order. Case, punctuation, white space and Unicode form do
  not count.
* *reworded*: a few words differ. The similarity is the Jaccard index of the sets of words. Each
  word is weighted by its rarity, so that the words of a template count little: `reverse the word
  munas` and `reverse the word fenu` are different questions.

Numbers, number words of English and operators next to numbers are content: both questions of a
pair have the same ones, so `compute 12+7` and `compute 13+7` are different questions. Paraphrases
and translations are not found.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from sys import intern

from hierrouter.questions.query import Query
from hierrouter.questions.sources import choice_lines
from hierrouter_cache.tree import SPLITS

MAX_MARKS = 30  # combining marks in a row; as in Unicode's Stream-Safe Text Format
GRAPHEME_JOINER = "\N{COMBINING GRAPHEME JOINER}"
MIN_SIMILARITY = 0.75  # of a reworded pair; measured, see docs/decisions.md
# Above these numbers of queries, pairs of a kind are not looked for: it would take too long. 20,000
# queries take about 5 seconds, and reading the words of 100,000 takes about 10.
MAX_REWORDED_QUERIES = 20_000
MAX_RECASED_QUERIES = 100_000
# A word that more queries of earlier folds have is not used to find them. This bounds the time for
# templates with few different words.
MAX_BUCKET_QUERIES = 200

# Differences that NFKC keeps: dashes and minus signs, characters of no width, and apostrophes.
DASHES = dict.fromkeys(map(ord, "‐‑‒–—―−﹣－"), "-")
INVISIBLE_PATTERN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
INNER_QUOTE_PATTERN = re.compile(r"(?<=[^\W\d_])['’ʼ`](?=[^\W\d_])")  # don't, don’t and dont
GROUPED_DIGITS_PATTERN = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # 1,000 and 1000
UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # scripts without spaces between words
TOKEN_PATTERN = re.compile(
    rf"([^\W\d_{UNSPACED}]+|[{UNSPACED}])"  # a word
    # A number, or an operator next to one; a hyphen between words is punctuation.
    r"|(\d+(?:\.\d+)?|(?<=\d)\s?[-+*/^%=<>×÷·!]|[-+*/^%=<>×÷·](?=\s?\d))"
)
ENGLISH_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred
thousand million billion half third quarter once twice thrice double triple dozen first second
fourth fifth
"""
NUMBER_WORDS = frozenset(ENGLISH_NUMBERS.split())


@dataclass(frozen=True)
class NearDuplicate:
    """A query, and the one of an earlier fold that it repeats.

    Attributes:
        query: of the test or the validation fold.
        earlier: of the train fold, or of the validation fold if `query` is of test.
        similarity: from `MIN_SIMILARITY` to 1; 1 for every recased pair.
        is_recased: whether both have the same words in the same order.
    """

    query: Query
    earlier: Query
    similarity: float
    is_recased: bool


@dataclass(frozen=True)
class Content:
    """The parts of a question that are compared.

    Attributes:
        text: words, numbers and operators in order, with single spaces.
        figures: numbers and operators of the question in order, then those of its choices sorted:
            the same choices in another order make the same question.
        words: the distinct words that are no numbers.
    """

    text: str
    figures: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()


def near_duplicates_note(queries: Sequence[Query]) -> str | None:
    """Describe the near-duplicates across folds in one line.

    Returns:
        how many queries there are of each kind, an example pair of each, and what to do; None if
        there is nothing to say.
    """
    pairs = find_near_duplicates(queries)
    recased = [pair for pair in pairs if pair.is_recased]
    reworded = [pair for pair in pairs if not pair.is_recased]
    parts = []
    if recased:
        parts.append(_summary(recased, "up to case, punctuation and spaces"))
    if reworded:
        parts.append(_summary(reworded, "up to a few words"))
    if parts:
        parts.append("remove one of each pair, or give both the same split")
    if len(queries) > MAX_RECASED_QUERIES:
        parts.append(
            f"they are looked for in at most {MAX_RECASED_QUERIES:,} queries, not in "
            f"{len(queries):,}"
        )
    elif len(queries) > MAX_REWORDED_QUERIES:
        parts.append(
            f"pairs with a few words changed are looked for in at most {MAX_REWORDED_QUERIES:,} "
            f"queries, not in {len(queries):,}"
        )
    return f"near-duplicates across folds: {'; '.join(parts)}" if parts else None


def _summary(pairs: Sequence[NearDuplicate], likeness: str) -> str:
    """How many pairs there are, and the nearest one by name."""
    example = max(pairs, key=lambda pair: pair.similarity)
    subject = "1 query repeats one" if len(pairs) == 1 else f"{len(pairs):,} queries repeat one"
    return (
        f"{subject} of another fold {likeness}, e.g. {_name(example.query)} and "
        f"{_name(example.earlier)}"
    )


def _name(query: Query) -> str:
    return f"{query.dataset}/{query.id} ({query.split})"


def find_near_duplicates(queries: Sequence[Query]) -> list[NearDuplicate]:
    """Find the queries of test and validation that repeat a query of an earlier fold.

    The time grows with the number of queries, not with its square: recased pairs are found by their
    common text, reworded ones by an index of their rarest words.

    Args:
        queries: of any datasets; the order of the folds is train, validation, test.

    Returns:
        one pair for each such query, in the order of `queries`: a recased one if there is one,
        else the most similar reworded one. Of more than `MAX_REWORDED_QUERIES` queries only recased
        pairs are found, of more than `MAX_RECASED_QUERIES` none.
    """
    if len(queries) > MAX_RECASED_QUERIES:
        return []
    if len(queries) > MAX_REWORDED_QUERIES:
        # Without figures and words, which take most of the memory, nothing is found by them.
        contents = [Content(_text(_tokens(query.question))) for query in queries]
    else:
        contents = [_content(query) for query in queries]
    weights = _word_weights(contents)
    positions_by_fold: dict[str, list[int]] = {split: [] for split in SPLITS}
    for position, query in enumerate(queries):
        if query.split in positions_by_fold:
            positions_by_fold[query.split].append(position)
    earlier = EarlierFolds(contents, weights)
    pairs: dict[int, NearDuplicate] = {}
    for positions in positions_by_fold.values():
        # A fold is looked up before it is added: pairs within one fold are no leak.
        for position in positions:
            match = earlier.match(position)
            if match is not None:
                other, similarity, is_recased = match
                pairs[position] = NearDuplicate(
                    queries[position], queries[other], similarity, is_recased
                )
        for position in positions:
            earlier.add(position)
    return [pairs[position] for position in sorted(pairs)]


class EarlierFolds:
    """An index of the queries of the folds that were looked at before."""

    def __init__(self, contents: Sequence[Content], weights: Mapping[str, float]) -> None:
        """Make an empty index.

        Args:
            contents: of all queries, by position.
            weights: of each word.
        """
        self._contents = contents
        self._weights = weights
        self._by_text: dict[str, int] = {}
        self._by_word: dict[tuple[tuple[str, ...], str], list[int]] = defaultdict(list)

    def add(self, position: int) -> None:
        """Add the query at this position."""
        content = self._contents[position]
        self._by_text.setdefault(content.text, position)
        for word in _rarest_words(content.words, self._weights):
            self._by_word[content.figures, word].append(position)

    def match(self, position: int) -> tuple[int, float, bool] | None:
        """Find the query that the one at this position repeats.

        Returns:
            its position, the similarity, and whether the pair is recased; None if there is none.
        """
        content = self._contents[position]
        if not content.text:  # nothing but punctuation
            return None
        if content.text in self._by_text:
            return self._by_text[content.text], 1.0, True
        candidates: set[int] = set()
        for word in _rarest_words(content.words, self._weights):
            bucket = self._by_word.get((content.figures, word), [])
            if len(bucket) <= MAX_BUCKET_QUERIES:
                candidates.update(bucket)
        similarities = {
            other: _similarity(content.words, self._contents[other].words, self._weights)
            for other in sorted(candidates)
        }
        if not similarities:
            return None
        nearest = max(similarities, key=lambda other: similarities[other])
        if similarities[nearest] < MIN_SIMILARITY:
            return None
        return nearest, similarities[nearest], False


def _content(query: Query) -> Content:
    tokens = _tokens(query.question)
    figures = _figures(tokens)
    lines = choice_lines(query.choices)
    if lines and query.question.endswith(lines):
        stem = query.question.removesuffix(lines)
        choices = sorted(_figures(_tokens(text)) for _, text in query.choices)
        figures = _figures(_tokens(stem)) + tuple(" ".join(choice) for choice in choices)
    return Content(
        text=_text(tokens),
        figures=figures,
        # Interned, because most words occur in many questions.
        words=frozenset(intern(token) for token, is_figure in tokens if not is_figure),
    )


def _text(tokens: Sequence[tuple[str, bool]]) -> str:
    return " ".join(token for token, _ in tokens)


def _figures(tokens: Sequence[tuple[str, bool]]) -> tuple[str, ...]:
    return tuple(token for token, is_figure in tokens if is_figure)


def _normalized(text: str) -> str:
    """Return a text in Unicode's form NFKC, in time that grows with its length alone.

    Python sorts the marks after a letter in a time that grows with the square of their number: of
    80,000 marks in a minute. So long runs are divided, as Unicode's Stream-Safe Text Format does
    (UAX #15); no language has such runs.
    """
    if len(text) > MAX_MARKS:
        text = _marks_pattern().sub(rf"\g<0>{GRAPHEME_JOINER}", text)
    return unicodedata.normalize("NFKC", text)


@cache
def _marks_pattern() -> re.Pattern[str]:
    """A pattern of as many marks as may follow each other; all of them are below U+20000."""
    marks = [chr(code) for code in range(0x300, 0x20000) if unicodedata.combining(chr(code))]
    return re.compile(f"[{''.join(marks)}]{{{MAX_MARKS}}}")


def _tokens(text: str) -> list[tuple[str, bool]]:
    """The tokens of a text, and whether each is a figure: a number or an operator."""
    if not text.isascii():
        text = _normalized(text)
        text = INVISIBLE_PATTERN.sub("", text).translate(DASHES)
        # Folding the case can take apart what was composed.
        text = _normalized(text.casefold())
    text = " ".join(text.casefold().split())
    text = GROUPED_DIGITS_PATTERN.sub("", INNER_QUOTE_PATTERN.sub("", text))
    return [
        (word, word in NUMBER_WORDS) if word else (figure.strip(), True)
        for word, figure in TOKEN_PATTERN.findall(text)
    ]


def _word_weights(contents: Sequence[Content]) -> dict[str, float]:
    """The weight of each word: 1 if all queries have it, the greater the fewer have it."""
    counts = Counter(word for content in contents for word in content.words)
    total = 1 + len(contents)
    return {word: 1 + log(total / (1 + count)) for word, count in counts.items()}


def _rarest_words(words: Collection[str], weights: Mapping[str, float]) -> list[str]:
    """The rarest words of a query, as many as any reworded pair must share one of.

    A pair that is similar enough shares `MIN_SIMILARITY` of the weight of either query at least.
    If all queries order their words alike, and the words beyond these weigh less than that share,
    then the two lists have a word in common (prefix filtering, Chaudhuri et al. 2006).
    """
    ordered = sorted(words, key=lambda word: (-weights[word], word))
    remaining = sum(weights[word] for word in ordered)
    required = MIN_SIMILARITY * remaining * (1 - 1e-9)  # rounding must not lose a pair
    rarest = []
    for word in ordered:
        if remaining < required:
            break
        rarest.append(word)
        remaining -= weights[word]
    return rarest


def _similarity(
    words: frozenset[str], others: frozenset[str], weights: Mapping[str, float]
) -> float:
    """Weighted Jaccard index: the weight of the common words over that of all words."""
    union = sum(weights[word] for word in words | others)
    return sum(weights[word] for word in words & others) / union if union else 0.0
