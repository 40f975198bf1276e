"""The text of the probes, where the checkpoint has a tokenizer: prose, code, tables, languages."""

TEXT = '''\
A bird that sings in the hedge before sunrise has no need of an audience. It repeats a short
phrase, waits, changes the last note, and begins again. People who collect such songs write them
down as rows of marks: a rising mark, a falling mark, a pause. Reading the marks aloud gives
nothing that a bird would answer, and yet two readers agree on what was sung.

Numbers help. In 1907 a teacher counted 3,412 phrases in one valley and found that four in ten
were copies of a neighbour's. "We borrow," she wrote, "and then we believe we invented." Her notes
cost 12.50 a volume; the second edition, printed in a smaller type, cost 7.

def phrases(marks, pause="."):
    """Split a song at its pauses, without the empty parts."""
    return [part for part in marks.split(pause) if part]


class Counter:
    def __init__(self, songs=()):
        self.seen = {}
        for song in songs:
            self.add(song)

    def add(self, song):
        for phrase in phrases(song):
            self.seen[phrase] = self.seen.get(phrase, 0) + 1

    def most_common(self, n=3):
        ranked = sorted(self.seen.items(), key=lambda item: (-item[1], item[0]))
        return ranked[:n]


if __name__ == "__main__":
    counter = Counter(["/\\\\/./\\\\", "//.\\\\\\\\./"])
    for phrase, count in counter.most_common():
        print(f"{phrase:>8} {count:3d}")

| day | songs | borrowed |
|-----|-------|----------|
| 1   | 120   | 0.41     |
| 2   | 98    | 0.38     |

{"valley": "east", "altitude_m": 640, "singers": [{"id": 1, "phrases": 14}, {"id": 2}]}

Was sie im Tal zählte, stand später in jedem Lehrbuch; était-ce vrai ? 谁也没有再数过。 Nobody
counted again. The hedge was cut in spring, the road was widened, and the song moved to a garden
wall, where it is still a short phrase, a pause, another last note. If you stand there early, listen
for the third repetition: it is the one that differs, and the one that the others will copy. What is
copied most is not what is simplest, and not what is loudest, but what comes just before silence.
'''
