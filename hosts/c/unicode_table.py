"""Write unicode_table.inc: the properties of characters that tokenizers depend on.

    python hosts/c/unicode_table.py

Reads the properties off the `tokenizers` library, whose parts follow different versions of Unicode,
so that C splits and normalizes as Python does. Combining classes come from `unicodedata`. Needs
about a minute. Each line is an array of C, sorted for binary searches.
"""

import unicodedata
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

TABLE = Path(__file__).with_name("unicode_table.inc")
POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
HANGUL = range(0xAC00, 0xAC00 + 11172)

# The library tells these by other means than a part that can be called.
PREPENDED = frozenset([*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD])


def array(kind: str, name: str, values: Iterable[object]) -> str:
    """Spell an array of C."""
    return f"static const {kind} {name}[] = {{{','.join(map(str, values))}}};\n"


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


def runs(values: list[int]) -> str:
    """Arrays of the different values, and of runs: where each starts, and which value it has."""
    starts = [p for p, value in enumerate(values) if p == 0 or value != values[p - 1]]
    kinds = sorted(set(values))
    return (
        array("uint32_t", "kinds", kinds)
        + array("uint32_t", "run_starts", starts)
        + array("uint8_t", "run_kinds", (kinds.index(values[start]) for start in starts))
    )


# --- mappings -----------------------------------------------------------------------------------


def mapping(name: str, targets: dict[int, list[int]]) -> str:
    """Arrays of characters, where the targets of each start, and all targets."""
    ends = [0, *accumulate(len(targets[point]) for point in sorted(targets))]
    flat = [target for _, part in sorted(targets.items()) for target in part]
    return (
        array("uint32_t", f"{name}_points", sorted(targets))
        + array("uint16_t", f"{name}_starts", ends)
        + array("uint32_t", f"{name}_targets", flat)
    )


def mapped(normalize: Callable[[str], str], points: Iterable[int]) -> dict[int, list[int]]:
    """What characters become, if it is something else."""
    results = {point: [*map(ord, normalize(chr(point)))] for point in points}
    return {point: targets for point, targets in results.items() if targets != [point]}


def compositions(compose: Callable[[str], str]) -> list[tuple[int, int, int]]:
    """Pairs of characters, with the one that they become."""
    pairs = []
    for point in POINTS:
        parts = unicodedata.decomposition(chr(point)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (int(part, 16) for part in parts)
            if compose(chr(first) + chr(second)) == chr(point):
                pairs.append((first, second, point))
    return sorted(pairs)


def table(
    values: list[int],
    canonical: dict[int, list[int]],
    compatible: dict[int, list[int]],
    pairs: list[tuple[int, int, int]],
    lower: dict[int, list[int]],
) -> str:
    """The text of the file."""
    head = f"/* Written by unicode_table.py with tokenizers {tokenizers.__version__}. */\n"
    return (
        head
        + runs(values)
        + mapping("canonical", canonical)
        + mapping("compatible", compatible)
        + mapping("lower", lower)
        + array("composition", "compositions", (f"{{{a},{b},{c}}}" for a, b, c in pairs))
    )


def main() -> None:
    """Write the table."""
    rest = [point for point in POINTS if point not in HANGUL]
    canonical = mapped(normalizers.NFD().normalize_str, rest)
    compatible = mapped(normalizers.NFKD().normalize_str, rest)
    compatible = {p: targets for p, targets in compatible.items() if canonical.get(p) != targets}
    pairs = compositions(normalizers.NFC().normalize_str)
    lower = mapped(normalizers.Lowercase().normalize_str, POINTS)
    TABLE.write_text(table(classes(), canonical, compatible, pairs, lower))


if __name__ == "__main__":
    main()
