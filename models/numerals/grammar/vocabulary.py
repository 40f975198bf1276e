"""People, places and things in sentences with numbers, in both languages."""

from typing import NamedTuple


class Wording(NamedTuple):
    """A phrase in both languages."""

    english: str
    french: str


class Noun(NamedTuple):
    """A countable noun."""

    english: str
    english_plural: str
    french: str
    french_plural: str
    feminine: bool


class Subject(NamedTuple):
    """Subject of a clause.

    Attributes:
        english: form within a sentence.
        french: form within a sentence.
        person: form of the verb: 0 je, 1 vous, 2 il or elle, 3 nous, 4 ils or elles.
        pronoun: pronoun in a second clause.
        ending: ending of a participle after `être`; None if the English does not determine it.
    """

    english: str
    french: str
    person: int
    pronoun: Wording
    ending: str | None


_FEMININE = """
    apple apples pomme pommes
    pear pears poire poires
    orange oranges orange oranges
    car cars voiture voitures
    house houses maison maisons
    chair chairs chaise chaises
    table tables table tables
    letter letters lettre lettres
    photo photos photo photos
    bottle bottles bouteille bouteilles
    shirt shirts chemise chemises
    key keys clé clés
    flower flowers fleur fleurs
    box boxes boîte boîtes
    map maps carte cartes
    lamp lamps lampe lampes
    cup cups tasse tasses
    suitcase suitcases valise valises
    watch watches montre montres
"""

_MASCULINE = """
    book books livre livres
    cat cats chat chats
    dog dogs chien chiens
    horse horses cheval chevaux
    bird birds oiseau oiseaux
    tree trees arbre arbres
    hat hats chapeau chapeaux
    knife knives couteau couteaux
    pencil pencils crayon crayons
    newspaper newspapers journal journaux
    cake cakes gâteau gâteaux
    egg eggs œuf œufs
    glass glasses verre verres
    stamp stamps timbre timbres
    boat boats bateau bateaux
    bag bags sac sacs
    notebook notebooks cahier cahiers
    ticket tickets billet billets
    computer computers ordinateur ordinateurs
    coat coats manteau manteaux
"""


def _nouns(table: str, *, feminine: bool) -> tuple[Noun, ...]:
    rows = (line.split() for line in table.strip().splitlines())
    return tuple(Noun(one, many, un, deux, feminine) for one, many, un, deux in rows)


NOUNS = _nouns(_FEMININE, feminine=True) + _nouns(_MASCULINE, feminine=False)

THINGS = tuple(
    Wording(f"the {noun.english}", f"{article}{noun.french}")
    for noun in NOUNS
    for article in ("l'" if noun.french[0] in "aeoœ" else ("la " if noun.feminine else "le "),)
)
"""The nouns with a definite article."""

_HE, _SHE, _THEY = Wording("he", "il"), Wording("she", "elle"), Wording("they", "ils")


def _own(english: str, french: str, person: int) -> Subject:
    return Subject(english, french, person, Wording(english, french), None)


SUBJECTS = (
    _own("I", "je", 0),
    _own("you", "vous", 1),
    _own("we", "nous", 3),
    Subject("he", "il", 2, _HE, ""),
    Subject("she", "elle", 2, _SHE, "e"),
    Subject("they", "ils", 4, _THEY, "s"),
    *(Subject(name, name, 2, _SHE, "e") for name in ("Marie", "Anna", "Emma", "Nadia", "Julie")),
    *(Subject(name, name, 2, _HE, "") for name in ("Paul", "Lucas", "Hugo", "Karim", "Thomas")),
    Subject("my brother", "mon frère", 2, _HE, ""),
    Subject("my sister", "ma sœur", 2, _SHE, "e"),
    Subject("my father", "mon père", 2, _HE, ""),
    Subject("my mother", "ma mère", 2, _SHE, "e"),
    Subject("my parents", "mes parents", 4, _THEY, "s"),
    Subject("the children", "les enfants", 4, _THEY, "s"),
)

NAMES = ("Marie", "Anna", "Emma", "Nadia", "Julie", "Paul", "Lucas", "Hugo", "Karim", "Thomas")

CITIES = (
    *(Wording(name, name) for name in ("Paris", "Lyon", "Marseille", "Bordeaux", "Lille", "Nice")),
    *(Wording(name, name) for name in ("Nantes", "Toulouse", "Orléans", "Berlin", "Madrid")),
    Wording("London", "Londres"),
    Wording("Brussels", "Bruxelles"),
    Wording("Geneva", "Genève"),
    Wording("Lisbon", "Lisbonne"),
    Wording("Vienna", "Vienne"),
    Wording("Athens", "Athènes"),
    Wording("Warsaw", "Varsovie"),
    Wording("Moscow", "Moscou"),
    Wording("Rome", "Rome"),
)

EVENTS = (
    Wording("the film", "le film"),
    Wording("the concert", "le concert"),
    Wording("the lesson", "le cours"),
    Wording("the match", "le match"),
    Wording("the meeting", "la réunion"),
    Wording("the exam", "l'examen"),
    Wording("the party", "la fête"),
)

VEHICLES = (
    Wording("the train", "le train"),
    Wording("the bus", "le bus"),
    Wording("the plane", "l'avion"),
    Wording("the ferry", "le ferry"),
)

BUILDINGS = (
    Wording("the bridge was", "le pont a été construit"),
    Wording("the castle was", "le château a été construit"),
    Wording("the museum was", "le musée a été construit"),
    Wording("the tower was", "la tour a été construite"),
    Wording("the church was", "l'église a été construite"),
    Wording("the school was", "l'école a été construite"),
)
"""Include the beginning of the verb `built`, whose participle agrees."""

ROOMS = (
    Wording("the office", "le bureau"),
    Wording("the kitchen", "la cuisine"),
    Wording("the bedroom", "la chambre"),
    Wording("the library", "la bibliothèque"),
)

STREETS = (
    Wording("Rue Victor Hugo", "rue Victor Hugo"),
    Wording("Rue de la Paix", "rue de la Paix"),
    Wording("Rue du Moulin", "rue du Moulin"),
    Wording("Rue des Fleurs", "rue des Fleurs"),
)
