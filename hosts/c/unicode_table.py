"""Write unicode_table.inc: the properties of characters that tokenizers depend on.

    python hosts/c/unicode_table.py

Reads the properties off the `tokenizers` library, whose parts follow different versions of Unicode,
so that C splits and normalizes as Python does. Combining classes come from `unicodedata`. Needs
about a minute. unicode.c reads the table: numbers of 5 bits a character, 32 meaning "goes on".
"""

import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

TABLE = Path(__file__).with_name("unicode_table.inc")
POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
HANGUL = range(0xAC00, 0xAC00 + 11172)
WIDTH = 96

# The library tells these by other means than a part that can be called.
PREPENDED = frozenset([*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD])


def number(value: int) -> str:
    """Spell a number of at least 0, without question marks and backslashes."""
    text = ""
    while True:
        digit, value = value & 31 | (32 if value > 31 else 0), value >> 5
        code = 35 + digit
        code += (code >= 63) + (code >= 91)
        text += chr(code)
        if not value:
            return text


def signed(value: int) -> str:
    """Spell a number of either sign."""
    return number(value << 1 if value >= 0 else (-value << 1) - 1)


# --- properties of single characters ------------------------------------------------------------


def matched(part: pre_tokenizers.PreTokenizer) -> set[int]:
    """Characters that a pre-tokenizer removes or separates from a letter before them."""
    return {p for p in POINTS if part.pre_tokenize_str("a" + chr(p)) != [("a" + chr(p), (0, 2))]}


def removed(part: normalizers.Normalizer) -> set[int]:
    """Characters that a normalizer removes."""
    return {p for p in POINTS if part.normalize_str(chr(p)) == ""}


def pattern(text: str) -> set[int]:
    """Characters that a regular expression matches."""
    part = pre_tokenizers.Split(Regex(text), "removed")
    return {p for p in POINTS if part.pre_tokenize_str(chr(p)) == []}


def extending() -> set[int]:
    """Characters that join the one before them to a grapheme cluster."""
    # a table with one entry, "a", replaces a whole cluster of less than 6 bytes
    table = charsmap_of_a()
    return {p for p in POINTS if table.normalize_str("a" + chr(p)) == "b"}


def charsmap_of_a() -> normalizers.Normalizer:
    """A normalizer that replaces "a" by "b"."""
    units = [0] * 512
    # a double array: the root, its child for "a" at offset ^ 97, and the value at that unit's own
    units[0] = 1 << 10
    units[1 ^ 97] = 97 | 1 << 8 | (256 << 10)
    units[(1 ^ 97) ^ 256] = 1 << 31
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    return normalizers.Precompiled(len(trie).to_bytes(4, "little") + trie + b"b\0")


def classes() -> list[int]:
    """Flags of each code point, in the order of unicode.h, and its combining class << 16."""
    spaces = matched(pre_tokenizers.WhitespaceSplit())
    if spaces != pattern(r"\s"):
        raise SystemExit("White space differs between the parts of tokenizers: add a class.")
    words = {
        p for p in POINTS if len(pre_tokenizers.Whitespace().pre_tokenize_str("a" + chr(p))) == 1
    }
    accents = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False
    )
    clean = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False
    )
    extends = extending()
    control = {
        p
        for p in POINTS
        if unicodedata.category(chr(p)) in ("Cc", "Cf", "Zl", "Zp") and p not in PREPENDED
    }
    sets = [
        pattern(r"\p{L}"),
        pattern(r"\p{N}"),
        spaces,
        words - spaces,
        removed(accents),
        removed(normalizers.StripAccents()),
        matched(pre_tokenizers.Punctuation()),
        removed(clean),
        matched(pre_tokenizers.Digits(individual_digits=True)),
        extends,
        control - extends,
        set(PREPENDED),
    ]
    values = [0] * 0x110000
    for bit, points in enumerate(sets):
        for point in points:
            values[point] |= 1 << bit
    decomposed = normalizers.NFD()
    for point in POINTS:
        order = unicodedata.combining(chr(point))
        # U+0334 is of class 1, and moves before characters of higher classes that the library knows
        moves = decomposed.normalize_str(chr(point) + "\u0334")[0] == "\u0334"
        if order == 1 or (order > 1 and moves):
            values[point] |= order << 16
    return values


def class_numbers(values: list[int]) -> str:
    """Number of different values, the values, then runs: length, and which value."""
    runs = [[values[0], 0]]
    for value in values:
        if value != runs[-1][0]:
            runs.append([value, 0])
        runs[-1][1] += 1
    counts: dict[int, int] = {}
    for value, _ in runs:
        counts[value] = counts.get(value, 0) + 1
    kinds = sorted(counts, key=lambda value: -counts[value])
    text = number(len(kinds)) + "".join(map(number, kinds)) + number(len(runs))
    return text + "".join(number(length) + number(kinds.index(value)) for value, length in runs)


# --- mappings -----------------------------------------------------------------------------------


def mapping_numbers(mapping: dict[int, list[int]]) -> str:
    """Number of characters, then each: distance, length, and distances of what it becomes."""
    text, before, last = number(len(mapping)), 0, [0] * 32
    for point, targets in sorted(mapping.items()):
        text += number(point - before) + number(len(targets))
        for place, target in enumerate(targets):
            text += signed(target - last[place])
            last[place] = target
        before = point
    return text


def mapped(normalize: Callable[[str], str], points: Iterable[int]) -> dict[int, list[int]]:
    """What characters become, if it is something else."""
    results = {point: [*map(ord, normalize(chr(point)))] for point in points}
    return {point: targets for point, targets in results.items() if targets != [point]}


def compositions(compose: Callable[[str], str]) -> str:
    """Number of pairs, then each: distance of the result, and of the pair."""
    pairs = []
    for point in POINTS:
        parts = unicodedata.decomposition(chr(point)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (int(part, 16) for part in parts)
            if compose(chr(first) + chr(second)) == chr(point):
                pairs.append((point, first, second))
    text, last = number(len(pairs)), (0, 0, 0)
    for row in pairs:
        text += "".join(signed(new - old) for new, old in zip(row, last, strict=True))
        last = row
    return text


def lines(text: str) -> Iterable[str]:
    """Yield lines of C."""
    for start in range(0, len(text), WIDTH):
        yield f'"{text[start : start + WIDTH]}",'


def main() -> None:
    """Write the table."""
    rest = [point for point in POINTS if point not in HANGUL]
    canonical = mapped(normalizers.NFD().normalize_str, rest)
    compatible = mapped(normalizers.NFKD().normalize_str, rest)
    compatible = {p: targets for p, targets in compatible.items() if canonical.get(p) != targets}
    text = (
        class_numbers(classes())
        + mapping_numbers(canonical)
        + mapping_numbers(compatible)
        + compositions(normalizers.NFC().normalize_str)
        + mapping_numbers(mapped(normalizers.Lowercase().normalize_str, POINTS))
    )
    head = (
        f"/* Written by unicode_table.py with tokenizers {tokenizers.__version__}: do not edit. */"
    )
    TABLE.write_text("\n".join([head, *lines(text)]) + "\n")


if __name__ == "__main__":
    main()
